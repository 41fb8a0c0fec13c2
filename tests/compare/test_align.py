"""A restored arm: its state right after the restore against what was saved, then every step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from comparing import SOME
from entries import Entry
from samebits.compare.compare import compare
from samebits.compare.results import Comparison, Symptom
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Moment

RESTORED = artifacts.At(0, Moment.RESTORED, 2, "state")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference")


def resumed(reference: Artifact, **changes: Any) -> Comparison:
    return compare(
        reference, evidence.written(evidence.scratch() / "resumed", **{"arm": "resumed", "restored": 2, **changes})
    )


def test_an_equal_restored_state_and_equal_steps_pass(reference: Artifact) -> None:
    found = resumed(reference)
    assert (found.verdict, found.problems, found.deviations) == ("pass", (), ())
    assert found.scope is not None
    assert (found.scope.restart, found.scope.first_step, found.scope.last_step, found.scope.blocks) == (2, 3, 4, 10)
    assert found.reference_fingerprint != found.candidate_fingerprint


@SOME
@given(entry=st.sampled_from(list(artifacts.block_entries(RESTORED))), rank=st.integers(0, 1), drop=st.booleans())
def test_any_item_that_was_not_restored_as_saved_is_named(
    reference: Artifact, entry: Entry, rank: int, drop: bool
) -> None:
    spoil = artifacts.dropped if drop else artifacts.altered
    found = resumed(reference, change=spoil(entry.item, rank=rank, step=2, moment=Moment.RESTORED))
    assert found.verdict == "fail"
    assert found.divergence is not None
    first = found.divergence.ranks[0]
    assert (found.divergence.moment, found.divergence.step, first.rank, first.first.item) == (
        "restored",
        2,
        rank,
        entry.item,
    )
    assert "right after the restore at step 2" in found.divergence.explanation
    assert (found.divergence.differing_blocks, found.divergence.agreeing) == (1, str(1 - rank))


@pytest.mark.parametrize(
    ("item", "symptom"),
    [
        ("rng:torch", Symptom.RNG),
        ("position:position", Symptom.DATA),
        ("optimizer:w1.exp_avg", Symptom.RESTORED_STATE),
        ("parameter:w0", Symptom.RESTORED_STATE),
        ("scheduler:num_steps", Symptom.RESTORED_STATE),
    ],
)
def test_what_was_not_restored_is_named_by_its_symptom(reference: Artifact, item: str, symptom: Symptom) -> None:
    changes = [artifacts.altered(item, rank=1, step=2, moment=Moment.RESTORED), artifacts.diverged(step=2)]
    found = resumed(reference, change=changes).divergence
    assert found is not None
    assert found.symptom is symptom
    assert found.ranks[0].first.item == item


def test_the_restored_state_is_looked_at_before_the_steps_that_follow(reference: Artifact) -> None:
    changes = [
        artifacts.altered("rng:torch", rank=1, step=2, moment=Moment.RESTORED),
        artifacts.altered("metric:lm loss", rank=0, step=3),
    ]
    found = resumed(reference, change=changes).divergence
    assert found is not None
    assert [(rank.rank, rank.moment, rank.role) for rank in found.ranks] == [
        (1, "restored", "origin"),
        (0, "step", "receiver"),
    ]


def test_a_counter_that_goes_wrong_only_after_an_equal_restore_is_told_so(reference: Artifact) -> None:
    changes = [artifacts.altered("optimizer:w0.step", rank=rank, step=3) for rank in range(2)]
    found = resumed(reference, change=changes).divergence
    assert found is not None
    assert (found.moment, found.step, found.symptom) == ("step", 3, Symptom.RESTORED_STATE)
    assert "it was equal right after the restore" in found.explanation


def test_other_data_after_an_equal_restore_is_data(reference: Artifact) -> None:
    found = resumed(reference, change=artifacts.altered("batch:tokens", rank=1, step=3)).divergence
    assert found is not None
    assert found.symptom is Symptom.DATA


def test_two_arms_restored_from_one_checkpoint_are_compared_from_their_restore_on(reference: Artifact) -> None:
    first = evidence.written(evidence.scratch() / "resumed", arm="resumed", restored=2)
    assert resumed(first, arm="resumed-2").verdict == "pass"
    spoilt = artifacts.altered("rng:numpy", rank=0, step=2, moment=Moment.RESTORED)
    found = resumed(first, arm="resumed-2", change=spoilt)
    assert found.divergence is not None
    assert (found.verdict, found.divergence.moment) == ("fail", "restored")


def test_a_restore_from_a_step_that_the_reference_did_not_save_is_inconclusive(reference: Artifact) -> None:
    plan = artifacts.make_plan(arm="resumed", restored=2)
    found = resumed(reference, plan=dataclasses.replace(plan, first_step=2))
    assert found.verdict == "inconclusive"
    assert "restored state of step 1" in found.problems[0]
