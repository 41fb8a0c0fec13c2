"""What a divergence looks like, in kind and in words, and which ranks are its origins."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import artifacts
import evidence
from artifacts import At
from comparing import SOME, WORLD, against, places
from entries import Entry, metric
from samebits.compare.compare import compare
from samebits.compare.results import Symptom
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Flag, Moment, Phase

# what it looks like


def every_rank(item: str, step: int) -> tuple[artifacts.Change, ...]:
    return tuple(artifacts.altered(item, rank=rank, step=step) for rank in range(WORLD))


@pytest.mark.parametrize(
    ("changes", "symptom"),
    [
        ([artifacts.altered("batch:tokens", rank=1, step=3)], Symptom.DATA),
        ([artifacts.altered("position:position", rank=1, step=3)], Symptom.DATA),
        ([artifacts.altered("rng:numpy", rank=1, step=3)], Symptom.RNG),
        ([artifacts.altered("parameter:w0", rank=1, step=3)], Symptom.HARDWARE_SUSPICION),
        ([artifacts.altered("gradient:w0", rank=1, step=3)], Symptom.HARDWARE_SUSPICION),
        ([artifacts.altered("parameter:w0", rank=1, step=4, moment=Moment.FINAL)], Symptom.HARDWARE_SUSPICION),
        (every_rank("gradient:w0", 3), Symptom.COLLECTIVE),
        (every_rank("master:w0", 3), Symptom.KERNEL),
        ([*every_rank("metric:lm loss", 3), artifacts.diverged(step=3)], Symptom.KERNEL),
        ([artifacts.altered("scheduler:num_steps", rank=1, step=3)], Symptom.CONTROL_FLOW),
        (every_rank("metric:lm loss", 3), Symptom.LOGGING_ONLY),
        ([artifacts.altered("metric:grad-norm", rank=1, step=3)], Symptom.LOGGING_ONLY),
        ([artifacts.dropped("metric:grad-norm", rank=1, step=3)], Symptom.LOGGING_ONLY),
    ],
)
def test_a_divergence_is_named_by_its_symptom(
    reference: Artifact, changes: list[artifacts.Change], symptom: Symptom
) -> None:
    found = against(reference, change=changes).divergence
    assert found is not None
    assert found.symptom is symptom


@SOME
@given(place=places())
def test_a_metric_beside_any_state_that_differs_is_not_logging_only(
    reference: Artifact, place: tuple[At, Entry, int]
) -> None:
    at, entry, occurrence = place
    spot = {"rank": at.rank, "step": at.step, "moment": at.moment, "occurrence": occurrence, "bit": 1}
    first = artifacts.altered("metric:lm loss", rank=0, step=1)
    found = against(reference, change=[first, artifacts.altered(entry.item, **spot)])
    assert found.verdict == "fail"
    assert found.divergence is not None
    assert (found.divergence.symptom is Symptom.LOGGING_ONLY) == (entry.site.kind == "metric")


def test_metrics_that_differ_without_recorded_state_are_not_logging_only(tmp_path: Path) -> None:
    reference = evidence.written(tmp_path / "reference", plan=evidence.limited(rung="metrics"))
    changes = [
        artifacts.altered("metric:lm loss", rank=0, step=2),
        artifacts.altered("rng:torch", rank=0, step=4, moment=Moment.FINAL),
    ]
    plan = evidence.limited(arm="twin-1", rung="metrics")
    found = compare(reference, evidence.written(tmp_path / "twin-1", plan=plan, change=changes)).divergence
    assert found is not None
    assert found.symptom is Symptom.KERNEL
    assert "no state was recorded there" in found.explanation


# which rank


def test_the_earliest_phase_at_the_first_step_is_the_origin_and_others_receive(reference: Artifact) -> None:
    changes = [artifacts.altered("gradient:w1", rank=1, step=3), *every_rank("metric:grad-norm", 3)]
    found = against(reference, change=[*changes, artifacts.diverged(step=3)]).divergence
    assert found is not None
    assert [(rank.rank, rank.role, rank.first.item) for rank in found.ranks] == [
        (1, "origin", "gradient:w1"),
        (0, "receiver", "metric:grad-norm"),
        (2, "receiver", "metric:grad-norm"),
    ]
    assert [(group.ranks, group.count, group.role) for group in found.groups] == [
        ("1", 1, "origin"),
        ("0, 2", 2, "receiver"),
    ]


def test_a_norm_of_the_parameters_is_a_consequence_of_the_state_that_it_sums_up(tmp_path: Path) -> None:
    def normed(moved: int) -> artifacts.Change:
        def change(at: At, entries: list[Entry]) -> list[Entry]:
            if (at.moment, at.step) != (Moment.STEP, 3):
                return entries
            return [metric("params-norm", 1.0 + moved, Phase.UPDATE), *entries]

        return change

    reference = evidence.written(tmp_path / "reference", change=normed(0))
    changes = [artifacts.altered("master:w1", rank=1, step=3), normed(1)]
    found = compare(reference, evidence.written(tmp_path / "twin-1", arm="twin-1", change=changes)).divergence
    assert found is not None
    assert [(rank.rank, rank.role, rank.first.item) for rank in found.ranks] == [
        (1, "origin", "master:w1"),
        (0, "receiver", "metric:params-norm"),
    ]
    alone = evidence.written(tmp_path / "twin-2", arm="twin-2", change=normed(1))
    found = compare(reference, alone).divergence
    assert found is not None
    assert (found.symptom, found.ranks[0].first.item) == (Symptom.LOGGING_ONLY, "metric:params-norm")


def test_a_rank_whose_inputs_differ_is_a_receiver(tmp_path: Path) -> None:
    def fed(sources: dict[int, int], flipped: bool) -> artifacts.Change:
        def change(at: At, entries: list[Entry]) -> list[Entry]:
            return [_fed(at, entry, sources.get(at.rank, 7), flipped) for entry in entries]

        return change

    def _fed(at: At, entry: Entry, source: int, flipped: bool) -> Entry:
        if entry.item != "gradient:w0" or (at.moment, at.step) != (Moment.STEP, 2):
            return entry
        output = (entry.output[0] ^ int(flipped), entry.output[1])
        return dataclasses.replace(entry, output=output, source=source, flags=Flag.INPUT)

    reference = evidence.written(tmp_path / "reference", change=fed({}, False))
    candidate = evidence.written(tmp_path / "twin-1", arm="twin-1", change=fed({0: 8}, True))
    found = compare(reference, candidate).divergence
    assert found is not None
    assert [(rank.rank, rank.role) for rank in found.ranks] == [(1, "origin"), (0, "receiver")]
    assert found.symptom is Symptom.KERNEL


def test_ranks_are_grouped_and_at_most_64_spelled_out(tmp_path: Path) -> None:
    small: dict[str, Any] = {"world": 70, "steps": 1, "every": 1}
    reference = evidence.written(tmp_path / "reference", **small)
    changes = [artifacts.altered("gradient:w0", rank=rank, step=1) for rank in range(70) if rank != 8]
    found = compare(reference, evidence.written(tmp_path / "twin-1", arm="twin-1", change=changes, **small)).divergence
    assert found is not None
    assert [(group.ranks, group.count) for group in found.groups] == [("0-7, 9-69", 69)]
    assert (len(found.ranks), found.agreeing) == (64, "8")


@pytest.mark.parametrize("name", ["w", "layers.0." * 40, "Ω\n\x1b" * 30])
def test_an_explanation_fits_in_250_characters_whatever_the_name(reference: Artifact, name: str) -> None:
    def rename(at: At, entries: list[Entry]) -> list[Entry]:
        site = dataclasses.replace(entries[-1].site, name=name)
        return [*entries, dataclasses.replace(entries[-1], site=site)] if at.step == 4 else entries

    found = against(reference, change=rename).divergence
    assert found is not None
    assert len(found.explanation) <= 250


def test_identical_records_before_are_counted_on_the_ranks_that_differ(reference: Artifact) -> None:
    found = against(reference, change=artifacts.altered("metric:lm loss", rank=1, step=2)).divergence
    assert found is not None
    assert (found.identical_before, found.ranks[0].compared) == (24, 24)
