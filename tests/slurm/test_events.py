"""What befalls a job on a cluster: each ends in one message, and leaves no job, no mixed artifact and nothing that
could pass. Ranks are stubs: what is computed is not under test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .arms import Lab, second_node, until
from .cluster import Cluster

TROUBLE = 4


@pytest.fixture
def lab(tmp_path: Path, cluster: Cluster) -> Lab:
    return Lab(tmp_path)


def two_nodes(**more: object) -> dict[str, object]:
    return {"cluster": {"nodes": 2, "ranks_per_node": 1, **more}}


def live(cluster: Cluster) -> list[str]:
    return [job.id for job in cluster.jobs()]


def submitted(cluster: Cluster, since: int) -> list[str]:
    return [job.id for job in cluster.history()[since:]]


def assert_one_start(lab: Lab, arm: str = "reference") -> None:
    """The artifact holds what exactly one start left."""
    outcome = lab.outcome(arm)
    assert outcome is not None
    assert outcome.ok
    assert lab.starts(arm) == [(0, outcome.launch), (1, outcome.launch)]


def test_an_arm_runs_on_two_nodes_and_says_which(lab: Lab) -> None:
    status, said = lab.run()
    outcome = lab.outcome()

    assert status == 0, said
    assert outcome is not None
    assert len(outcome.nodes) == 2
    assert "2 ranks, steps 1-4" in said
    assert lab.run() == (0, f"arm reference: kept, unchanged since {outcome.ended}\n")


def test_a_killed_pipeline_finds_its_job_again_and_submits_no_second_one(lab: Lab, cluster: Cluster) -> None:
    lab.mode, before = "wait", len(cluster.history())
    first = lab.start()
    job = lab.at_step(0)
    first.kill()
    second = lab.start()
    until(lambda: "re-attached" in (lab.folder / "reference.log").read_text())
    lab.go()
    status, said = second.end()

    assert status == 0, said
    assert f"re-attached to job {job}" in said
    assert submitted(cluster, before) == [job]
    assert_one_start(lab)


def test_a_job_whose_id_was_not_written_down_is_found_by_its_name(lab: Lab, cluster: Cluster) -> None:
    lab.mode, before = "wait", len(cluster.history())
    first = lab.start()
    job = lab.at_step(0)
    first.kill()
    record = lab.artifact().launch / "job.json"
    record.write_text(record.read_text().replace(f'"job": "{job}"', '"job": null'))
    second = lab.start()
    until(lambda: "re-attached" in (lab.folder / "reference.log").read_text())
    lab.go()

    assert second.end()[0] == 0
    assert submitted(cluster, before) == [job]


def test_an_interrupt_cancels_the_job_and_says_which(lab: Lab, cluster: Cluster) -> None:
    lab.mode = "hang"
    waiting = lab.start()
    job = lab.at_step(0)
    waiting.interrupt()
    status, said = waiting.end()

    assert status == 130
    assert f"arm reference: SIGINT: cancelled job {job}; nothing of it runs" in said
    assert live(cluster) == []
    assert cluster.processes() == []


def test_a_cancelled_job_is_told_as_such(lab: Lab, cluster: Cluster) -> None:
    lab.mode = "hang"
    waiting = lab.start()
    job = lab.at_step(0)
    cluster.command("scancel", job)
    status, said = waiting.end()

    assert status == TROUBLE
    assert f"job {job}" in said or "(SIGTERM)" in said
    assert "cancelled" in said
    outcome = lab.outcome()
    assert outcome is None or not outcome.ok


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("kill", "was killed by signal 9 (SIGKILL)"),
        ("raise", "ended with status 1: ValueError: the loss is a teapot"),
    ],
)
def test_a_rank_that_dies_is_named_with_its_node_job_and_last_words(
    lab: Lab, cluster: Cluster, mode: str, message: str
) -> None:
    lab.mode = mode
    status, said = lab.run()
    outcome = lab.outcome()

    assert status == TROUBLE
    assert outcome is not None
    assert f"arm reference: rank 1 on {outcome.nodes[1]} (job {lab.job()}) {message}" in said
    assert "rank 1 starts" in said
    assert "then start again" in said
    assert not outcome.ok


def test_a_rank_that_hangs_is_named_with_its_stack(tmp_path: Path, cluster: Cluster) -> None:
    lab = Lab(tmp_path, "stuck", launch={"time_minutes": 5, "threads": 1, "hang_minutes": 0.1})
    status, said = lab.run()

    assert status == TROUBLE
    assert "no step for 0.1 minutes (launch.hang_minutes), ended: rank 1 does not wait for the others" in said
    assert "in stand_still" in said
    assert cluster.processes() == []


def test_an_arm_that_reaches_slurm_s_time_limit_is_told_so(lab: Lab, cluster: Cluster) -> None:
    lab.mode = "hang"
    waiting = lab.start()
    job = lab.at_step(0)
    # The warning, a minute before, finds the job's runner.
    cluster.command("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    status, said = waiting.end()
    outcome = lab.outcome()

    assert status == TROUBLE
    assert f"job {job}: Slurm's time limit is near (SIGUSR2)" in said
    assert "launch.time_minutes" in said
    assert outcome is not None
    assert not outcome.ok
    assert cluster.processes() == []


def test_an_arm_that_takes_too_long_is_ended_and_says_how_far_it_came(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "hang", launch={"time_minutes": 1, "threads": 1, "hang_minutes": 30})
    status, said = lab.run()

    assert status == TROUBLE
    assert "not finished after 1 minutes (launch.time_minutes), ended" in said
    assert "Last recorded: ranks 0-1 no step" in said


def test_a_rank_without_memory_is_told_as_such(lab: Lab) -> None:
    lab.mode = "memory"
    status, said = lab.run()

    assert status == TROUBLE
    assert "out of memory" in said
    assert f"job {lab.job()}" in said
    assert "Ask for more" in said


def test_a_preempted_arm_begins_again_from_nothing(tmp_path: Path, cluster: Cluster) -> None:
    lab = Lab(
        tmp_path, "wait", {"slurm": {"partition": "low", "sbatch": {"mem": "500M", "exclusive": ""}}}, **two_nodes()
    )
    waiting = lab.start()
    job = lab.at_step(0)
    first = lab.starts()
    options = ("--parsable", "--partition=main", "--nodes=4", "--exclusive", "--output=/dev/null")
    urgent = cluster.command("sbatch", *options, "--wrap", "sleep 3").strip()
    until((tmp_path / "results/smoke/superseded/reference/starts").exists)
    lab.go()
    status, said = waiting.end()
    outcome = lab.outcome()

    assert status == 0, said
    assert outcome is not None
    assert outcome.launch == f"{first[0][1]}.1"
    assert_one_start(lab)
    assert (tmp_path / "results/smoke/superseded/reference/starts").exists()
    assert {entry.id for entry in cluster.history()} >= {job, urgent}


def test_an_arm_that_loses_a_node_begins_again_on_others(tmp_path: Path, cluster: Cluster) -> None:
    lab = Lab(tmp_path, "wait", **two_nodes())
    waiting = lab.start()
    job = lab.at_step(0)
    node = second_node(cluster, job)
    cluster.fail_node(node)
    try:
        until((lab.folder / "results/smoke/superseded/reference").exists, 90)
        lab.go()
        status, said = waiting.end()
    finally:
        cluster.restore_node(node)
    outcome = lab.outcome()

    assert status == 0, said
    assert outcome is not None
    assert node not in outcome.nodes
    assert outcome.launch.endswith(".1")
    assert_one_start(lab)


def test_an_arm_that_may_not_be_requeued_names_the_lost_node(tmp_path: Path, cluster: Cluster) -> None:
    lab = Lab(tmp_path, "hang", {"requeue": False}, **two_nodes())
    waiting = lab.start()
    job = lab.at_step(0)
    node = second_node(cluster, job)
    cluster.fail_node(node)
    try:
        status, said = waiting.end()
    finally:
        cluster.restore_node(node)

    assert status == TROUBLE
    assert f"job {job}" in said
    assert "node" in said
    assert lab.outcome() is None or not lab.outcome().ok  # type: ignore[union-attr]


def test_a_controller_that_restarts_while_an_arm_waits_loses_nothing(lab: Lab, cluster: Cluster) -> None:
    lab.mode, before = "wait", len(cluster.history())
    waiting = lab.start()
    job = lab.at_step(0)
    cluster.stop_controller()
    until(lambda: "waiting for Slurm to answer" in (lab.folder / "reference.log").read_text(), 90)
    cluster.start_controller()
    lab.go()
    status, said = waiting.end()

    assert status == 0, said
    assert_one_start(lab)
    assert submitted(cluster, before) == [job]


def test_while_the_controller_is_away_no_second_job_is_submitted(lab: Lab, cluster: Cluster) -> None:
    lab.mode, before = "wait", len(cluster.history())
    first = lab.start()
    job = lab.at_step(0)
    first.kill()
    cluster.stop_controller()
    status, said = lab.run()
    cluster.start_controller()
    lab.go()

    assert status == TROUBLE
    assert "whether its job of" in said
    assert lab.run()[0] == 0
    assert submitted(cluster, before) == [job]


@pytest.mark.parametrize(
    ("slurm", "nodes", "message"),
    [
        ({"partition": "main", "account": "nobody"}, 2, "Invalid account"),
        ({"partition": "nowhere"}, 2, "invalid partition"),
        ({"partition": "main", "qos": "gold"}, 2, "qos"),
    ],
)
def test_a_refusal_of_sbatch_is_one_message_with_a_way_out(
    tmp_path: Path, cluster: Cluster, slurm: dict[str, object], nodes: int, message: str
) -> None:
    before = len(cluster.history())
    split = {"world": nodes, "data": nodes}
    lab = Lab(tmp_path, "ok", {"slurm": slurm}, parallel=split, data={"global_batch": 2 * nodes})
    status, said = lab.run()

    assert status == TROUBLE
    assert "sbatch refused the job" in said
    assert message.lower() in said.lower()
    assert len([line for line in said.splitlines() if "refused" in line]) == 1
    assert submitted(cluster, before) == []
    assert not lab.artifact().folder.exists()


def test_a_rank_that_is_cancelled_with_scontrol_requeue_begins_again(lab: Lab, cluster: Cluster) -> None:
    lab.mode = "wait"
    waiting = lab.start()
    job = lab.at_step(0)
    cluster.command("scontrol", "requeue", job)
    until((lab.folder / "results/smoke/superseded/reference").exists, 90)
    lab.go()
    status, said = waiting.end()

    assert status == 0, said
    assert_one_start(lab)


def test_a_job_that_slurm_takes_and_can_never_start_is_cancelled(tmp_path: Path, cluster: Cluster) -> None:
    lab = Lab(tmp_path, "ok", parallel={"world": 40, "data": 40}, data={"global_batch": 80})
    status, said = lab.run()

    assert status == TROUBLE
    assert re.search(r"Slurm took it and can never start it \(Partition\w+\), cancelled; ask for fewer", said)
    assert "cluster.nodes" in said
    assert live(cluster) == []


def test_64_ranks_on_four_nodes(tmp_path: Path) -> None:
    split, sections = {"world": 64, "data": 64}, {"nodes": 4, "ranks_per_node": 16}
    slurm = {"partition": "main", "sbatch": {"mem": "2G"}}
    lab = Lab(tmp_path, "ok", {"slurm": slurm}, parallel=split, data={"global_batch": 128}, cluster=sections)
    status, said = lab.run()

    assert status == 0, said
    assert [rank for rank, _ in lab.starts()] == list(range(64))
    assert len(list(lab.artifact().folder.glob("rank-*.fp"))) == 64
    assert len(list((lab.artifact().folder / "logs").iterdir())) == 64
