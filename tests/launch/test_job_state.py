"""What the disk knows about a job: which start it is, what a start leaves, and how it makes way."""

from __future__ import annotations

from pathlib import Path

import pytest

import batching
import executors
import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.job_state import JobRecord, job_part, submitted_part

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
    assert (job_part(again), submitted_part(again)) == (LAUNCH, f"{LAUNCH}-3")
    assert job_state.resumed_as(LAUNCH, 0) == LAUNCH
    assert (job_part(LAUNCH), submitted_part(LAUNCH)) == (LAUNCH, LAUNCH)


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


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """With the traces of a start of two ranks."""
    artifact = launching.prepared(tmp_path, launching.plan())
    batching.left_behind(artifact, launching.LAUNCH)
    artifact.log(0).parent.mkdir()
    artifact.log(0).write_text("rank 0 starts\n")
    return artifact


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_ranks_without_a_fingerprint_file_are_missing(artifact: Artifact) -> None:
    assert job_state.missing(artifact, 2) == []
    assert job_state.missing(artifact, 4) == [2, 3]
    artifact.fingerprint(0).unlink()
    assert job_state.missing(artifact, 2) == [0]


def test_a_file_that_is_still_being_written_is_missing(artifact: Artifact) -> None:
    path = artifact.fingerprint(1)
    path.rename(path.with_name(f".{path.name}.1.part"))
    assert job_state.missing(artifact, 2) == [1]


def test_of_a_folder_that_is_gone_every_rank_is_missing(tmp_path: Path) -> None:
    assert job_state.missing(Artifact(tmp_path / "gone"), 3) == [0, 1, 2]


def test_clearing_leaves_plan_launch_and_logs_alone(artifact: Artifact) -> None:
    artifact.outcome.unlink()
    job_state.clear(artifact)
    assert names(artifact.folder) == ["launch", "logs", "plan.json"]
    job_state.clear(artifact)
    assert artifact.log(0).read_text() == "rank 0 starts\n"


def test_setting_aside_moves_all_but_the_launch_folder_and_leaves_a_plan_on_both_sides(artifact: Artifact) -> None:
    left = names(artifact.folder)
    aside = job_state.set_aside(artifact)

    assert aside == artifact.folder.parents[1] / "superseded" / "reference"
    assert names(artifact.folder) == ["launch", "plan.json"]
    assert names(aside) == [name for name in left if name != "launch"]
    assert Artifact(aside).plan.read_bytes() == artifact.plan.read_bytes()
    assert Artifact(aside).checkpoint(2).is_dir()


def test_where_nothing_was_left_nothing_is_set_aside_and_the_earlier_one_stays(artifact: Artifact) -> None:
    aside = job_state.set_aside(artifact)
    assert job_state.set_aside(artifact) is None
    assert aside is not None
    assert Artifact(aside).fingerprint(0).exists()


def test_the_latest_one_of_each_arm_is_kept(artifact: Artifact, tmp_path: Path) -> None:
    twin = launching.prepared(tmp_path, launching.plan("twin-1"))
    twin.fingerprint(0).write_bytes(b"of the twin")
    kept = job_state.set_aside(twin)
    job_state.set_aside(artifact)
    artifact.fingerprint(0).write_bytes(b"of a later start")
    aside = job_state.set_aside(artifact)

    assert aside is not None
    assert names(aside) == ["plan.json", "rank-00000.fp"]
    assert Artifact(aside).fingerprint(0).read_bytes() == b"of a later start"
    assert kept is not None
    assert Artifact(kept).fingerprint(0).read_bytes() == b"of the twin"


def test_nothing_is_where_an_artifact_that_makes_way_goes(artifact: Artifact) -> None:
    aside = job_state.superseded(artifact)
    assert not aside.exists()
    artifact.folder.rename(aside)
    assert job_state.superseded(artifact) == aside
    assert not aside.exists()
    assert aside.parent.is_dir()
