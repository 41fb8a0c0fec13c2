"""What the disk knows about a job: which start it is, when Slurm starts it again."""

from __future__ import annotations

from pathlib import Path

import pytest

import executors
import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.job_state import JobRecord
from samebits.launch.start import base, first

LAUNCH = "0123abcd"


def recorded(results: Path, launch: str, **more: str) -> Artifact:
    artifact = launching.prepared(results, launching.plan())
    JobRecord(**{"launch": launch, "key": "k", "restored": None, "submitted": "then", "job": "7", **more}).write(
        artifact
    )
    return artifact


def test_a_launch_id_says_which_job_which_arm_and_which_start() -> None:
    again = job_state.resumed_as(f"{LAUNCH}-3", 2)
    assert again == f"{LAUNCH}-3.2"
    assert (base(again), first(again)) == (LAUNCH, f"{LAUNCH}-3")
    assert job_state.resumed_as(LAUNCH, 0) == LAUNCH
    assert (base(LAUNCH), first(LAUNCH)) == (LAUNCH, LAUNCH)


@pytest.mark.parametrize("before", [LAUNCH, f"{LAUNCH}.1"])
def test_a_start_of_the_same_job_takes_the_record_over(tmp_path: Path, before: str) -> None:
    artifact = recorded(tmp_path, before, lead="reference")
    assert job_state.renew(artifact, f"{LAUNCH}.2")
    assert job_state.read_record(artifact) == JobRecord(
        launch=f"{LAUNCH}.2", key="k", restored=None, submitted="then", job="7", lead="reference"
    )


@pytest.mark.parametrize("other", ["another", "another.1", f"{LAUNCH}-1", f"{LAUNCH}0"])
def test_a_record_of_another_start_is_left_as_it_is(tmp_path: Path, other: str) -> None:
    artifact = recorded(tmp_path, other)
    before = job_state.read_record(artifact)
    assert not job_state.renew(artifact, f"{LAUNCH}.1")
    assert job_state.read_record(artifact) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{LAUNCH}-0", f"{LAUNCH}-0.2"),
        (f"{LAUNCH}-0.1", f"{LAUNCH}-0.2"),
        ("another-0.1", "another-0.1"),
        ("another", "another"),
    ],
)
def test_only_a_checkpoint_of_the_same_job_is_written_anew(tmp_path: Path, before: str, after: str) -> None:
    artifact = recorded(tmp_path, f"{LAUNCH}-1", restored=before)
    assert job_state.renew(artifact, f"{LAUNCH}-1.2")
    record = job_state.read_record(artifact)
    assert record is not None
    assert record.restored == after


@pytest.mark.parametrize(
    ("launch", "ok", "finished"), [(LAUNCH, True, True), (LAUNCH, False, False), (f"{LAUNCH}.1", True, False)]
)
def test_an_arm_has_finished_when_its_latest_start_ended_well(
    tmp_path: Path, launch: str, ok: bool, finished: bool
) -> None:
    artifact = recorded(tmp_path, launch)
    assert not job_state.finished(artifact)
    executors.ends(artifact, LAUNCH, ok=ok)
    assert job_state.finished(artifact) is finished


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"launch": 3}', '{"launch": "a", "unknown": 1}'])
def test_a_damaged_record_or_outcome_is_none(tmp_path: Path, damage: str) -> None:
    artifact = recorded(tmp_path, LAUNCH)
    (artifact.launch / "job.json").write_text(damage)
    artifact.outcome.write_text(damage)
    assert job_state.read_record(artifact) is None
    assert job_state.read_outcome(artifact) is None
    assert not job_state.renew(artifact, f"{LAUNCH}.1")


def test_nodes_of_an_outcome_keep_their_order(tmp_path: Path) -> None:
    artifact = recorded(tmp_path, LAUNCH)
    executors.ends(artifact, LAUNCH, ok=True, nodes=("n5", "n3"))
    outcome = job_state.read_outcome(artifact)
    assert outcome is not None
    assert outcome.nodes == ("n5", "n3")
