"""From ranks' logs, srun's words and Slurm's states to what a person is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages, slurm_cli
from samebits.launch.failure_messages import Stack
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
    assert failure_messages.parse_srun(["srun: Job step created", line]) == [
        failure_messages.EndedTasks(node, ranks, status)
    ]


def test_a_killed_rank_is_blamed_before_its_peers_that_failed_for_want_of_it(artifact: Artifact) -> None:
    said = ["srun: error: n1: task 0: Exited with exit code 1", "srun: error: n2: task 2: Killed"]
    assert "rank 2 on n2 (job 7) was killed by signal 9 (SIGKILL)" in failure_messages.of_tasks(artifact, said, "7")


def test_among_ranks_that_srun_names_together_the_one_with_an_error_of_its_own_is_blamed(artifact: Artifact) -> None:
    artifact.log(2).write_text("ValueError: the loss is a teapot\n")
    said = ["srun: error: n1: tasks 0-3: Exited with exit code 1"]
    assert "rank 2 on n1 (job 7) ended with status 1: ValueError" in failure_messages.of_tasks(artifact, said, "7")


def test_a_rank_with_an_error_of_its_own_is_blamed_before_those_that_lost_a_peer(artifact: Artifact) -> None:
    artifact.log(3).write_text("ValueError: the loss is a teapot\n")
    said = [f"srun: error: n{rank}: task {rank}: Exited with exit code 1" for rank in (0, 1, 3)]
    assert "rank 3 on n3 (job 7) ended with status 1: ValueError" in failure_messages.of_tasks(artifact, said, "7")


@pytest.mark.parametrize(
    "said",
    [
        ["srun: error: n1: task 0: Out Of Memory"],
        ["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "srun: error: n1: task 0: Killed"],
        ["slurmstepd: error: Step 7.0 exceeded memory limit (9 > 5), being killed", "srun: error: n1: task 0: Killed"],
    ],
)
def test_out_of_memory_is_told_apart_from_other_kills(artifact: Artifact, said: list[str]) -> None:
    message = failure_messages.of_tasks(artifact, said, "7")
    assert "rank 0 on n1 (job 7) was out of memory" in message
    assert "Ask for more memory" in message


def test_a_step_that_never_started_quotes_srun(artifact: Artifact) -> None:
    said = ["slurmstepd: error: execve(): ch-run: No such file or directory"]
    message = failure_messages.of_step(artifact, said, 2, "7")
    assert "job 7 could not run its ranks (srun: status 2)" in message
    assert said[0] in message


def test_a_lost_node_is_named(artifact: Artifact) -> None:
    message = failure_messages.of_step(artifact, ["srun: error: Node failure on n2"], 1, "7")
    assert "job 7 lost node n2" in message
    assert "sinfo -R" in message


@pytest.mark.parametrize("state", sorted(slurm_cli.ENDED))
def test_every_state_in_which_a_job_ends_has_its_words_and_a_way_out(artifact: Artifact, state: str) -> None:
    view = View(state=state, reason="None", nodes="n[1-2]")
    message = failure_messages.of_slurm_job(artifact, "7", artifact.launch / "7.out", view)

    assert message.startswith("arm reference: job 7")
    assert "n[1-2]" in message
    assert f"state {state}" in message
    assert message.endswith("then start again: the arm begins from nothing, finished arms stay.")
    assert "{" not in message.replace("{mem: ...}", "")


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (
            ["Traceback", "torch.OutOfMemoryError: CUDA out of memory", "more"],
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        (["Segmentation fault"], "Segmentation fault"),
        ([], ""),
    ],
)
def test_the_headline_of_a_log(lines: list[str], headline: str) -> None:
    assert failure_messages.headline(lines) == headline


def test_where_all_ranks_stand_alike_nobody_is_blamed(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    message = failure_messages.of_hang(artifact, 2, 30)
    assert message.startswith("arm reference: no step for 30 minutes (launch.hang_minutes), ended: all ranks stand ali")
    assert "  ranks 0-1 stand at wrote no stack" in message


def test_a_rank_that_wrote_no_stack_is_blamed_before_those_that_wait(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    artifact.log(0).parent.mkdir()
    waits = '  File "/site/torch/distributed/c10d.py", line 2 in all_reduce'
    artifact.log(0).write_text(f"rank 0 starts\nCurrent thread 0x1 (most recent call first):\n{waits}\n")
    artifact.log(1).write_text("rank 1 starts\n")
    message = failure_messages.of_hang(artifact, 2, 30)
    assert "ended: rank 1 does not wait for the others" in message
    assert "  ranks 1 stand at wrote no stack" in message


def test_a_damaged_fingerprint_file_does_not_hide_that_an_arm_hangs(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    artifact.fingerprint(0).write_bytes(b"not what a recorder writes")
    artifact.fingerprint(1).write_bytes(b"")
    assert "Last recorded: ranks 0-1 no step" in failure_messages.of_hang(artifact, 2, 30)


WAITING = Stack(("distributed_c10d.py:2810 in all_reduce", "loop.py:88 in step"), waits=True)


WORKING = Stack(("data.py:12 in read", "loop.py:70 in step"), waits=False)


def dumped(log: Path, code: str) -> Stack | None:
    """What a process that ran `code` wrote into its log when it was asked."""
    script = f"import faulthandler, signal, os\nfaulthandler.register(signal.SIGUSR1, all_threads=True)\n{code}"
    with log.open("w") as stream:
        print("rank 0 starts", file=stream, flush=True)
        subprocess.run([sys.executable, "-c", script], stderr=stream, check=True)
    return failure_messages.read_stack(log)


def test_the_innermost_frame_comes_first(tmp_path: Path) -> None:
    code = "def inner(): os.kill(os.getpid(), signal.SIGUSR1)\ndef outer(): inner()\nouter()"
    stack = dumped(tmp_path / "log", code)

    assert stack is not None
    assert stack.frames == ("<string>:3 in inner", "<string>:4 in outer", "<string>:5 in <module>")
    assert not stack.waits


def test_the_thread_that_was_asked_counts_among_several(tmp_path: Path) -> None:
    code = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def here(): os.kill(os.getpid(), signal.SIGUSR1)\nhere()"
    )
    stack = dumped(tmp_path / "log", code)

    assert stack is not None
    assert stack.frames[0].endswith("in here")


@pytest.mark.parametrize(
    ("file", "waits"),
    [
        ("/site/torch/distributed/distributed_c10d.py", True),
        ("/site/torch/autograd/graph.py", True),
        ("/site/megatron/core/pipeline_parallel/p2p_communication.py", True),
        ("/site/torch/utils/data/dataloader.py", False),
        ("/home/me/train.py", False),
    ],
)
def test_a_rank_inside_a_collective_waits(tmp_path: Path, file: str, waits: bool) -> None:
    frame = f"exec(compile('os.kill(os.getpid(), signal.SIGUSR1)', {file!r}, 'exec'))"
    stack = dumped(tmp_path / "log", frame)

    assert stack is not None
    assert stack.waits is waits


def test_a_log_without_a_stack_is_a_rank_that_wrote_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("rank 0 starts\n")
    assert failure_messages.read_stack(tmp_path / "log") is None
    assert failure_messages.read_stack(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("steps", "seen", "expected"),
    [
        ({0: 5, 1: 5, 2: 5}, {0: WAITING, 1: WORKING, 2: WAITING}, ([1], "does not wait for the others")),
        ({0: 5, 1: 5, 2: 5}, {0: WAITING, 1: None, 2: WAITING}, ([1], "does not wait for the others")),
        ({0: 5, 1: 4, 2: 5}, {0: WAITING, 1: WAITING, 2: WAITING}, ([1], "is behind the others")),
        ({0: 5, 1: 4, 2: 5}, {0: None, 1: None, 2: None}, ([1], "is behind the others")),
        ({0: 5, 1: 5}, {0: WAITING, 1: WAITING}, ([], "")),
        ({0: 5, 1: 5}, {0: WORKING, 1: WORKING}, ([], "")),
    ],
)
def test_suspects_are_those_that_others_wait_for(
    steps: dict[int, int], seen: dict[int, Stack | None], expected: tuple[list[int], str]
) -> None:
    assert failure_messages.suspects(steps, seen) == expected


def test_few_ranks_at_one_place_come_before_many() -> None:
    groups = failure_messages.group_stacks({0: WAITING, 1: WORKING, 2: WAITING})
    assert [ranks for _, ranks in groups] == [[1], [0, 2]]
    assert groups[0][0] == "data.py:12 in read < loop.py:70 in step"
