"""Streams of tests for `pytest -n N`: parts of the suite that one worker runs in order.

Tests that share expensive arms, or a cluster, are one stream, since fixtures live in a worker. A worker that has
finished its stream takes the next. The longest streams come first, so that the last ones are short and all workers
end at about the same time.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is a matter of who else uses the machine.
settings.register_profile("samebits", deadline=None)
settings.load_profile("samebits")

ROOT = Path(__file__).parents[1]
QUICK = "quick"
CLUSTER = "slurm"
LONGEST = (
    CLUSTER,
    QUICK,
    "tests/faults",
    "tests/worker/inject",
    "tests/worker/trainer",
    "tests/overhead",
    "tests/worker/trace",
    "tests/stress",
    "tests/test_pipeline.py",
)
"""Streams, or what they begin with, by how long they take."""
BY_TEST = ("tests/worker/inject/test_commands.py",)
"""Files whose tests share nothing that is expensive: each test is a stream."""


@functools.cache
def starts_ranks(file: str) -> bool:
    """Tell whether a test file has the marker `ranks`. Its text says so, as xdist's scheduler sees no markers."""
    return "pytest.mark.ranks" in (ROOT / file).read_text(encoding="utf-8")


def stream_of(nodeid: str) -> str:
    """Return the stream of a test: the cluster's, one of real ranks (a file or a test), or what is quick."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/slurm/"):
        return CLUSTER
    if not starts_ranks(file):
        return QUICK
    return nodeid if file in BY_TEST else file


def place_of(stream: str) -> int:
    """Return a stream's place in the order in which streams start."""
    return next((place for place, start in enumerate(LONGEST) if stream.startswith(start)), len(LONGEST))


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
    items.sort(key=lambda item: place_of(stream_of(item.nodeid)))
    for item in items:
        if stream_of(item.nodeid) == CLUSTER:
            item.add_marker("slurm")
