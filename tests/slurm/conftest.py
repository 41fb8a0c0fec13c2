"""One Slurm cluster at a time for the tests of this folder, and their container image.

A module uses `cluster` or `bare_cluster` (without accounting), not both; one that wants both asks `clusters` in a
fixture with parameters, as test_cluster.py does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import cpu_image as image
import pytest

from .cluster import Cluster, ClusterError, Job, missing, until


class Clusters:
    """Starts the cluster that is asked for, and first stops the other."""

    def __init__(self, folder: Path) -> None:
        self._clusters = {accounting: Cluster(folder, accounting=accounting) for accounting in (True, False)}
        self._running: Cluster | None = None

    def running(self, accounting: bool) -> Cluster:
        wanted = self._clusters[accounting]
        if self._running is not wanted:
            self.stop()
            wanted.start()
            self._running = wanted
        return wanted

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def settle(self) -> list[Job]:
        """Makes the cluster idle again, by a new start where nothing else helps; the jobs that a test left."""
        if self._running is None:
            return []
        left: list[Job] = []
        try:
            left = _lasting_jobs(self._running)
            if left:
                self._running.command("scancel", *(job.id for job in left))
            self._running.idle(30)
        except ClusterError:
            self._running.stop()
            self._running.start()
        return left


def _lasting_jobs(cluster: Cluster) -> list[Job]:
    """Jobs still there after what a job needs to end."""
    with contextlib.suppress(ClusterError):
        until("no jobs", lambda: not cluster.jobs(), 5)
    return cluster.jobs()


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    if reason := missing():
        pytest.skip(reason)
    clusters = Clusters(tmp_path_factory.mktemp("slurm"))
    yield clusters
    clusters.stop()


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> Cluster:
    """Four nodes, with accounting: account `lab`, qos `normal` and `short`."""
    return clusters.running(accounting=True)


@pytest.fixture(scope="module")
def bare_cluster(clusters: Clusters) -> Cluster:
    """Four nodes without accounting: no sacct, and no account is checked."""
    return clusters.running(accounting=False)


@pytest.fixture(scope="session")
def cpu_image() -> Path:
    """The packed container image; see image.py for what is in it."""
    if reason := image.missing():
        pytest.skip(reason)
    return image.image()


@pytest.fixture(autouse=True)
def _no_job_is_left(clusters: Clusters) -> Iterator[None]:
    yield
    left = clusters.settle()
    assert not left, f"the test left jobs: {left}"
