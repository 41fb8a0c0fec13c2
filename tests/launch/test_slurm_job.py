"""A job as its arm's pipeline sees it, from Slurm's answers. The commands are stand-ins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import executors
import launching
from batching import NAME, Site
from samebits.fingerprint.paths import Artifact
from samebits.launch import slurm_job
from samebits.launch.job_state import LaunchError
from samebits.launch.slurm_job import SlurmJob


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Job 7 waits in the queue, until scancel ends it."""
    site = Site(tmp_path)
    monkeypatch.setenv("PATH", site.path())
    site.state("PENDING", "Resources")
    site.command("cancelled", f"echo 'CANCELLED|None||{NAME}'")
    site.command("scancel", f'echo "$@" >> {site.bin}/scancel.log\ncp {site.bin}/cancelled {site.bin}/squeue')
    return site


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return launching.prepared(tmp_path, launching.plan())


def looked_at(artifact: Artifact, poll: float = 0.0) -> SlurmJob:
    return SlurmJob(artifact, artifact, "7", NAME, poll)


def cancelled(site: Site) -> list[str]:
    log = site.bin / "scancel.log"
    return log.read_text().split() if log.exists() else []


def test_a_job_in_the_queue_says_why_it_waits(site: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75) == "job 7: waits in the queue (Resources), 1:15"
    site.state("CONFIGURING")
    assert job.running()
    assert job.waits(75) == "job 7: waits in the queue, 1:15"


def test_a_job_that_runs_leaves_the_word_to_its_arm(site: Site, artifact: Artifact) -> None:
    site.state("RUNNING")
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75) == ""


@pytest.mark.parametrize("before", ["PENDING", "RUNNING"])
def test_while_the_controller_is_away_a_job_still_runs_and_says_what_it_waits_for(
    site: Site, artifact: Artifact, before: str
) -> None:
    job = looked_at(artifact)
    site.state(before)
    assert job.running()
    site.no_answer()
    assert job.running()
    assert job.waits(3) == (
        "job 7: waiting for Slurm to answer, 0:03 (`squeue` says: slurm_load_jobs error: Unable to contact slurm "
        "controller (connect failure))"
    )
    site.state("RUNNING")
    assert job.running()
    assert job.waits(3) == ""


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "NODE_FAIL", "TIMEOUT"])
def test_an_ended_job_does_not_run(site: Site, artifact: Artifact, state: str) -> None:
    site.state(state)
    assert not looked_at(artifact).running()


def test_a_job_that_slurm_has_forgotten_has_ended(site: Site, artifact: Artifact) -> None:
    site.command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    job = looked_at(artifact)
    assert not job.running()
    assert "is no longer known to Slurm" in job.last_words()


def test_a_job_of_another_name_is_somebody_elses_and_left_alone(site: Site, artifact: Artifact) -> None:
    site.state("RUNNING", name="somebodys")
    job = looked_at(artifact)
    assert not job.running()
    job.cancel()
    assert cancelled(site) == []
    assert "is no longer known to Slurm" in job.last_words()


@pytest.mark.parametrize("state", ["SUSPENDED", "REQUEUE_HOLD"])
def test_a_job_that_stands_still_says_so(site: Site, artifact: Artifact, state: str) -> None:
    site.state(state)
    job = looked_at(artifact)
    assert job.running()
    assert job.waits(75).startswith(f"job 7: is {state.lower()}, 1:15")


@pytest.mark.parametrize("state", ["REQUEUED", "COMPLETING", "SUSPENDED"])
def test_a_job_that_may_come_back_is_waited_for(site: Site, artifact: Artifact, state: str) -> None:
    executors.ends(artifact, launching.LAUNCH, ok=False)
    site.state(state)
    assert looked_at(artifact).running()


def test_between_two_questions_nobody_asks(site: Site, artifact: Artifact) -> None:
    job = looked_at(artifact, poll=60)
    assert job.running()
    site.state("COMPLETED")
    assert job.running()


def test_once_an_arm_has_said_how_it_ended_the_next_question_comes_soon(
    site: Site, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    job = looked_at(artifact, poll=60)
    assert job.running()
    executors.ends(artifact, launching.LAUNCH, ok=True)
    site.state("COMPLETED")
    now = 100.4
    assert job.running()
    now = 100.6
    assert not job.running()


def test_a_job_that_can_never_start_is_cancelled_at_the_third_look(site: Site, artifact: Artifact) -> None:
    site.state("PENDING", "BadConstraints")
    job = looked_at(artifact)
    assert [job.running(), job.running()] == [True, True]
    assert cancelled(site) == []
    assert not job.running()
    assert cancelled(site) == ["7"]
    first, *_ = job.last_words().splitlines()
    assert first.startswith(
        "arm reference: job 7: Slurm took it and can never start it (BadConstraints), cancelled; ask for fewer or other"
    )


def test_a_hopeless_reason_that_passes_is_forgotten(site: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    for reason in ("PartitionConfig", "PartitionConfig", "Priority", "PartitionConfig", "PartitionConfig"):
        site.state("PENDING", reason)
        assert job.running()
    assert cancelled(site) == []


def test_a_job_that_runs_is_never_given_up(site: Site, artifact: Artifact) -> None:
    site.state("RUNNING", "BadConstraints")
    job = looked_at(artifact)
    assert all(job.running() for _ in range(5))
    assert cancelled(site) == []


def test_cancelling_returns_once_the_job_has_ended(site: Site, artifact: Artifact) -> None:
    job = looked_at(artifact)
    job.cancel()
    assert cancelled(site) == ["7"]
    assert not job.running()


def test_a_job_that_slurm_does_not_end_is_said_to_run_still(
    site: Site, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "_CANCEL_SECONDS", 0.5)
    site.command("scancel", "exit 0")
    with pytest.raises(LaunchError, match=r"job 7: Slurm has not ended it .* it may still run: `scancel 7`"):
        looked_at(artifact).cancel()


def test_a_job_without_a_word_is_told_by_its_state_and_its_own_log(site: Site, artifact: Artifact) -> None:
    (artifact.launch / "7_0_log.out").write_text("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT ... ***\n")
    site.state("CANCELLED")
    job = looked_at(artifact)
    assert not job.running()
    assert job.last_words().startswith("arm reference: job 7 on n[1-2] was cancelled (state CANCELLED)")
    assert "*** JOB 7 ON n1 CANCELLED" in job.last_words()


def test_the_log_of_an_arm_of_several_is_in_the_first_ones_folder(site: Site, tmp_path: Path) -> None:
    home = launching.prepared(tmp_path, launching.plan())
    twin = launching.prepared(tmp_path, launching.plan("twin-1"))
    (home.launch / "7_0_log.out").write_text("what the job said\n")
    site.state("FAILED")
    job = SlurmJob(twin, home, "7", NAME, 0)
    assert not job.running()
    assert job.last_words().startswith("arm twin-1: job 7")
    assert "what the job said" in job.last_words()
