"""Waivers: they hold while the difference reaches nothing else, and cover nothing but their own item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import artifacts
import evidence
from artifacts import At
from comparing import SOME, WORLD, place_of, places
from entries import Entry, scalar
from samebits.compare.compare import compare
from samebits.compare.results import Comparison
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Kind, Moment
from samebits.spec.questions import Waiver

WAIVER = Waiver(item="rng:python", reason="training draws nothing from it")
HELD = [
    artifacts.altered("rng:python", rank=1, step=2),
    artifacts.altered("rng:python", rank=0, step=4, moment=Moment.FINAL),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", world=WORLD)


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
