"""One rank's file against the plan: what it lacks, or that it is another's, is named by rank and file."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from artifacts import (
    At,
    make_plan,
    planted,
    rewrite,
    write_artifact,
)
from comparing import refusal
from entries import Entry
from samebits.compare.verify import expected_blocks
from samebits.fingerprint.records import Moment
from samebits.spec.plan import Plan


@pytest.mark.parametrize("change", [{"fault": 7}, {"surplus": 1}, {"moment": None}])
def test_a_note_that_cannot_be_read_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    note = {**planted("ulp", "parameter:w0", rank=1, step=2), "moment": "step"} | change
    note = note if note["moment"] else {key: value for key, value in note.items() if key != "moment"}
    message = refusal(write_artifact(tmp_path / "a", notes=[note]))
    assert "rank 1, rank-00001.fp: has a note `planted` that cannot be read" in message


def test_a_rank_beyond_the_world_is_named(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    rewrite(artifact, 1, make_plan(), writer="9")
    assert "rank 1, rank-00001.fp: was written by rank 9, and the plan has 2 ranks" in refusal(artifact)


def test_a_header_of_another_world_is_named(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    rewrite(artifact, 1, make_plan(), world="4")
    assert "rank 1, rank-00001.fp: says 4 ranks, the plan has 2" in refusal(artifact)


def test_a_note_of_another_rank_is_refused(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    rewrite(artifact, 1, make_plan(), notes=[planted("ulp", "parameter:w0", rank=0, step=2)])
    assert "rank 1, rank-00001.fp: has a note `planted` of rank 0" in refusal(artifact)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    artifact.fingerprint(1).unlink()
    artifact.fingerprint(1).mkdir()
    assert "rank 1, rank-00001.fp: cannot be read (Is a directory)" in refusal(artifact)


def test_unsealed_files_are_named_with_how_far_they_are_valid(tmp_path: Path) -> None:
    message = refusal(write_artifact(tmp_path / "a", sealed=False))
    assert "ranks 0-1 (rank-00000.fp and so on): not sealed" in message
    assert "last whole block: final state of step 4" in message


def test_a_file_of_another_arm_is_named_with_both(tmp_path: Path) -> None:
    artifact, twin = write_artifact(tmp_path / "a"), write_artifact(tmp_path / "b", arm="twin-1")
    shutil.copy(twin.fingerprint(1), artifact.fingerprint(1))
    message = refusal(artifact)
    assert "rank 1, rank-00001.fp: was recorded under another plan (arm twin-1" in message
    assert "(arm reference" in message


def test_a_changed_plan_is_said_once_for_all_ranks(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=3)
    artifact.plan.write_text(make_plan(world=3, seed=99).to_json())
    message = refusal(artifact)
    assert "ranks 0-2 (rank-00000.fp and so on): was recorded under another plan" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (make_plan(steps=3), "lacks step 4, saved state of step 4, final state of step 4"),
        (make_plan(every=4), "lacks saved state of step 2"),
        (make_plan(steps=5), "lacks final state of step 4, which the plan demands and has step 5, final state"),
        (make_plan(restored=1), "lacks step 1, which the plan demands and has restored state of step 1"),
        (make_plan(capture=False), "lacks step 1, step 2, saved state of step 2, step 3 and 2 more"),
    ],
)
def test_blocks_against_the_plan_are_named(tmp_path: Path, plan: Plan, said: str) -> None:
    artifact = write_artifact(tmp_path / "a")
    rewrite(artifact, 1, plan)
    message = refusal(artifact)
    assert f"rank 1, rank-00001.fp: {said}" in message
    assert "\n" not in message


def test_blocks_in_another_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = write_artifact(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr("artifacts.expected_blocks", lambda plan: reversed(list(expected_blocks(plan))))
        rewrite(artifact, 0, make_plan())
    assert "rank 0, rank-00000.fp: has its blocks in another order than the plan" in refusal(artifact)


def test_rungs_against_the_plan_are_named(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    windows = dataclasses.replace(make_plan().recipe.capture, windows=((1, 1),))
    plan = dataclasses.replace(make_plan(), recipe=dataclasses.replace(make_plan().recipe, capture=windows))
    rewrite(artifact, 1, plan)
    assert "rank 1, rank-00001.fp: has step 2 at rung metrics instead of state, step 3 at rung" in refusal(artifact)


def test_a_block_without_records_is_named(tmp_path: Path) -> None:
    def empty(at: At, entries: list[Entry]) -> list[Entry]:
        return [] if (at.rank, at.moment, at.step) == (1, Moment.STEP, 3) else entries

    message = refusal(write_artifact(tmp_path / "a", change=empty))
    assert "rank 1, rank-00001.fp: has no records for step 3; nothing could be compared" in message
