"""Collect and certify: an artifact gets a manifest exactly when every rank recorded all that the plan demands."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts import (
    DIGEST,
    altered,
    altered_from,
    coordinates,
    make_pins,
    make_plan,
    planted,
    reordered,
    rewrite,
    skipped,
    unhealthy,
    write_artifact,
)
from comparing import refusal
from samebits.compare.certify import certify
from samebits.compare.collect import collect
from samebits.compare.verify import expected_blocks, expected_rung
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.manifest import BlockName, Planted, Unhealthy, read_manifest, read_table
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import read
from samebits.fingerprint.records import Moment


def test_manifest_holds_what_was_recorded(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=3, steps=3, change=skipped("master:w0"))
    manifest = collect(artifact.folder)
    assert manifest == read_manifest(artifact)
    assert manifest.blocks == (
        BlockName(moment="step", step=1, rungs=(("state", 3),)),
        BlockName(moment="step", step=2, rungs=(("state", 3),)),
        BlockName(moment="saved", step=2, rungs=(("state", 3),)),
        BlockName(moment="step", step=3, rungs=(("state", 3),)),
        BlockName(moment="final", step=3, rungs=(("state", 3),)),
    )
    assert (manifest.digest, manifest.launch, manifest.plan.arm) == (DIGEST, "launch-of-reference", "reference")
    for rank, entry in enumerate(manifest.ranks):
        file = read(artifact.fingerprint(rank), deep=True)
        assert (entry.rank, entry.bytes, entry.check) == (rank, len(file.data), file.check.hex())
        assert (entry.records, entry.skipped, entry.deep) == (sum(block.records for block in file.blocks), 5, True)
        assert (entry.coordinates, entry.pins) == (coordinates(rank, 3), make_pins(rank))


def test_table_holds_digests_and_chains(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    table = read_table(artifact, collect(artifact.folder))
    assert table.shape == (2, 7, 32)
    for rank in range(2):
        blocks = read(artifact.fingerprint(rank), deep=True).blocks
        assert [bytes(row[:16]) for row in table[rank]] == [block.digest for block in blocks]
        assert [bytes(row[16:]) for row in table[rank]] == [block.chain for block in blocks]


def test_run_fingerprint_is_equal_exactly_for_equal_records(tmp_path: Path) -> None:
    def of(name: str, **options: Any) -> str:
        return collect(write_artifact(tmp_path / name, **options).folder).run_fingerprint

    first = of("a")
    assert of("b", arm="twin-1", pins=lambda rank: make_pins(rank + 8), notes=[unhealthy(rank=0, step=1)]) == first
    assert of("c", change=reordered) == first
    assert of("d", change=altered("rng:torch", rank=1, step=4, moment=Moment.FINAL, bit=127)) != first
    assert of("e", digest="another") != first
    assert of("f", world=3) != first


def test_first_difference_shows_in_the_table(tmp_path: Path) -> None:
    first = write_artifact(tmp_path / "a", world=3, steps=6)
    second = write_artifact(tmp_path / "b", world=3, steps=6, change=altered_from("parameter:w0", rank=1, step=3))
    tables = [read_table(artifact, collect(artifact.folder)) for artifact in (first, second)]
    differs = (tables[0][:, :, :16] != tables[1][:, :, :16]).any(axis=2)
    assert differs.any(axis=1).tolist() == [False, True, False]
    assert int(np.argmax(differs[1])) == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"restored": 2}, ["RESTORED 2", "STEP 3", "STEP 4", "SAVED 4", "FINAL 4"]),
        ({"capture": False}, ["FINAL 4"]),
        ({"capture": False, "restored": 2}, ["FINAL 4"]),
        ({"every": 3}, ["STEP 1", "STEP 2", "STEP 3", "SAVED 3", "STEP 4", "FINAL 4"]),
    ],
)
def test_blocks_that_a_plan_demands(tmp_path: Path, options: dict[str, Any], expected: list[str]) -> None:
    assert [f"{moment.name} {step}" for moment, step in expected_blocks(make_plan(**options))] == expected
    manifest = collect(write_artifact(tmp_path / "a", **options).folder)
    assert [f"{block.moment.upper()} {block.step}" for block in manifest.blocks] == expected


def test_rungs_that_a_plan_demands(tmp_path: Path) -> None:
    plan = make_plan(world=4, steps=5)
    limits = dataclasses.replace(plan.recipe.capture, every=2, ranks=(1, 2))
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, capture=limits))
    assert expected_rung(plan, 1, Moment.STEP, 3) == "metrics"
    assert expected_rung(plan, 0, Moment.SAVED, 2) == "state"
    blocks = collect(write_artifact(tmp_path / "a", plan=plan).folder).blocks
    assert blocks[0] == BlockName(moment="step", step=1, rungs=(("metrics", 4),))
    assert blocks[1] == BlockName(moment="step", step=2, rungs=(("metrics", 1), ("state", 2), ("metrics", 1)))
    assert blocks[2].rungs == (("state", 4),)


def test_notes_become_planted_and_unhealthy(tmp_path: Path) -> None:
    notes = [
        planted("ulp", "parameter:w0", rank=1, step=2, scope="chunk0"),
        unhealthy(rank=0, step=3, value="-inf"),
        {"type": "remark", "rank": 0, "step": 1},
    ]
    manifest = collect(write_artifact(tmp_path / "a", notes=notes).folder)
    place = Planted(fault="ulp", rank=1, moment="step", step=2, kind="parameter", name="w0", scope="chunk0")
    assert manifest.planted == (place,)
    assert manifest.unhealthy == (Unhealthy(rank=0, step=3, name="lm loss", value="-inf"),)


def test_missing_ranks_are_named_together(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=6, steps=1)
    for rank in (1, 2, 5):
        artifact.fingerprint(rank).unlink()
    message = refusal(artifact)
    assert "ranks 1-2, 5: no fingerprint file (rank-00001.fp); restore it or run the arm again" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["rank-00002.fp", "rank-1.fp", "rank-00001 (copy).fp", "x.fp"])
def test_surplus_files_are_named(tmp_path: Path, name: str) -> None:
    artifact = write_artifact(tmp_path / "a")
    shutil.copy(artifact.fingerprint(1), artifact.folder / name)
    assert f": {name}: belongs to none of the 2 ranks of the plan" in refusal(artifact)


def test_mixed_starts_and_digests_are_named_by_rank(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=3)
    rewrite(artifact, 1, make_plan(), launch="later", digest="other")
    message = refusal(artifact)
    assert "- files of different starts of the arm: ranks 0, 2: launch-of-reference; rank 1: later" in message
    assert f"- digests of different kinds: ranks 0, 2: {DIGEST}; rank 1: other" in message


def test_all_problems_are_told_together(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=4)
    artifact.fingerprint(0).unlink()
    os.truncate(artifact.fingerprint(1), 5000)
    rewrite(artifact, 2, make_plan(steps=3))
    (artifact.folder / "rank-00007.fp").write_bytes(b"")
    artifact.outcome.write_text(json.dumps({"ok": False, "message": "rank 1 on here was killed\nits log"}))
    head, *lines = refusal(artifact).splitlines()
    assert head == f"{artifact.folder}: 5 problems"
    starts = ["outcome.json: ", "rank 0: ", "rank-00007.fp: ", "rank 1, rank-00001.fp: ", "rank 2, rank-00002.fp: "]
    assert [line.startswith(f"- {start}") for line, start in zip(lines, starts, strict=True)] == [True] * 5
    assert lines[0] == "- outcome.json: the launcher says: rank 1 on here was killed"


def test_very_many_problems_are_cut(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", world=30, steps=1)
    for rank in range(30):
        os.truncate(artifact.fingerprint(rank), 3000 + rank)
    lines = refusal(artifact).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "- and 10 more"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ok": true}', '{"ok": 1, "message": ""}', '{"ok": "no"}'])
def test_an_outcome_that_does_not_say_ok_is_refused(tmp_path: Path, content: str) -> None:
    artifact = write_artifact(tmp_path / "a")
    artifact.outcome.write_text(content)
    assert "outcome.json: " in refusal(artifact)


def test_an_outcome_of_another_start_is_refused(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    artifact.outcome.write_text('{"ok": true, "message": "", "launch": "older"}')
    assert "outcome.json is of start older, the files are of start launch-of-reference" in refusal(artifact)


def test_a_bare_folder_without_an_outcome_is_collected(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    artifact.outcome.unlink()
    assert collect(artifact.folder).ranks


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"format": 99}', "\x00"])
def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    artifact = write_artifact(tmp_path / "a")
    collect(artifact.folder)
    artifact.plan.unlink()
    if content is not None:
        artifact.plan.write_text(content)
    assert refusal(artifact).startswith(str(artifact.plan))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "no such folder" in refusal(Artifact(tmp_path / "none"))


def test_a_failed_collect_leaves_no_older_manifest(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a")
    collect(artifact.folder)
    assert artifact.manifest.exists()
    os.truncate(artifact.fingerprint(0), 4000)
    refusal(artifact)
    with pytest.raises(ArtifactError, match="the arm is not finished"):
        certify(artifact)


@pytest.mark.parametrize("failing", ["table.npy", "manifest.json"])
def test_a_full_disk_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    artifact = write_artifact(tmp_path / "a")
    replace = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == failing:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ArtifactError, match="no manifest can be written"):
        collect(artifact.folder)
    assert not artifact.manifest.exists()
    assert not list(artifact.folder.glob("*.part"))


def test_ranks_are_told_as_ranges() -> None:
    assert ranks_text([9, 0, 1, 2, 4, 1]) == "0-2, 4, 9"
    assert ranks_text([]) == ""


def test_who_collects_waits_for_another_who_does(tmp_path: Path) -> None:
    """A killed pipeline's job and its successor's: neither takes the other's manifest away."""
    artifact = write_artifact(tmp_path / "a")
    collect(artifact.folder)
    with (artifact.folder / ".collecting").open("a") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        second = threading.Thread(target=collect, args=(artifact.folder,), daemon=True)
        second.start()
        second.join(0.5)
        assert second.is_alive()
        assert artifact.manifest.exists()
    second.join(30)
    assert artifact.manifest.exists()
