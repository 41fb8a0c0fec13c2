"""What one start of an arm leaves, and how it makes way for the next."""

from __future__ import annotations

from pathlib import Path

import pytest

import batching
import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import traces


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
    assert traces.missing(artifact, 2) == []
    assert traces.missing(artifact, 4) == [2, 3]
    artifact.fingerprint(0).unlink()
    assert traces.missing(artifact, 2) == [0]


def test_a_file_that_is_still_being_written_is_missing(artifact: Artifact) -> None:
    path = artifact.fingerprint(1)
    path.rename(path.with_name(f".{path.name}.1.part"))
    assert traces.missing(artifact, 2) == [1]


def test_of_a_folder_that_is_gone_every_rank_is_missing(tmp_path: Path) -> None:
    assert traces.missing(Artifact(tmp_path / "gone"), 3) == [0, 1, 2]


def test_clearing_leaves_plan_launch_and_logs_alone(artifact: Artifact) -> None:
    artifact.outcome.unlink()
    traces.clear(artifact)
    assert names(artifact.folder) == ["launch", "logs", "plan.json"]
    traces.clear(artifact)
    assert artifact.log(0).read_text() == "rank 0 starts\n"


def test_setting_aside_moves_all_but_the_launch_folder_and_leaves_a_plan_on_both_sides(artifact: Artifact) -> None:
    left = names(artifact.folder)
    aside = traces.set_aside(artifact)

    assert aside == artifact.folder.parents[1] / "superseded" / "reference"
    assert names(artifact.folder) == ["launch", "plan.json"]
    assert names(aside) == [name for name in left if name != "launch"]
    assert Artifact(aside).plan.read_bytes() == artifact.plan.read_bytes()
    assert Artifact(aside).checkpoint(2).is_dir()


def test_where_nothing_was_left_nothing_is_set_aside_and_the_earlier_one_stays(artifact: Artifact) -> None:
    aside = traces.set_aside(artifact)
    assert traces.set_aside(artifact) is None
    assert aside is not None
    assert Artifact(aside).fingerprint(0).exists()


def test_the_latest_one_of_each_arm_is_kept(artifact: Artifact, tmp_path: Path) -> None:
    twin = launching.prepared(tmp_path, launching.plan("twin-1"))
    twin.fingerprint(0).write_bytes(b"of the twin")
    kept = traces.set_aside(twin)
    traces.set_aside(artifact)
    artifact.fingerprint(0).write_bytes(b"of a later start")
    aside = traces.set_aside(artifact)

    assert aside is not None
    assert names(aside) == ["plan.json", "rank-00000.fp"]
    assert Artifact(aside).fingerprint(0).read_bytes() == b"of a later start"
    assert kept is not None
    assert Artifact(kept).fingerprint(0).read_bytes() == b"of the twin"


def test_nothing_is_where_an_artifact_that_makes_way_goes(artifact: Artifact) -> None:
    aside = traces.superseded(artifact)
    assert not aside.exists()
    artifact.folder.rename(aside)
    assert traces.superseded(artifact) == aside
    assert not aside.exists()
    assert aside.parent.is_dir()
