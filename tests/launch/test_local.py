"""What the job of an arm does with its ranks, over stub ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import environment, failure_messages, job_state, progress
from samebits.launch.job_state import Outcome


def run(artifact: Artifact, mode: str, **options: object) -> Outcome:
    process = launching.start_ranks(artifact, mode, **options)
    assert process.wait(timeout=120) == 0
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    return outcome


def test_an_arm_whose_ranks_all_end_well_is_ok(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    outcome = run(artifact, "ok")
    assert (outcome.ok, outcome.message, outcome.launch) == (True, "", launching.LAUNCH)
    assert sorted(rank for rank, _, _ in launching.starts(artifact)) == [0, 1]
    assert artifact.log(1).read_text() == "rank 1 starts\n"


def test_a_killed_rank_is_named_with_host_signal_log_and_way_out(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    outcome = run(artifact, "kill")
    first, *rest = outcome.message.splitlines()
    assert not outcome.ok
    assert first == f"arm reference: rank 1 on {os.uname().nodename} was killed by signal 9 (SIGKILL)"
    assert "    rank 1 starts" in rest
    assert str(artifact.log(1)) in outcome.message
    assert "start again" in rest[-1]


def test_a_python_exception_is_the_headline_and_peers_are_not_blamed(tmp_path: Path) -> None:
    outcome = run(launching.prepared(tmp_path, launching.plan()), "raise")
    first = outcome.message.splitlines()[0]
    assert first.endswith("ended with status 1: ValueError: the loss is a teapot")
    assert "rank 1" in first


def test_a_rank_that_ends_well_without_its_file_is_a_failure(tmp_path: Path) -> None:
    outcome = run(launching.prepared(tmp_path, launching.plan()), "silent")
    assert not outcome.ok
    assert "rank 0" in outcome.message
    assert "left no rank-00000.fp" in outcome.message


def test_a_port_lost_to_somebody_else_is_tried_again_with_another(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    assert run(artifact, "port").ok
    assert len(launching.starts(artifact)) == 4


def test_the_time_limit_ends_all_ranks_and_says_how_far_they_came(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = launching.prepared(tmp_path, wanted)
    text = artifact.plan.read_text().replace('"time_minutes": 10', '"time_minutes": 0')
    artifact.plan.write_text(text)
    outcome = run(artifact, "hang")
    assert "not finished after 0 minutes (launch.time_minutes)" in outcome.message
    assert "Last recorded: ranks 0-1 no step" in outcome.message
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(artifact))


def test_ranks_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    process = launching.start_ranks(artifact, "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    assert job_state.runner(artifact) == process.pid
    process.kill()
    process.wait()
    launching.wait_for(lambda: not any(launching.alive(pid) for _, pid, _ in launching.starts(artifact)))
    assert job_state.runner(artifact) is None


def test_helpers_of_a_rank_end_with_it(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    assert run(artifact, "helper").ok
    helpers = [int((artifact.folder / f"helper-{rank}").read_text()) for rank in range(2)]
    launching.wait_for(lambda: not any(launching.alive(pid) for pid in helpers))


def test_sigterm_cancels_the_arm_and_says_so(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    process = launching.start_ranks(artifact, "hang")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert "was cancelled (SIGTERM)" in outcome.message


def test_a_start_that_was_given_up_runs_nothing(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    assert launching.start_ranks(artifact, "ok", launch="another").wait(timeout=60) == 0
    assert job_state.read_outcome(artifact) is None
    assert launching.starts(artifact) == []


def test_a_second_runner_of_the_same_start_runs_nothing(tmp_path: Path) -> None:
    artifact = launching.prepared(tmp_path, launching.plan())
    first = launching.start_ranks(artifact, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    second = launching.start_ranks(artifact, "slow")
    assert first.wait(timeout=60) == 0
    assert second.wait(timeout=60) == 0
    assert len(launching.starts(artifact)) == 2


def test_a_rank_gets_the_recipes_environment_and_nothing_from_the_users_shell(tmp_path: Path) -> None:
    artifact = launching.prepared(
        tmp_path, launching.plan(determinism={"environment": {"NCCL_PROTO": "Simple"}}, launch={"threads": 3})
    )
    surroundings = environment.inherited(
        {"PATH": os.environ["PATH"], "NCCL_ALGO": "Tree", "LD_PRELOAD": "x", "OMP_NUM_THREADS": "64", "HOME": "/h"}
    )
    assert run(artifact, "environment", environment=surroundings).ok
    seen = json.loads((artifact.folder / "environment-1.json").read_text())
    wanted = {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "PYTHONHASHSEED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "SAMEBITS_LAUNCH": launching.LAUNCH,
        "HOME": "/h",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert "LD_PRELOAD" not in seen
    assert not any(name.startswith("SUBMITIT") for name in seen)


def test_progress_reads_whole_lines_only_and_estimates_from_steps_done(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    assert progress.read(path) is None
    path.write_text("6 7 12 10.0\n")
    assert progress.read(path) == progress.Progress(6, 12, None)
    path.write_text("6 7 12 10.0\n7 7 12 12.0\n8 7 12 14.0\n9 7")
    assert progress.read(path) == progress.Progress(8, 12, 8.0)
    line = progress.describe("resumed", 2, progress.read(path), 75.2)
    assert line == "arm resumed: step 8/12, 1:15, about 0:08 left"


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
