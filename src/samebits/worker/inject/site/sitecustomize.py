"""Python imports this at every start with this folder on PYTHONPATH; inert unless samebits has set its switch.

Python imports one `sitecustomize` only, so the next one on the path is run from here, first.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _run_next() -> None:
    # Not pathlib: every start of every Python pays for its import.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_run_next()
if os.environ.get("SAMEBITS_INJECT") == "1":
    from samebits.worker.inject import bootstrap as entry

    entry.begin()
