"""Two streams for `pytest -n 2`: what waits for a cluster, and all else. One machine has one cluster, and real ranks of
two tests at once would disturb each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SLURM = Path(__file__).parent / "slurm"


class _Streams(LoadScopeScheduling):
    """Not --dist loadgroup, which pytest 9.2 and xdist 3.8 do not do together."""

    def _split_scope(self, nodeid: str) -> str:
        return "slurm" if nodeid.startswith("tests/slurm/") else "here"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Streams:
    return _Streams(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _SLURM in item.path.parents:
            item.add_marker("slurm")
