"""How a job's ranks end, and what is said of it: over stub ranks and a stand-in for srun."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_batch import assert_no_rank_lives, launches, outcome, restored

import batching
import launching
from batching import JOB, Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state

DEAF = 'trap "" TERM; echo "$SLURM_PROCID $$ deaf 0" >> "$0/starts"; exec sleep 30'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run(site: Site, results: Path, mode: str, **recipe: object) -> tuple[Artifact, str]:
    """The artifact and the message of an arm that fails."""
    artifact, launch = batching.arm(results, launching.plan(**recipe), mode)
    site.run([(artifact, launch)])
    ended = outcome(artifact)
    assert not ended.ok
    assert ended.nodes == ("n1", "n2")
    return artifact, ended.message


def test_a_rank_that_ends_with_status_0_and_no_file_is_a_failure(site: Site, tmp_path: Path) -> None:
    _, message = run(site, tmp_path, "silent")
    assert message.startswith("arm reference: rank 0 on job 7 ended with status 0, but left no rank-00000.fp")


def test_a_killed_rank_is_named_with_its_node_and_its_peer_is_not_blamed(site: Site, tmp_path: Path) -> None:
    artifact, message = run(site, tmp_path, "kill")
    assert message.startswith("arm reference: rank 1 on n2 (job 7) was killed by signal 9 (SIGKILL)")
    assert "ConnectionError: peer went away" in artifact.log(0).read_text()


def test_a_rank_that_raises_is_quoted(site: Site, tmp_path: Path) -> None:
    _, message = run(site, tmp_path, "raise")
    assert "rank 1 on n2 (job 7) ended with status 1: ValueError: the loss is a teapot" in message


def test_a_command_that_is_not_on_the_nodes_is_named(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.run([(artifact, launch)], site.stage(prefix=("no-such-engine", "exec")))
    assert "rank 0 on n1 (job 7) ended with status 2" in outcome(artifact).message


def test_a_step_that_srun_cannot_make_is_told_in_its_words(site: Site, tmp_path: Path) -> None:
    site.command("srun", "echo 'srun: error: Unable to create step for job 7: Invalid generic resource' >&2; exit 1")
    _, message = run(site, tmp_path, "ok")
    assert message.startswith("arm reference: job 7 could not run its ranks (srun: status 1)")
    assert "Invalid generic resource" in message


def test_a_port_lost_to_somebody_else_is_tried_again_with_another(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan(), "port")
    artifact.progress.write_text("0 1 4 0.0\n")  # the first try's
    site.run([(artifact, launch)])

    assert outcome(artifact).ok
    lines = [line.split() for line in (artifact.folder / "starts").read_text().splitlines()]
    assert sorted(rank for rank, *_ in lines) == ["0", "0", "1", "1"]
    assert len({port for *_, port in lines}) == 2
    assert [line.split()[0] for line in artifact.progress.read_text().splitlines()] == ["0", "1", "2", "3", "4"]


def test_a_port_that_is_taken_again_and_again_is_a_failure_after_three_tries(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    stage = site.stage(command=("sh", "-c", "echo EADDRINUSE; exit 1"))
    site.run([(artifact, launch)], stage)
    assert "ended with status 1: EADDRINUSE" in outcome(artifact).message
    assert len(site.steps()) == 3


def test_arms_of_one_job_run_one_after_the_other_and_go_on_after_one_that_failed(site: Site, tmp_path: Path) -> None:
    modes = {"reference": "ok", "twin-1": "silent", "twin-2": "ok"}
    starts = [
        batching.arm(tmp_path, launching.plan(name), mode, launch=f"{JOB}-{number}")
        for number, (name, mode) in enumerate(modes.items())
    ]
    site.run(starts)

    assert [outcome(artifact).ok for artifact, _ in starts] == [True, False, True]
    assert [outcome(artifact).launch for artifact, _ in starts] == [f"{JOB}-{number}" for number in range(3)]
    assert [step["command"][-1] for step in site.steps()] == [str(artifact.folder) for artifact, _ in starts]
    ends = [artifact.outcome.stat().st_mtime_ns for artifact, _ in starts]
    begins = [(artifact.launch / "srun.log").stat().st_ctime_ns for artifact, _ in starts]
    assert ends == sorted(ends)
    assert begins[1] > ends[0]


def test_an_arm_starts_from_the_checkpoint_that_the_one_before_it_wrote(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(), launch=f"{JOB}-0")]
    starts.append(batching.arm(tmp_path, restored(tmp_path), launch=f"{JOB}-1", restored=f"{JOB}-0"))
    site.run(starts)
    assert [outcome(artifact).ok for artifact, _ in starts] == [True, True]


def test_an_arm_whose_checkpoint_was_not_written_says_so_and_starts_no_rank(site: Site, tmp_path: Path) -> None:
    without = dataclasses.replace(launching.plan(), keep_checkpoints=False)
    first = batching.arm(tmp_path, without, "silent", launch=f"{JOB}-0")
    second = batching.arm(tmp_path, restored(tmp_path), launch=f"{JOB}-1", restored=f"{JOB}-0")
    third = batching.arm(tmp_path, launching.plan("bare"), launch=f"{JOB}-2")
    site.run([first, second, third])

    checkpoint = first[0].checkpoint(2)
    assert outcome(second[0]).message == (
        f"arm resumed: starts from {checkpoint}, which the arm before it did not write"
    )
    assert launches(second[0]) == []
    assert outcome(third[0]).ok


def test_ranks_that_do_not_heed_sigterm_are_killed_with_their_step_alone(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    batch = site.start([(artifact, launch)], site.stage(command=("sh", "-c", DEAF)))
    launching.wait_for(lambda: len(launches(artifact)) == 2)
    batch.process.terminate()
    batch.end()

    assert (site.bin / "scancel.log").read_text() == "--signal=KILL 7\n"
    assert "was cancelled or preempted (SIGTERM)" in outcome(artifact).message
    assert_no_rank_lives(artifact)


def test_the_time_limit_ends_the_ranks_and_says_how_far_they_came(site: Site, tmp_path: Path) -> None:
    artifact, message = run(site, tmp_path, "hang", launch={"time_minutes": 0})
    assert message.startswith("arm reference: not finished after 0 minutes (launch.time_minutes), ended")
    assert "Last recorded: ranks 0-1 no step" in message
    assert_no_rank_lives(artifact)


def test_the_rank_that_the_others_wait_for_is_named_with_its_stack(site: Site, tmp_path: Path) -> None:
    artifact, message = run(site, tmp_path, "stuck", launch={"hang_minutes": 0.1})
    assert message.startswith(
        "arm reference: no step for 0.1 minutes (launch.hang_minutes), ended: rank 1 does not wait for the others"
    )
    assert "in stand_still" in message
    assert "in all_reduce" in message
    assert "Last recorded: ranks 0-1 no step" in message
    assert_no_rank_lives(artifact)


def test_while_ranks_run_the_job_is_the_arms_runner_and_leaves_with_it(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan(), "wait")
    batch = site.start([(artifact, launch)])
    launching.wait_for(lambda: len(launches(artifact)) == 2)
    assert job_state.runner(artifact) == batch.process.pid
    (artifact.folder.parent / "go").touch()
    batch.end()
    assert job_state.runner(artifact) is None


def test_what_setup_puts_on_path_is_found_by_the_step(site: Site, tmp_path: Path) -> None:
    """`setup: [module load apptainer]` changes the batch script's PATH."""
    engine = tmp_path / "modules" / "engine"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nexec "$@"\n')
    engine.chmod(0o755)
    artifact, launch = batching.arm(tmp_path, launching.plan())
    site.run([(artifact, launch)], site.stage(prefix=("engine",)), PATH=f"{engine.parent}:{site.path()}")
    assert outcome(artifact).ok, outcome(artifact).message


def test_an_arm_whose_plan_is_damaged_does_not_take_the_others_with_it(site: Site, tmp_path: Path) -> None:
    starts = [batching.arm(tmp_path, launching.plan(arm), launch=f"{JOB}-{arm}") for arm in ("reference", "twin-1")]
    starts[0][0].plan.write_text("{")
    site.run(starts)
    assert "plan: not JSON" in outcome(starts[0][0]).message
    assert outcome(starts[1][0]).ok


def test_a_missing_srun_is_one_message(site: Site, tmp_path: Path) -> None:
    artifact, launch = batching.arm(tmp_path, launching.plan())
    (tmp_path / "nothing").mkdir()
    site.run([(artifact, launch)], PATH=str(tmp_path / "nothing"))
    assert "No such file or directory: 'srun'" in outcome(artifact).message
