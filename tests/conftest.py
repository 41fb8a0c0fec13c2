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
_RUNS = (
    *(
        "tests/worker/inject/test_commands.py",
        "tests/worker/inject/test_inject.py",
        "tests/faults/test_localised_faults.py",
    ),
    *(
        "tests/faults/test_planted_faults.py",
        "tests/worker/trace/test_boundary_runs.py",
        "tests/stress/test_stress_runs.py",
    ),
)
"""Each taken by the worker that has nothing left of its own, the longest first."""
_ORDER = {stream: place for place, stream in enumerate(("here", "slurm", *_RUNS))}


def stream_of(nodeid: str) -> str:
    if nodeid.startswith("tests/slurm/"):
        return "slurm"
    file = nodeid.partition("::")[0]
    return file if file in _RUNS else "here"


class _Streams(LoadScopeScheduling):
    """Not --dist loadgroup, which pytest 9.2 and xdist 3.8 do not do together."""

    def _split_scope(self, nodeid: str) -> str:
        return stream_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Streams:
    # Not by the number of tests: a stream of few may take long.
    config.option.loadscopereorder = False
    return _Streams(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _ORDER[stream_of(item.nodeid)])
    for item in items:
        if _SLURM in item.path.parents:
            item.add_marker("slurm")
