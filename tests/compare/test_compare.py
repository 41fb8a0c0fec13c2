"""Comparing two artifacts: one changed thing anywhere is never a pass, and is named; what waivers cover."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from artifacts import At
from comparing import SOME, WORLD, against, place_of, places, twin
from entries import Entry, scalar
from samebits.compare import records
from samebits.compare.compare import NOT_SEEN, compare
from samebits.compare.results import Comparison, Symptom
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Flag, Form, Kind, Moment
from samebits.spec.questions import Fault, Waiver

# equal


@pytest.mark.parametrize("world", [1, 2, 9])
def test_equal_artifacts_pass(tmp_path: Path, world: int) -> None:
    found = compare(*evidence.pair(tmp_path, world=world))
    assert (found.verdict, found.divergence, found.problems, found.deviations) == ("pass", None, (), ())
    assert found.reference_fingerprint == found.candidate_fingerprint
    assert found.scope is not None
    assert (found.scope.ranks, found.scope.first_step, found.scope.last_step) == (world, 1, 4)
    assert (found.scope.blocks, found.scope.full_blocks, found.scope.share) == (world * 7, world * 7, 1.0)
    assert found.scope.placement == "one node"


def test_equal_artifacts_are_compared_by_their_tables_alone(
    reference: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(records, "opened", refuse)
    assert against(reference).verdict == "pass"


def test_another_order_of_the_same_records_is_no_difference(reference: Artifact) -> None:
    assert against(reference, change=artifacts.reordered).verdict == "pass"


def test_placement_is_stated_and_never_a_deviation(reference: Artifact) -> None:
    found = against(reference, pins=evidence.on_rank(2, placement={"host": "node-7"}))
    assert found.verdict == "pass"
    assert found.scope is not None
    assert found.scope.placement == "partly other nodes"


# one change


@SOME
@given(place=places(), bit=st.integers(0, 127))
def test_one_flipped_bit_is_named_by_rank_moment_step_and_record(
    reference: Artifact, place: tuple[At, Entry, int], bit: int
) -> None:
    at, entry, occurrence = place
    spot = {"rank": at.rank, "step": at.step, "moment": at.moment, "occurrence": occurrence, "bit": bit}
    candidate = twin(change=artifacts.altered(entry.item, **spot))
    found, swapped = compare(reference, candidate), compare(candidate, reference)
    assert (found.verdict, swapped.verdict) == ("fail", "fail")
    assert place_of(found) == (at.moment.name.lower(), at.step, at.rank, entry.item, occurrence, "origin")
    assert place_of(swapped) == place_of(found)
    assert found.divergence is not None
    assert (found.divergence.differing_blocks, found.divergence.ranks[0].differing) == (1, 1)
    assert found.divergence.agreeing == ranks_text(set(range(WORLD)) - {at.rank})
    assert f"step {at.step}" in found.divergence.explanation
    assert f"rank {at.rank} only" in found.divergence.explanation
    assert entry.site.name in found.divergence.explanation


@SOME
@given(place=places())
def test_a_record_that_one_arm_lacks_is_named_on_either_side(reference: Artifact, place: tuple[At, Entry, int]) -> None:
    at, entry, _ = place
    candidate = twin(change=artifacts.dropped(entry.item, rank=at.rank, step=at.step, moment=at.moment))
    missing, surplus = compare(reference, candidate), compare(candidate, reference)
    for found in (missing, surplus):
        assert found.verdict == "fail"
        assert place_of(found)[:4] == (at.moment.name.lower(), at.step, at.rank, entry.item)
        assert found.divergence is not None
        if entry.site.kind != "metric":
            assert found.divergence.symptom is Symptom.CONTROL_FLOW
    assert missing.divergence is not None
    assert surplus.divergence is not None
    assert missing.divergence.ranks[0].first.candidate is None
    assert surplus.divergence.ranks[0].first.reference is None
    assert "is missing in it" in missing.divergence.explanation
    assert "is only in it" in surplus.divergence.explanation


@SOME
@given(place=places())
def test_one_occurrence_more_is_named(reference: Artifact, place: tuple[At, Entry, int]) -> None:
    at, entry, _ = place
    found = against(reference, change=artifacts.repeated(entry.item, rank=at.rank, step=at.step, moment=at.moment))
    assert found.verdict == "fail"
    assert place_of(found)[:4] == (at.moment.name.lower(), at.step, at.rank, entry.item)


def test_another_dtype_with_the_same_digest_differs(reference: Artifact) -> None:
    def retype(at: At, entries: list[Entry]) -> list[Entry]:
        if (at.rank, at.moment, at.step) != (0, Moment.STEP, 2):
            return entries
        form = Form("float16", (8, 8))
        return [dataclasses.replace(e, form=form) if e.item == "parameter:w1" else e for e in entries]

    found = against(reference, change=retype)
    assert place_of(found) == ("step", 2, 0, "parameter:w1", 0, "origin")
    assert found.divergence is not None
    assert found.divergence.symptom is Symptom.CONTROL_FLOW


@pytest.mark.parametrize("other", [{"flags": Flag.NONE}, {"source": 9}, {"flags": Flag.VALUE | Flag.INPUT}])
def test_a_record_whose_output_alone_is_equal_differs(reference: Artifact, other: dict[str, Any]) -> None:
    def change(at: At, entries: list[Entry]) -> list[Entry]:
        hit = (at.rank, at.moment, at.step) == (2, Moment.STEP, 3)
        return [dataclasses.replace(e, **other) if hit and e.item == "metric:grad-norm" else e for e in entries]

    found = against(reference, change=change)
    assert found.verdict == "fail"
    assert place_of(found)[:4] == ("step", 3, 2, "metric:grad-norm")


def test_the_first_difference_is_first_in_the_rank_s_own_order_whatever_its_kind(reference: Artifact) -> None:
    later = artifacts.altered("parameter:w1", rank=1, step=3)
    for early in (artifacts.dropped, artifacts.repeated):
        candidate = twin(change=[early("gradient:w0", rank=1, step=3), later])
        for found in (compare(reference, candidate), compare(candidate, reference)):
            assert place_of(found)[:4] == ("step", 3, 1, "gradient:w0")


# not enough evidence


def test_a_missing_or_damaged_artifact_is_inconclusive_with_its_message(reference: Artifact, tmp_path: Path) -> None:
    damaged = twin()
    data = bytearray(damaged.fingerprint(1).read_bytes())
    data[len(data) // 2] ^= 1
    damaged.fingerprint(1).write_bytes(bytes(data))
    for candidate, says in ((damaged, "rank 1"), (Artifact(tmp_path / "gone"), "manifest.json")):
        for found in (compare(reference, candidate), compare(candidate, reference)):
            assert found.verdict == "inconclusive"
            assert says in found.problems[0]
            assert found.scope is None


def test_a_run_compared_with_itself_proves_nothing(reference: Artifact) -> None:
    found = compare(reference, reference)
    assert found.verdict == "inconclusive"
    assert "the very run" in found.problems[0]


def test_without_a_common_block_the_verdict_is_never_equal(tmp_path: Path) -> None:
    plan = artifacts.make_plan(capture=False)
    short = dataclasses.replace(plan, arm="twin-1", last_step=3)
    found = compare(
        evidence.written(tmp_path / "reference", plan=plan), evidence.written(tmp_path / "twin-1", plan=short)
    )
    assert found.verdict == "inconclusive"
    assert any("nothing was compared" in problem for problem in found.problems)


def test_steps_without_counterpart_are_inconclusive(tmp_path: Path) -> None:
    plan = artifacts.make_plan()
    late = dataclasses.replace(plan, first_step=3, restore="/checkpoint")
    reference, candidate = (
        evidence.written(tmp_path / "reference", plan=late),
        evidence.written(tmp_path / "twin-1", arm="twin-1"),
    )
    found = compare(reference, candidate)
    assert found.verdict == "inconclusive"
    assert "first step 1" in found.problems[0]


def test_records_that_were_all_skipped_compare_nothing(tmp_path: Path) -> None:
    def skip(at: At, entries: list[Entry]) -> list[Entry]:
        return [dataclasses.replace(entry, output=(0, 0), flags=Flag.SKIPPED) for entry in entries]

    reference = evidence.written(tmp_path / "reference", change=skip)
    found = compare(reference, evidence.written(tmp_path / "twin-1", arm="twin-1", change=skip))
    assert found.verdict == "inconclusive"


def test_skipped_records_lower_the_share(tmp_path: Path) -> None:
    skip = {"change": artifacts.skipped("parameter:w0")}
    reference = evidence.written(tmp_path / "reference", **skip)
    found = compare(reference, evidence.written(tmp_path / "twin-1", arm="twin-1", **skip))
    assert found.scope is not None
    assert (found.verdict, found.scope.skipped) == ("pass", 14)
    assert found.scope.share == (found.scope.records - 14) / found.scope.records


def test_a_record_that_only_one_arm_skipped_differs(reference: Artifact) -> None:
    assert against(reference, change=artifacts.skipped("parameter:w0")).verdict == "fail"


def test_identical_arms_that_are_not_finite_fail(tmp_path: Path) -> None:
    sick = {"change": artifacts.valued("lm loss", float("nan"), step=3), "notes": [artifacts.unhealthy(rank=1, step=3)]}
    reference = evidence.written(tmp_path / "reference", **sick)
    found = compare(reference, evidence.written(tmp_path / "twin-1", arm="twin-1", **sick))
    assert (found.verdict, found.divergence) == ("fail", None)
    assert "lm loss is nan from step 3 on (ranks 1)" in found.problems[0]


def test_one_arm_that_is_not_finite_is_enough_to_fail(reference: Artifact) -> None:
    candidate = twin(notes=[artifacts.unhealthy(rank=1, step=3, value="inf")])
    assert (compare(reference, candidate).verdict, compare(candidate, reference).verdict) == ("fail", "fail")


def test_a_planted_fault_fails_where_it_is_seen_and_proves_nothing_where_not(reference: Artifact) -> None:
    note = {"notes": [artifacts.planted("ulp", "parameter:w0", rank=1, step=3)]}
    seen = against(reference, change=artifacts.altered("parameter:w0", rank=1, step=3), **note)
    unseen = against(reference, **note)
    planned = against(reference, faults=(Fault(kind="ulp", rank=1, step=3),))
    assert seen.verdict == "fail"
    for found in (unseen, planned):
        assert (found.verdict, found.problems) == ("inconclusive", (NOT_SEEN,))


WAIVER = Waiver(item="rng:python", reason="training draws nothing from it")
HELD = [
    artifacts.altered("rng:python", rank=1, step=2),
    artifacts.altered("rng:python", rank=0, step=4, moment=Moment.FINAL),
]


def waived(reference: Artifact, *waivers: Waiver, **changes: Any) -> Comparison:
    twin = evidence.written(evidence.scratch() / "twin-1", **{"arm": "twin-1", "world": WORLD, **changes})
    return compare(reference, twin, waivers or (WAIVER,))


@pytest.mark.parametrize("item", ["rng:python", "rng:*", "rng:p?thon"])
def test_a_waived_difference_that_reaches_nothing_passes_and_is_stated(reference: Artifact, item: str) -> None:
    found = waived(reference, Waiver(item=item, reason="so"), change=HELD)
    assert (found.verdict, found.divergence) == ("pass", None)
    assert [(entry.item, entry.reason, entry.seen, entry.holds) for entry in found.waived] == [(item, "so", True, True)]
    assert found.reference_fingerprint != found.candidate_fingerprint


def test_a_waiver_that_was_not_needed_says_so(reference: Artifact) -> None:
    found = waived(reference)
    assert found.verdict == "pass"
    assert [(entry.seen, entry.holds) for entry in found.waived] == [(False, True)]


@SOME
@given(place=places())
def test_a_waiver_is_void_as_soon_as_anything_else_differs_anywhere(
    reference: Artifact, place: tuple[At, Entry, int]
) -> None:
    at, entry, occurrence = place
    spot = {"rank": at.rank, "step": at.step, "moment": at.moment, "occurrence": occurrence, "bit": 5}
    found = waived(reference, change=[*HELD, artifacts.altered(entry.item, **spot)])
    if entry.item == "rng:python":
        assert found.verdict == "pass"
        return
    assert found.verdict == "fail"
    assert found.divergence is not None
    assert found.divergence.differing_blocks >= 2
    assert all(item.holds is not item.seen for item in found.waived)


def test_a_void_waiver_shows_the_waived_item_where_it_was_first(reference: Artifact) -> None:
    found = waived(reference, change=[*HELD, artifacts.altered("parameter:w0", rank=2, step=4)])
    assert place_of(found)[:4] == ("step", 2, 1, "rng:python")
    assert [(entry.seen, entry.holds) for entry in found.waived] == [(True, False)]


@pytest.mark.parametrize("item", ["buffer:python", "rng:numpy", "rng:pyth", "parameter:*"])
def test_a_waiver_covers_no_other_item(reference: Artifact, item: str) -> None:
    found = waived(reference, Waiver(item=item, reason="so"), change=HELD)
    assert found.verdict == "fail"


def test_an_item_that_one_arm_lacks_is_not_waived(reference: Artifact) -> None:
    assert waived(reference, change=artifacts.dropped("rng:python", rank=1, step=2)).verdict == "fail"
    assert waived(reference, change=artifacts.repeated("rng:python", rank=1, step=2)).verdict == "fail"
    assert waived(reference, change=artifacts.skipped("rng:python")).verdict == "fail"


def test_a_brackets_name_is_taken_as_it_stands(tmp_path: Path) -> None:
    def bracketed(flip: int) -> artifacts.Change:
        entry = scalar(Kind.OPTIMIZER, "group[0].lr", 1)
        changed = scalar(Kind.OPTIMIZER, "group[0].lr", 1 + flip)
        return lambda at, entries: [*entries, changed if at.step == 3 else entry]

    reference = evidence.written(tmp_path / "reference", change=bracketed(0))
    twin = evidence.written(tmp_path / "twin-1", arm="twin-1", change=bracketed(1))
    assert compare(reference, twin, [Waiver(item="optimizer:group[0].lr", reason="so")]).verdict == "pass"
