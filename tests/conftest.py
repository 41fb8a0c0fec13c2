"""Two streams for `pytest -n 2 --dist loadgroup`: what waits for a cluster, and all else. One machine has one cluster,
and real ranks of two tests at once would disturb each other."""

from __future__ import annotations

from pathlib import Path

import pytest

_SLURM = Path(__file__).parent / "slurm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        on_cluster = _SLURM in item.path.parents
        item.add_marker(pytest.mark.xdist_group("slurm" if on_cluster else "here"))
        if on_cluster:
            item.add_marker("slurm")
