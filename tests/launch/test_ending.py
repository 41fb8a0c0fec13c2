"""From srun's words, and Slurm's states, to what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import ending, slurm_cli
from samebits.launch.slurm_cli import View


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    artifact = launching.prepared(tmp_path, launching.plan())
    artifact.log(0).parent.mkdir()
    for rank in range(4):
        artifact.log(rank).write_text(f"rank {rank} starts\nConnectionError: Connection closed by peer\n")
    return artifact


@pytest.mark.parametrize(
    ("line", "node", "ranks", "status"),
    [
        ("srun: error: n2: task 3: Exited with exit code 1", "n2", (3,), 1),
        ("srun: error: n2: tasks 0-2,5: Exited with exit code 3", "n2", (0, 1, 2, 5), 3),
        ("srun: error: n2: task 1: Exited with exit code 137", "n2", (1,), -9),
        ("srun: error: n2: task 1: Exited with exit code 255", "n2", (1,), 255),
        ("srun: error: n1: task 1: Killed", "n1", (1,), -9),
        ("srun: error: n1: task 1: Segmentation fault (core dumped)", "n1", (1,), -11),
        ("srun: error: n1: task 0: Aborted", "n1", (0,), -6),
        ("srun: error: node-17.lab: task 0: Out Of Memory", "node-17.lab", (0,), None),
        ("srun: error: n1: task 0: Terminated", "n1", (0,), -15),
    ],
)
def test_srun_names_tasks(line: str, node: str, ranks: tuple[int, ...], status: int | None) -> None:
    assert ending.ended(["srun: Job step created", line]) == [ending.Ended(node, ranks, status)]


def test_a_killed_rank_is_blamed_before_its_peers_that_failed_for_want_of_it(artifact: Artifact) -> None:
    said = ["srun: error: n1: task 0: Exited with exit code 1", "srun: error: n2: task 2: Killed"]
    assert "rank 2 on n2 (job 7) was killed by signal 9 (SIGKILL)" in ending.of_rank(artifact, said, "7")


def test_among_ranks_that_srun_names_together_the_one_with_an_error_of_its_own_is_blamed(artifact: Artifact) -> None:
    artifact.log(2).write_text("ValueError: the loss is a teapot\n")
    said = ["srun: error: n1: tasks 0-3: Exited with exit code 1"]
    assert "rank 2 on n1 (job 7) ended with status 1: ValueError" in ending.of_rank(artifact, said, "7")


def test_a_rank_with_an_error_of_its_own_is_blamed_before_those_that_lost_a_peer(artifact: Artifact) -> None:
    artifact.log(3).write_text("ValueError: the loss is a teapot\n")
    said = [f"srun: error: n{rank}: task {rank}: Exited with exit code 1" for rank in (0, 1, 3)]
    assert "rank 3 on n3 (job 7) ended with status 1: ValueError" in ending.of_rank(artifact, said, "7")


@pytest.mark.parametrize(
    "said",
    [
        ["srun: error: n1: task 0: Out Of Memory"],
        ["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "srun: error: n1: task 0: Killed"],
        ["slurmstepd: error: Step 7.0 exceeded memory limit (9 > 5), being killed", "srun: error: n1: task 0: Killed"],
    ],
)
def test_out_of_memory_is_told_apart_from_other_kills(artifact: Artifact, said: list[str]) -> None:
    message = ending.of_rank(artifact, said, "7")
    assert "rank 0 on n1 (job 7) was out of memory" in message
    assert "Ask for more memory" in message


def test_a_step_that_never_started_quotes_srun(artifact: Artifact) -> None:
    said = ["slurmstepd: error: execve(): ch-run: No such file or directory"]
    message = ending.of_step(artifact, said, 2, "7")
    assert "job 7 could not run its ranks (srun: status 2)" in message
    assert said[0] in message


def test_a_lost_node_is_named(artifact: Artifact) -> None:
    message = ending.of_step(artifact, ["srun: error: Node failure on n2"], 1, "7")
    assert "job 7 lost node n2" in message
    assert "sinfo -R" in message


@pytest.mark.parametrize("state", sorted(slurm_cli.ENDED))
def test_every_state_in_which_a_job_ends_has_its_words_and_a_way_out(artifact: Artifact, state: str) -> None:
    view = View(state=state, reason="None", nodes="n[1-2]")
    message = ending.of_job(artifact, "7", artifact.launch / "7.out", view)

    assert message.startswith("arm reference: job 7")
    assert "n[1-2]" in message
    assert f"state {state}" in message
    assert message.endswith("then start again: the arm begins from nothing, finished arms stay.")
    assert "{" not in message.replace("{mem: ...}", "")
