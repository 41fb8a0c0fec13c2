"""Controls: a planted fault counts as found at exactly its place, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import artifacts
import evidence
from samebits.compare.compare import compare
from samebits.fingerprint.manifest import Planted
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Moment
from samebits.gates.gates import Outcome, judge_control

NOTE = Planted(fault="ulp", rank=1, moment="step", step=3, kind="parameter", name="w0", scope="")
STRUCK = [artifacts.altered("parameter:w0", rank=1, step=3), artifacts.diverged(step=3)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference")


def outcome(reference: Artifact, *notes: Planted, **changes: Any) -> Outcome:
    arm = {"arm": "control-ulp", "change": STRUCK, **changes}
    return judge_control(compare(reference, evidence.written(evidence.scratch() / "control-ulp", **arm)), notes)


def test_a_fault_found_where_it_was_planted_passes(reference: Artifact) -> None:
    found = outcome(reference, NOTE)
    assert found.verdict == "pass"
    assert "ulp, parameter:w0 at step 3, rank 1" in found.explanation


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"rank": 0},
        {"step": 2},
        {"moment": "saved"},
        {"kind": "master"},
        {"name": "w1"},
        {"scope": "chunk0"},
    ],
)
def test_a_fault_found_elsewhere_fails_and_both_places_are_told(reference: Artifact, elsewhere: dict[str, Any]) -> None:
    found = outcome(reference, dataclasses.replace(NOTE, **elsewhere))
    assert found.verdict == "fail"
    assert "found was parameter:w0 at step 3, ranks 1" in found.explanation


def test_a_second_rank_that_parts_in_the_same_place_fails(reference: Artifact) -> None:
    both = [artifacts.altered("parameter:w0", rank=rank, step=3) for rank in range(2)]
    assert outcome(reference, NOTE, change=both).verdict == "fail"


def test_a_difference_before_the_planted_one_fails(reference: Artifact) -> None:
    early = [artifacts.altered("rng:python", rank=0, step=1), *STRUCK]
    assert outcome(reference, NOTE, change=early).verdict == "fail"


def test_a_fault_that_was_not_found_fails(reference: Artifact) -> None:
    note = artifacts.planted("ulp", "parameter:w0", rank=1, step=3)
    found = outcome(reference, NOTE, change=(), notes=[note])
    assert (found.verdict, "was not found" in found.explanation) == ("fail", True)


def test_without_a_note_nothing_can_be_looked_for(reference: Artifact) -> None:
    found = outcome(reference)
    assert (found.verdict, "no rank noted" in found.explanation) == ("inconclusive", True)


def test_a_fault_on_every_rank_must_be_found_on_every_rank(reference: Artifact) -> None:
    notes = [dataclasses.replace(NOTE, rank=rank) for rank in range(2)]
    both = [artifacts.altered("parameter:w0", rank=rank, step=3) for rank in range(2)]
    assert outcome(reference, *notes, change=both).verdict == "pass"
    assert outcome(reference, *notes).verdict == "fail"


def test_a_fault_at_the_restore_must_be_found_in_the_restored_state(reference: Artifact) -> None:
    note = Planted(fault="rng-skip", rank=1, moment="restored", step=2, kind="rng", name="torch", scope="")
    struck = [
        artifacts.altered("rng:torch", rank=1, step=2, moment=Moment.RESTORED),
        artifacts.diverged(step=2),
    ]
    assert outcome(reference, note, restored=2, change=struck).verdict == "pass"
    assert outcome(reference, note, restored=2, change=artifacts.diverged(step=2)).verdict == "fail"


def test_what_is_not_comparable_or_damaged_is_neither_found_nor_missed(reference: Artifact) -> None:
    unlike = outcome(reference, NOTE, pins=evidence.on_rank(0, code={"samebits": "x"}))
    assert unlike.verdict == "invalid"
    assert "code.samebits is c0de there and x here, ranks 0" in unlike.explanation
    gone = judge_control(compare(reference, Artifact(evidence.scratch())), [NOTE])
    assert (gone.verdict, "manifest.json" in gone.explanation) == ("inconclusive", True)
