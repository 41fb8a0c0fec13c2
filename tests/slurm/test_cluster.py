"""The cluster of the tests behaves as a real one, fails as a real one, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import cluster as slurm
from .cluster import Cluster, ClusterError, until
from .conftest import Clusters

with_accounting = pytest.mark.parametrize("either", [True], indirect=True, ids=["accounting"])
without_accounting = pytest.mark.parametrize("either", [False], indirect=True, ids=["bare"])


@pytest.fixture(scope="module", params=[True, False], ids=["accounting", "bare"])
def either(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    return clusters.running(request.param)


def submit(cluster: Cluster, script: str, *options: str) -> str:
    """Id of a job that keeps its output in `out` of the test's folder when told so by an option."""
    return cluster.command("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", script).strip()


def test_tasks_of_a_job_see_the_host_names_of_their_nodes(either: Cluster) -> None:
    assert sorted(either.command("srun", "-N2", "hostname").split()) == ["n1", "n2"]
    both = either.command("srun", "-N2", "-l", "python3", "-c", "import socket; print(socket.gethostbyname('n2'))")
    assert sorted(both.splitlines()) == ["0: 10.88.0.2", "1: 10.88.0.2"]


@with_accounting
def test_an_unknown_account_and_a_qos_of_others_are_refused(either: Cluster) -> None:
    with pytest.raises(ClusterError, match="Invalid account"):
        submit(either, "true", "-A", "unknown")
    with pytest.raises(ClusterError, match="Invalid qos"):
        submit(either, "true", "--qos", "long")
    job = submit(either, "true", "-A", "lab", "--qos", "short")
    either.idle()
    assert job in {known.id for known in either.history()}


@without_accounting
def test_without_accounting_nobody_checks_the_account_and_sacct_fails(either: Cluster) -> None:
    job = submit(either, "true", "-A", "unknown")
    either.idle()
    assert job in {known.id for known in either.history()}
    with pytest.raises(ClusterError, match="accounting storage is disabled"):
        either.command("sacct")


@without_accounting
def test_a_process_that_left_its_job_step_is_seen(either: Cluster) -> None:
    either.command("srun", "sh", "-c", "setsid -f sleep 5 > /dev/null 2>&1 < /dev/null")
    either.idle()
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in either.processes()] == ["sleep\n"]
    until("its end", lambda: not either.processes(), 10)


@without_accounting
def test_a_second_cluster_waits_for_the_first_and_says_which_that_is(
    either: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "PARALLEL_RUN_SECONDS", 0.3)
    with pytest.raises(ClusterError, match=f"one cluster at a time.* down {either.folder}"):
        Cluster(tmp_path).start()
    assert either.command("srun", "hostname") == "n1\n"


def test_nothing_is_left_after_stop(either: Cluster) -> None:
    submit(either, "sleep 60")
    until("a job's process", either.processes, 10)
    processes = [*daemons(), *either.processes()]
    assert len(processes) >= 6 + 1
    either.stop()
    try:
        assert [pid for pid in processes if slurm.started(pid)] == []
        assert traces() == []
    finally:
        either.start()


@without_accounting
def test_what_a_killed_run_left_is_cleared_by_the_next_start(either: Cluster, tmp_path: Path) -> None:
    either.stop()
    try:
        killed = "Cluster(Path(sys.argv[1]), 2, accounting=False).start(); os.kill(os.getpid(), signal.SIGKILL)"
        program = f"import os, signal, sys; from pathlib import Path; from tests.slurm.cluster import Cluster; {killed}"
        root = Path(__file__).parents[2]
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, timeout=60, check=False)
        left = daemons()
        assert len(left) == 4
        assert len(traces()) > 4
    finally:
        either.start()
    assert [pid for pid in left if slurm.started(pid)] == []
    assert either.command("srun", "-N4", "hostname").split() != []


def daemons() -> list[int]:
    return [int(record.read_text().split()[0]) for record in (slurm.RUN / "pid").iterdir()]


def traces() -> list[str]:
    """What a cluster changes on the machine."""
    hosts = [line for line in Path("/etc/hosts").read_text().splitlines() if "samebits" in line or "10.88.0." in line]
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.splitlines()
    configuration = [str(path) for path in Path("/etc/slurm").glob("slurm*.conf")]
    files = [str(path) for path in slurm.RUN.iterdir() if path.name not in ("lock", "pid")]
    return [text for text in (*hosts, *links, *spaces, *configuration, *files, *map(str, daemons())) if traced(text)]


def traced(text: str) -> bool:
    return any(mark in text for mark in ("samebits", "10.88.0.", "/etc/slurm/")) or text.isdigit()
