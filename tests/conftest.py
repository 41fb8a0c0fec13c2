"""Streams for `pytest -n 2`, the longest first: what measures or is quick, what waits for a cluster, and then file by
file the runs of real ranks that only take long. One machine has one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is a matter of who else uses the machine.
settings.register_profile("samebits", deadline=None)
settings.load_profile("samebits")

_SLURM = Path(__file__).parent / "slurm"
_RUNS = ("tests/faults/", *(f"tests/test_{name}.py" for name in ("boundary_runs", "commands", "inject", "stress_runs")))
"""Taken by the worker that has nothing left of its own."""


class _Streams(LoadScopeScheduling):
    """Not --dist loadgroup, which pytest 9.2 and xdist 3.8 do not do together."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/slurm/"):
            return "slurm"
        return nodeid.partition("::")[0] if nodeid.startswith(_RUNS) else "here"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Streams:
    return _Streams(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _SLURM in item.path.parents:
            item.add_marker("slurm")
