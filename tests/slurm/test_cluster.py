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


def states(cluster: Cluster) -> dict[str, str]:
    return {job.id: job.state for job in cluster.jobs()}


def wait_for(cluster: Cluster, job: str, state: str, seconds: float = 20) -> None:
    until(f"{job} {state}", lambda: states(cluster).get(job) == state, seconds)


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


def test_a_job_of_main_requeues_one_of_low_which_runs_again(either: Cluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = f"echo run ${{SLURM_RESTART_COUNT:-0}} >> {ran}; sleep $((10 - 10 * ${{SLURM_RESTART_COUNT:-0}}))"
    job = submit(either, script, "-p", "low", "-N4", "--exclusive")
    until("the first run", ran.exists, 10)
    either.command("srun", "-N1", "--exclusive", "true")
    either.idle()
    assert ran.read_text().splitlines() == ["run 0", "run 1"]
    assert [known.state for known in either.history() if known.id == job] == ["COMPLETED"]


def test_the_job_of_a_failed_node_runs_again_elsewhere_and_the_node_comes_back(either: Cluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = f'echo $(hostname) >> {ran}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 60'
    submit(either, script, "--requeue")
    until("the first run", ran.exists, 10)
    either.fail_node("n1")
    assert either.processes() == []
    until("the second run", lambda: len(ran.read_text().split()) == 2, 40)
    assert ran.read_text().split() == ["n1", "n2"]
    either.restore_node("n1")
    either.idle()
    assert either.command("srun", "-w", "n1", "hostname") == "n1\n"


@with_accounting
def test_the_job_of_a_failed_node_that_may_not_run_again_fails(either: Cluster) -> None:
    job = submit(either, "sleep 60", "--no-requeue", "-w", "n2")
    wait_for(either, job, "RUNNING")
    either.fail_node("n2")
    until("the job's end", lambda: job not in states(either), 40)
    assert [known.state for known in either.history() if known.id == job] == ["NODE_FAIL"]
    either.restore_node("n2")


def test_a_step_that_takes_more_memory_than_asked_for_is_killed(either: Cluster) -> None:
    with pytest.raises(ClusterError, match="exceeded memory limit"):
        either.command("srun", "--mem=100", "python3", "-c", "x = bytearray(400 << 20); import time; time.sleep(30)")


def test_a_job_runs_on_while_the_controller_is_down(either: Cluster, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    job = submit(either, f"sleep 2; touch {ended}")
    wait_for(either, job, "RUNNING")
    either.stop_controller()
    with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
        either.jobs()
    until("the job's end", ended.exists, 10)
    either.start_controller()
    either.idle()
    assert [known.state for known in either.history() if known.id == job] == ["COMPLETED"]


def test_a_running_job_survives_a_restart_of_the_controller(either: Cluster) -> None:
    job = submit(either, "sleep 30")
    wait_for(either, job, "RUNNING")
    either.restart_controller(seconds_down=1)
    assert states(either) == {job: "RUNNING"}
    either.command("scancel", job)


def test_a_process_that_left_its_job_step_is_seen(either: Cluster) -> None:
    either.command("srun", "sh", "-c", "setsid -f sleep 5 > /dev/null 2>&1 < /dev/null")
    either.idle()
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in either.processes()] == ["sleep\n"]
    until("its end", lambda: not either.processes(), 10)


def test_the_image_runs_on_two_nodes(either: Cluster, cpu_image: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    program = (
        "from samebits.run import cpu_backend; cpu_backend.install(); import megatron.core, numpy, torch, socket;"
        "print(socket.gethostname(), torch.ones(2).sum().item())"
    )
    inside = ("ch-run", "--bind", f"{source}:/mnt/0", str(cpu_image), "--", "env", "PYTHONPATH=/mnt/0", "python3")
    printed = either.command("srun", "-N2", "--ntasks-per-node=2", *inside, "-W", "ignore", "-c", program, timeout=120)
    assert sorted(printed.splitlines()) == ["n1 2.0", "n1 2.0", "n2 2.0", "n2 2.0"]


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
