"""Which pins may deviate in a stress run, and that nowhere else any may."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import artifacts
import evidence
from samebits.compare import compatibility
from samebits.compare.compare import compare
from samebits.compare.results import Comparison
from samebits.fingerprint.paths import Artifact
from samebits.gates.judge import judge
from samebits.plan import arms
from samebits.spec import stressors
from samebits.spec.plan import Plan, PlanError
from samebits.stress import results as stress

PINS = {"hash-seed": "PYTHONHASHSEED", "cold-caches": "TRITON_CACHE_DIR"}


def varied(folder: Path, *names: str, **groups: dict[str, str]) -> tuple[Artifact, Artifact]:
    """A reference, and a run of these variations that observed other pins on rank 1."""
    plan = dataclasses.replace(artifacts.make_plan(arm="varied"), stress=names)
    pins = evidence.on_rank(1, **groups)
    return evidence.written(folder / "reference"), evidence.written(folder / "varied", plan=plan, pins=pins)


def stressed(pair: tuple[Artifact, Artifact]) -> Comparison:
    reference, candidate = pair
    return stress.compared(artifacts.make_plan().recipe, reference.folder, candidate.folder)


@pytest.mark.parametrize(("name", "variable"), PINS.items())
def test_a_stress_run_may_deviate_in_what_it_varies_and_only_where_it_is_judged_as_one(
    name: str, variable: str, tmp_path: Path
) -> None:
    pair = varied(tmp_path, name, environment={variable: "another"})
    assert stressed(pair).verdict == "pass"
    ordinary = compare(*pair)
    assert ordinary.verdict == "invalid"
    assert [row.pin for row in ordinary.deviations] == [f"environment.{variable}"]


@pytest.mark.parametrize("names", [(), ("contention",), ("addresses", "host-name", "delayed-rank", "node-order")])
@pytest.mark.parametrize("variable", PINS.values())
def test_a_pin_that_its_variations_do_not_change_makes_it_invalid(
    names: tuple[str, ...], variable: str, tmp_path: Path
) -> None:
    assert stressed(varied(tmp_path, *names, environment={variable: "another"})).verdict == "invalid"


@pytest.mark.parametrize(
    "groups",
    [
        {"environment": {"NCCL_ALGO": "Tree"}},
        {"environment": {"OMP_NUM_THREADS": "2"}},
        {"runtime": {"threads": "2"}},
        {"software": {"torch": "2.12.0"}},
        {"hardware": {"cpu": "another"}},
        {"code": {"samebits": "another"}},
        {"data": {"stream": "another"}},
        {"libraries": {"libm.so": "another"}},
    ],
)
def test_all_variations_together_excuse_no_other_pin(groups: dict[str, Any], tmp_path: Path) -> None:
    found = stressed(varied(tmp_path, *stressors.NAMES, **groups))
    assert found.verdict == "invalid"


def test_the_host_is_a_place_not_a_pin(tmp_path: Path) -> None:
    assert stressed(varied(tmp_path, "host-name", placement={"host": "stress-node-0"})).verdict == "pass"


def test_a_stress_run_in_the_place_of_a_twin_makes_the_gate_invalid(tmp_path: Path) -> None:
    """Whatever its pins are."""
    recipe = evidence.recipe(gates=["repeatability"])
    results = evidence.Results(recipe, tmp_path)
    twin = dataclasses.replace(arms.plan(recipe, "twin-1", tmp_path), stress=("contention",))
    results.write(twin_1={"plan": twin})
    judgement = judge(recipe, tmp_path)
    assert judgement.verdict == "invalid"
    (gate,) = judgement.gates
    assert [row.pin for row in gate.comparisons[0].deviations] == ["arm.stress"]


def test_a_plans_variations_make_its_arm_run_again() -> None:
    plan = artifacts.make_plan()
    other = dataclasses.replace(plan, stress=("contention",))
    assert arms.key(plan) != arms.key(other)
    assert arms.explain_change(plan, other) == ['stress[0]: absent -> "contention"']
    assert [row.pin for row in compatibility.of_plan(plan, other, (0,))] == ["arm.stress"]


def test_plans_that_know_no_stress_are_read_and_unknown_variations_are_not() -> None:
    plan = artifacts.make_plan()
    old = plan.to_json().replace(' "stress": [],\n', "")
    assert "stress" not in old
    assert Plan.from_json(old) == plan
    with pytest.raises(PlanError, match="hashseed"):
        Plan.from_json(plan.to_json().replace('"stress": []', '"stress": ["hashseed"]'))


def test_every_variation_says_what_it_does_and_is_one() -> None:
    assert len(set(stressors.NAMES)) == len(stressors.NAMES) == 9
    assert all(variation.does for variation in stressors.VARIATIONS)
    assert stressors.pins_varied(stressors.NAMES) == {f"environment.{name}" for name in PINS.values()}
