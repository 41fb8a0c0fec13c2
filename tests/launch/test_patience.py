"""How long an arm may take, and what is said of one that no longer moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages, job_state
from samebits.launch.patience import Patience

HANG_MINUTES = 0.1
"""6 seconds, of a clock that the tests set."""


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def patience(progress: Path, **launch: object) -> Patience:
    return Patience(launching.plan(launch={"hang_minutes": HANG_MINUTES, **launch}).recipe, progress)


def test_an_arm_that_moves_is_given_its_time(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    watched = patience(progress)
    for step in range(8):
        with progress.open("a") as stream:
            stream.write(f"{step} 1 8 0.0\n")
        assert watched.exceeded() is None
        clock.now += 5


def test_an_arm_that_ends_no_step_hangs(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    progress.write_text("0 1 8 0.0\n")
    watched = patience(progress)
    assert watched.exceeded() is None
    clock.now += 5
    assert watched.exceeded() is None
    clock.now += 2
    assert watched.exceeded() == "hang"


def test_an_arm_that_never_began_hangs_too(tmp_path: Path, clock: Time) -> None:
    watched = patience(tmp_path / "absent")
    clock.now += 5
    assert watched.exceeded() is None
    clock.now += 2
    assert watched.exceeded() == "hang"


def test_the_time_limit_counts_whatever_moves(tmp_path: Path, clock: Time) -> None:
    progress = tmp_path / "progress"
    watched = patience(progress, time_minutes=0)
    progress.write_text("0 1 8 0.0\n")
    clock.now += 1
    assert watched.exceeded() == "time"


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, str]:
    """An arm whose rank 1 stands still while rank 0 waits for it, and what was said of it."""
    wanted = launching.plan(launch={"hang_minutes": 0.1})
    artifact = launching.prepared(tmp_path_factory.mktemp("stuck"), wanted)
    process = launching.start_ranks(artifact, "stuck")
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.terminate()
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert not outcome.ok
    return artifact, outcome.message


def test_the_rank_that_the_others_wait_for_is_named(stuck: tuple[Artifact, str]) -> None:
    assert stuck[1].startswith(
        "arm reference: no step for 0.1 minutes (launch.hang_minutes), ended: rank 1 does not wait for the others\n"
    )


def test_the_stacks_are_grouped_and_all_of_them_are_in_the_logs(stuck: tuple[Artifact, str]) -> None:
    artifact, message = stuck
    shown = [line for line in message.splitlines() if line.startswith("  ranks ")]
    assert [line.split(" stand at ")[0] for line in shown] == ["  ranks 0", "  ranks 1"]
    assert "in all_reduce" in shown[0]
    assert "in stand_still" in shown[1]
    assert f"All stacks are in {artifact.log(0).parent}." in message
    assert "in all_reduce" in artifact.log(0).read_text()


def test_the_log_of_the_rank_to_blame_is_quoted_with_the_way_out(stuck: tuple[Artifact, str]) -> None:
    artifact, message = stuck
    assert f"  last lines of {artifact.log(1)}:" in message
    assert "raise launch.hang_minutes where a step really takes so long, then start again" in message


def test_no_rank_of_an_arm_that_hangs_is_left(stuck: tuple[Artifact, str]) -> None:
    assert len(launching.starts(stuck[0])) == 2
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(stuck[0]))


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
