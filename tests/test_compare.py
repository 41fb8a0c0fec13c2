"""Comparing two artifacts: one changed thing anywhere is never a pass, and is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import artifacts
import evidence
from artifacts import At, Entry
from samebits.artifact.expected import expected_blocks, expected_rung
from samebits.artifact.folder import Artifact
from samebits.artifact.site import Flag, Moment
from samebits.judge import records
from samebits.judge.compare import NOT_SEEN, compare
from samebits.judge.judgement import Comparison, Symptom
from samebits.sections import Fault

WORLD = 3
SOME = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", world=WORLD)


def twin(**changes: Any) -> Artifact:
    return evidence.written(evidence.scratch() / "twin-1", **{"arm": "twin-1", "world": WORLD, **changes})


def against(reference: Artifact, **changes: Any) -> Comparison:
    return compare(reference, twin(**changes))


@st.composite
def places(draw: st.DrawFn) -> tuple[At, Entry, int]:
    """Any record of any block of any rank, and its occurrence."""
    plan = artifacts.make_plan(world=WORLD)
    rank = draw(st.integers(0, WORLD - 1))
    moment, step = draw(st.sampled_from(list(expected_blocks(plan))))
    at = At(rank, moment, step, expected_rung(plan, rank, moment, step))
    entries = list(artifacts.block_entries(at))
    number = draw(st.integers(0, len(entries) - 1))
    return at, entries[number], sum(entry.site == entries[number].site for entry in entries[:number])


def place_of(comparison: Comparison) -> tuple[object, ...]:
    found = comparison.divergence
    assert found is not None
    first = found.ranks[0]
    return found.moment, found.step, first.rank, first.first.item, first.first.occurrence, first.role


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
    assert found.scope.placement == "other nodes"


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
    assert found.divergence.agreeing == artifacts_ranks(set(range(WORLD)) - {at.rank})
    assert f"step {at.step}" in found.divergence.explanation
    assert f"rank {at.rank} only" in found.divergence.explanation
    assert entry.site.name in found.divergence.explanation


def artifacts_ranks(ranks: set[int]) -> str:
    from samebits.artifact.ranks import ranks_text

    return ranks_text(ranks)


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
        form = artifacts.Form("float16", (8, 8))
        return [dataclasses.replace(e, form=form) if e.item == "parameter:w1" else e for e in entries]

    found = against(reference, change=retype)
    assert place_of(found) == ("step", 2, 0, "parameter:w1", 0, "origin")
    assert found.divergence is not None
    assert found.divergence.symptom is Symptom.CONTROL_FLOW


# not comparable


@pytest.mark.parametrize("group", ["software", "libraries", "hardware", "runtime", "environment", "code", "data"])
def test_a_deviating_pin_is_invalid_though_all_bits_are_equal(reference: Artifact, group: str) -> None:
    found = against(reference, pins=evidence.on_rank(1, **{group: {"thing": "other"}}))
    assert found.verdict == "invalid"
    assert [(row.pin, row.candidate, row.ranks) for row in found.deviations] == [(f"{group}.thing", "other", (1,))]


def test_a_deviating_pin_is_invalid_and_the_divergence_still_shown(reference: Artifact) -> None:
    changes = {"change": artifacts.altered("parameter:w0", rank=1, step=3)}
    found = against(reference, pins=evidence.on_rank(None, software={"torch": "2.14.0"}), **changes)
    assert found.verdict == "invalid"
    assert [(row.pin, row.reference, row.candidate) for row in found.deviations] == [
        ("software.torch", "2.13.0", "2.14.0")
    ]
    assert found.deviations[0].ranks == (0, 1, 2)
    assert place_of(found)[:4] == ("step", 3, 1, "parameter:w0")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 7}, "recipe.seed"),
        ({"precision": "fp32"}, "recipe.precision"),
        ({"optimizer": {"lr": 2e-3}}, "recipe.optimizer.lr"),
        ({"data": {"stream_seed": 8}}, "recipe.data.stream_seed"),
        ({"plan": evidence.limited(arm="twin-1", world=WORLD, every=2)}, "recipe.capture.every"),
        ({"determinism": {"environment": {"PYTHONHASHSEED": "1"}}}, "recipe.determinism.environment.PYTHONHASHSEED"),
    ],
)
def test_another_recipe_is_invalid_and_the_entry_named(reference: Artifact, change: dict[str, Any], named: str) -> None:
    found = against(reference, **change)
    assert found.verdict == "invalid"
    assert named in [row.pin for row in found.deviations]


def test_entries_without_effect_are_no_deviation(reference: Artifact) -> None:
    found = against(reference, name="other", gates=["control"], twins=3)
    assert found.verdict == "pass"


def test_another_rung_is_invalid_and_the_steps_are_named(reference: Artifact) -> None:
    found = against(reference, plan=evidence.limited(arm="twin-1", world=WORLD, ranks=(0, 1)))
    assert found.verdict == "invalid"
    capture = next(row for row in found.deviations if row.pin == "capture")
    assert (capture.ranks, "state" in capture.reference, "metrics" in capture.candidate) == ((2,), True, True)


def test_a_declared_pin_that_was_not_observed_is_invalid_in_either_arm(tmp_path: Path, reference: Artifact) -> None:
    declaring = evidence.written(tmp_path / "declaring", world=WORLD, launch="another", pins=evidence.pins, **_declared)
    for found in (compare(declaring, twin()), against(reference, **_declared)):
        assert found.verdict == "invalid"
        assert [(row.pin, row.reference, row.candidate) for row in found.deviations] == [
            ("software.torch", "9.9", "2.13.0")
        ]


_declared = {"plan": dataclasses.replace(artifacts.make_plan(world=WORLD, arm="twin-1", pins={"torch": "9.9"}))}


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("runtime", "deterministic_algorithms", "False"),
        ("runtime", "fill_uninitialized_memory", "True"),
        ("runtime", "threads", "2"),
        ("environment", "CUBLAS_WORKSPACE_CONFIG", ""),
        ("environment", "NCCL_ALGO", "Tree"),
    ],
)
def test_a_setting_that_is_not_in_force_in_both_arms_is_invalid(
    tmp_path: Path, group: str, name: str, value: str
) -> None:
    pins = evidence.on_rank(1, **{group: {name: value}})
    found = compare(
        evidence.written(tmp_path / "reference", pins=pins),
        evidence.written(tmp_path / "twin-1", arm="twin-1", pins=pins),
    )
    assert found.verdict == "invalid"
    assert [(row.pin, row.candidate, row.ranks) for row in found.deviations] == [
        (f"{group}.{name}", f"{value} (in force)", (1,))
    ]


def test_another_digest_algorithm_or_world_is_invalid(reference: Artifact) -> None:
    digest, world = against(reference, digest="other-1"), against(reference, world=2)
    assert (digest.verdict, [row.pin for row in digest.deviations]) == ("invalid", ["digest"])
    assert (world.verdict, [row.pin for row in world.deviations]) == ("invalid", ["world"])


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


def test_a_planted_fault_fails_where_it_is_seen_and_proves_nothing_where_not(reference: Artifact) -> None:
    note = {"notes": [artifacts.planted("ulp", "parameter:w0", rank=1, step=3)]}
    seen = against(reference, change=artifacts.altered("parameter:w0", rank=1, step=3), **note)
    unseen = against(reference, **note)
    planned = against(reference, faults=(Fault(kind="ulp", rank=1, step=3),))
    assert seen.verdict == "fail"
    for found in (unseen, planned):
        assert (found.verdict, found.problems) == ("inconclusive", (NOT_SEEN,))


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
