"""Showing an artifact or one file, damaged ones included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from comparing import SOME
from samebits.compare.inspect import Choice, show, show_records
from samebits.compare.results import to_json
from samebits.fingerprint.paths import Artifact, ArtifactError


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    note = artifacts.planted("ulp", "parameter:w0", rank=1, step=3)
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", notes=[note])


def test_a_folder_shows_every_rank_with_its_blocks(artifact: Artifact) -> None:
    shown = show(artifact.folder)
    assert (shown.arm, shown.problem, len(shown.files)) == ("reference", None, 2)
    assert shown.run_fingerprint.startswith("sb1-")
    file = shown.files[1]
    assert (file.rank, file.arm, file.host, file.fault, file.sealed, file.verified) == (
        1,
        "reference",
        "node-0",
        None,
        True,
        True,
    )
    assert file.coordinates == "TP 0, PP 0, DP 1, EP 0, CP 0"
    assert (file.records, len(file.blocks), file.valid_bytes == file.bytes) == (141, 7, True)
    assert [(block.moment, block.step, block.seconds) for block in file.blocks[:3]] == [
        ("step", 1, 0.5),
        ("step", 2, 0.5),
        ("saved", 2, 0.5),
    ]
    assert "planted" in file.notes[0]
    assert json.loads(to_json(shown))["files"][0]["rank"] == 0


def test_a_single_file_is_shown_alone(artifact: Artifact) -> None:
    shown = show(artifact.fingerprint(1))
    assert (len(shown.files), shown.files[0].rank, shown.arm) == (1, 1, "reference")


def test_records_of_a_chosen_block_are_shown_in_their_order(artifact: Artifact) -> None:
    found = show_records(artifact.folder, Choice(rank=1, step=3))
    assert [record.seq for record in found] == list(range(24))
    assert (found[4].kind, found[4].name, found[4].record.value, found[4].input) == ("metric", "lm loss", "4.7", None)
    saved = show_records(artifact.fingerprint(0), Choice(moment="saved", step=2))
    assert {record.phase for record in saved} == {"state"}


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(step=9), "has no step block of step 9"),
        (Choice(moment="midnight", step=1), "must be one of restored, step, saved, final"),
        (Choice(rank=7, step=1), "rank-00007.fp: cannot be read"),
    ],
)
def test_a_block_that_is_not_there_is_refused_with_what_there_is(artifact: Artifact, choice: Choice, says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        show_records(artifact.folder, choice)


@SOME
@given(share=st.floats(0, 1), flip=st.booleans())
def test_a_damaged_file_is_shown_as_far_as_it_is_valid(artifact: Artifact, share: float, flip: bool) -> None:
    data = bytearray(artifact.fingerprint(0).read_bytes())
    at = int(share * (len(data) - 1))
    if flip:
        data[at] ^= 4
    else:
        del data[at:]
    path = evidence.scratch() / "rank-00000.fp"
    path.write_bytes(bytes(data))
    file = show(path).files[0]
    assert file.fault is not None
    assert file.valid_bytes <= at
    for block in file.blocks:
        assert len(show_records(path, Choice(moment=block.moment, step=block.step))) == block.records


def test_a_folder_without_manifest_says_so_and_shows_its_files(tmp_path: Path) -> None:
    artifact = evidence.written(tmp_path / "arm")
    artifact.manifest.unlink()
    shown = show(artifact.folder)
    assert shown.problem is not None
    assert "manifest.json" in shown.problem
    assert len(shown.files) == 2


def test_a_folder_or_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.fp"):
        with pytest.raises(ArtifactError):
            show(path)
