"""The verdict over a recipe's gates: what may pass, and everything that may not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import artifacts
import evidence
from comparing import SOME, places
from entries import Entry
from samebits.compare.results import to_json
from samebits.fingerprint.records import Moment
from samebits.gates.judge import judge
from samebits.gates.judgement import Judgement
from samebits.plan import arms
from samebits.spec.questions import Fault
from samebits.spec.verdicts import Verdict

ALTERED = {"change": artifacts.altered("parameter:w0", rank=1, step=4)}
RESTORED = {"change": artifacts.altered("rng:numpy", rank=1, step=2, moment=Moment.RESTORED)}
FINAL = {"change": artifacts.altered("parameter:w0", rank=1, step=4, moment=Moment.FINAL)}
OTHER_TORCH = {"pins": evidence.on_rank(1, software={"torch": "2.14.0"})}
SICK = {"change": artifacts.valued("lm loss", float("nan"), step=3), "notes": [artifacts.unhealthy(rank=1, step=3)]}


def judged(recipe: dict[str, Any] | None = None, **changes: Any) -> Judgement:
    results = evidence.Results(evidence.recipe(**recipe or {}), evidence.scratch())
    return judge(results.recipe, results.write(**changes))


def verdicts(judgement: Judgement) -> dict[str, Verdict]:
    return {gate.gate: gate.verdict for gate in judgement.gates}


def test_a_recipe_whose_arms_agree_and_whose_controls_are_found_passes_every_gate() -> None:
    found = judged()
    assert found.verdict == "pass"
    assert set(verdicts(found).values()) == {"pass"}
    assert list(verdicts(found)) == ["repeatability", "resume", "control", "observer"]
    assert "2 ranks, steps 1 to 4, rung state" in found.scope
    assert "checkpoint of step 2" in found.scope
    assert "says nothing about other nodes" in found.scope
    assert "Not tested: more than 2 ranks" in found.scope
    assert "every planted fault was found" in found.headline
    assert {arm.arm for arm in found.arms} == set(arms.arms(evidence.recipe()))
    assert all(arm.problem is None and arm.records for arm in found.arms)


@pytest.mark.parametrize(
    ("arm", "change", "gate", "verdict"),
    [
        ("twin_1", ALTERED, "repeatability", "fail"),
        ("twin_1", OTHER_TORCH, "repeatability", "invalid"),
        ("twin_1", {"launch": "launch-of-reference"}, "repeatability", "inconclusive"),
        (
            "twin_1",
            {"notes": [artifacts.planted("ulp", "parameter:w0", rank=1, step=3)]},
            "repeatability",
            "inconclusive",
        ),
        ("twin_1", None, "repeatability", "inconclusive"),
        ("resumed", ALTERED, "resume", "fail"),
        ("resumed", RESTORED, "resume", "fail"),
        ("resumed", OTHER_TORCH, "resume", "invalid"),
        ("resumed", None, "resume", "inconclusive"),
        ("bare", FINAL, "observer", "fail"),
        ("bare", OTHER_TORCH, "observer", "invalid"),
        ("bare", None, "observer", "inconclusive"),
    ],
)
def test_one_spoilt_arm_decides_its_gate_and_the_verdict(
    arm: str, change: dict[str, Any] | None, gate: str, verdict: Verdict
) -> None:
    found = judged(**{arm: change})
    assert verdicts(found) == {
        **dict.fromkeys(("repeatability", "resume", "control", "observer"), "pass"),
        gate: verdict,
    }
    assert found.verdict == verdict
    assert f"gate {gate}" in found.headline


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"change": ()}, "fail"),
        ({"notes": ()}, "inconclusive"),
        ({"notes": [artifacts.planted("ulp", "parameter:w0", rank=0, step=3)]}, "fail"),
        (OTHER_TORCH, "invalid"),
        (None, "inconclusive"),
    ],
)
def test_a_control_that_was_not_found_takes_every_pass_away(change: dict[str, Any] | None, verdict: Verdict) -> None:
    found = judged(control_ulp=change)
    assert verdicts(found)["control"] == verdict
    assert {gate: seen for gate, seen in verdicts(found).items() if gate != "control"} == dict.fromkeys(
        ("repeatability", "resume", "observer"), "inconclusive"
    )
    assert found.verdict == verdict
    assert all("control" in gate.explanation for gate in found.gates)


def test_a_control_that_was_not_found_leaves_a_failure_a_failure() -> None:
    found = judged(control_ulp=None, twin_1=ALTERED)
    assert (verdicts(found)["repeatability"], found.verdict) == ("fail", "fail")


def test_without_the_gate_control_nothing_passes() -> None:
    found = judged({"gates": ["repeatability", "resume"]})
    assert found.verdict == "inconclusive"
    assert all("no control was run" in gate.explanation for gate in found.gates)
    assert "gate control" in found.scope


def test_without_a_gate_there_is_no_verdict() -> None:
    found = judged({"gates": []})
    assert (found.verdict, found.headline) == ("inconclusive", "smoke is inconclusive: it has no gate.")


@SOME
@given(place=places())
def test_one_change_anywhere_in_the_reference_is_never_a_pass(place: tuple[artifacts.At, Entry, int]) -> None:
    at, entry, occurrence = place
    spot = {"rank": min(at.rank, 1), "step": at.step, "moment": at.moment, "occurrence": occurrence}
    found = judged({"gates": ["repeatability", "control"]}, reference={"change": artifacts.altered(entry.item, **spot)})
    assert found.verdict == "fail"
    assert verdicts(found)["repeatability"] == "fail"


def test_identical_and_not_finite_fails_every_gate_that_has_the_arm() -> None:
    sick = dict.fromkeys(("reference", "twin_1"), SICK)
    found = judged(**sick, resumed={"change": SICK["change"]})
    assert {"repeatability", "resume", "control", "observer"} == {
        gate for gate, seen in verdicts(found).items() if seen == "fail"
    }
    assert "lm loss is nan from step 3" in found.gates[0].explanation
    curve = next(curve for curve in found.curves if curve.name == "lm loss")
    assert curve.ulps[2] is None
    assert '"NaN"' in to_json(found)


def test_a_sick_reference_fails_the_controls_though_they_are_found() -> None:
    controls = {
        "control_ulp": evidence.at("ulp", "parameter:w0", rank=1, step=3),
        "control_resume": evidence.at("rng-skip", "rng:torch", rank=1, step=2, moment="restored"),
    }
    sick = {"reference": SICK, "twin_1": SICK}
    for name, control in controls.items():
        sick[name] = {**control, "change": (SICK["change"], *control["change"])}
    found = judged({"gates": ["repeatability", "control"]}, **sick)
    control = next(gate for gate in found.gates if gate.gate == "control")
    assert (control.verdict, control.explanation.startswith("reference: lm loss is nan")) == ("fail", True)


def test_a_waived_difference_casts_no_vote() -> None:
    waived = {"change": [artifacts.altered("rng:numpy", rank=1, step=step) for step in (3, 4)]}
    found = judged(WAIVED, resumed=waived)
    assert (found.verdict, found.vote) == ("pass", None)


def test_skipped_records_are_told_in_the_scope() -> None:
    skip = {"change": artifacts.skipped("parameter:w0")}
    found = judged({"gates": ["repeatability", "control"]}, reference=skip, twin_1=skip)
    assert "14 of 282 records were skipped for their size" in found.scope


def test_a_recipe_without_any_arm_is_inconclusive_and_each_arm_says_why() -> None:
    recipe = evidence.recipe()
    found = judge(recipe, evidence.scratch())
    assert found.verdict == "inconclusive"
    assert all(arm.problem and "manifest.json" in arm.problem for arm in found.arms)
    assert (found.curves, found.pins, found.scope) == ((), (), "Nothing was compared, so nothing is covered.")


def test_arms_of_another_recipe_than_the_one_in_force_are_invalid() -> None:
    results = evidence.Results(evidence.recipe(), evidence.scratch())
    found = judge(evidence.recipe(seed=99), results.write())
    assert found.verdict == "invalid"
    deviations = found.gates[0].comparisons[0].deviations
    assert [(row.pin, row.reference, row.candidate) for row in deviations] == [("recipe.seed", "99", "1234")]


def test_a_pin_declared_after_the_run_is_held_against_it() -> None:
    results = evidence.Results(evidence.recipe(), evidence.scratch())
    found = judge(evidence.recipe(pins={"torch": "9.9"}), results.write())
    assert found.verdict == "invalid"


def test_a_copied_arm_is_not_a_second_run() -> None:
    results = evidence.Results(evidence.recipe(), evidence.scratch())
    plan = arms.plan(results.recipe, "reference", results.folder)
    found = judge(results.recipe, results.write(twin_1={"plan": plan, "launch": "launch-of-reference"}))
    assert verdicts(found)["repeatability"] == "invalid"
    assert "arm.name" in [row.pin for row in found.gates[0].comparisons[0].deviations]


ULP = (Fault(kind="ulp", rank=1, step=3),)


def test_a_reference_with_a_planted_fault_is_no_evidence_for_any_gate() -> None:
    found = judged(reference={"plan": artifacts.make_plan(faults=ULP)})
    assert set(verdicts(found).values()) == {"inconclusive"}


def test_a_fault_planted_in_a_twin_fails_where_it_is_seen_and_proves_nothing_where_not() -> None:
    planted = {"plan": artifacts.make_plan(arm="twin-1", faults=ULP)}
    assert verdicts(judged(twin_1={**planted, **ALTERED}))["repeatability"] == "fail"
    assert verdicts(judged(twin_1=planted))["repeatability"] == "inconclusive"


def test_a_control_with_another_fault_than_the_recipe_names_is_invalid() -> None:
    results = evidence.Results(evidence.recipe(), evidence.scratch())
    plan = arms.plan(results.recipe, "control-ulp", results.folder)
    other = dataclasses.replace(plan, faults=(Fault(kind="gradient", rank=1, step=3),))
    found = judge(results.recipe, results.write(control_ulp={"plan": other}))
    assert verdicts(found)["control"] == "invalid"


def test_a_bare_arm_that_was_captured_as_well_is_refused_as_evidence() -> None:
    plan = artifacts.make_plan(arm="bare")
    found = judged(bare={"plan": plan})
    gate = found.gates[-1]
    assert (gate.gate, gate.verdict) == ("observer", "inconclusive")
    assert "must be its final state alone" in gate.explanation


WAIVED = {"waivers": [{"item": "rng:numpy", "reason": "training draws nothing from it"}]}


def test_a_waived_difference_passes_and_is_printed_in_headline_and_scope() -> None:
    found = judged(WAIVED, resumed=RESTORED)
    assert verdicts(found)["resume"] == "pass"
    assert found.verdict == "pass"
    assert "apart from what is waived: rng:numpy" in found.headline
    assert "rng:numpy differs, waived (training draws nothing from it)" in found.scope
    assert found.vote is None


def test_a_void_waiver_fails_and_is_printed() -> None:
    found = judged(
        WAIVED, resumed={"change": [RESTORED["change"], artifacts.altered("metric:lm loss", rank=0, step=4)]}
    )
    assert found.verdict == "fail"
    assert "its waiver is void" in found.scope


def test_a_waived_item_hides_no_planted_fault() -> None:
    recipe = {"waivers": [{"item": "rng:torch", "reason": "so"}, {"item": "rng:numpy", "reason": "so"}]}
    control = evidence.at("rng-skip", "rng:torch", rank=1, step=2, moment="restored")
    control["change"] = (*control["change"], RESTORED["change"])
    assert judged(recipe, resumed=RESTORED, control_resume=control).verdict == "pass"
    assert judged(control_resume=control).verdict == "fail"


def test_several_twins_are_all_judged_and_the_odd_one_is_voted_out() -> None:
    found = judged({"twins": 2}, twin_2=ALTERED)
    assert [comparison.verdict for comparison in found.gates[0].comparisons] == ["pass", "fail"]
    assert found.vote is not None
    assert (found.vote.odd, found.vote.ranks) == ("twin-2", "1")
    assert found.curves[0].candidate_arm == "twin-2"


def test_pins_are_listed_with_the_ranks_that_observed_them() -> None:
    found = judged(reference=OTHER_TORCH)
    rows = {row.pin: row for row in found.pins}
    assert rows["software.torch"].values == {"2.13.0": "0", "2.14.0": "1"}
    assert rows["placement.node"].values == {"node-0": "0-1"}


def test_a_judgement_is_strict_json_with_every_field() -> None:
    body = json.loads(to_json(judged()), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert body["verdict"] == "pass"
    assert body["gates"][2]["comparisons"][0]["divergence"]["symptom"] == "hardware suspicion"
    assert json.loads(body["recipe_text"])["seed"] == 1234


def test_judging_writes_nothing(tmp_path: Path) -> None:
    results = evidence.Results(evidence.recipe(), tmp_path)
    results.write()
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    judge(results.recipe, tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
