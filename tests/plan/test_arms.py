from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builders
from samebits.plan import arms, overview
from samebits.recipe.load import RecipeError
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.spec.sections import Recipe

_RESULTS = Path("/results")


def _arms(**changes: Any) -> dict[str, Plan]:
    return {plan.arm: plan for plan in arms.plans(builders.recipe(**changes), _RESULTS)}


def _key(recipe: Recipe, arm: str = "reference") -> str:
    return arms.key(arms.plan(recipe, arm, _RESULTS))


def _fault(**fault: Any) -> Plan:
    return _arms(controls=[{"name": "x", "fault": fault}])["control-x"]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ["reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare"]),
        ({"gates": ["repeatability"], "twins": 3}, ["reference", "twin-1", "twin-2", "twin-3"]),
        ({"gates": ["resume"]}, ["reference", "resumed"]),
        ({"gates": ["observer"]}, ["reference", "bare"]),
        (
            {"gates": ["control"], "controls": [{"name": "g", "fault": {"kind": "gradient"}}]},
            ["reference", "control-g"],
        ),
    ],
)
def test_each_gate_adds_its_arms(changes: dict[str, Any], wanted: list[str]) -> None:
    assert list(_arms(**changes)) == wanted


def test_only_the_reference_keeps_its_checkpoints_and_only_bare_is_not_captured() -> None:
    found = _arms()

    assert [arm for arm, plan in found.items() if plan.keep_checkpoints] == ["reference"]
    assert [arm for arm, plan in found.items() if not plan.capture] == ["bare"]


def test_resumed_starts_after_the_references_checkpoint() -> None:
    plan = _arms()["resumed"]

    assert plan.restore == "/results/smoke/arms/reference/checkpoints/step-000006"
    assert (plan.first_step, plan.last_step) == (7, 12)
    assert arms.needs(plan) == ("reference",)


@pytest.mark.parametrize("kind", ["moment-drop", "rng-skip", "position-skip", "upstream"])
def test_a_fault_at_the_restore_starts_as_resumed_does(kind: str) -> None:
    plan, resumed = _fault(kind=kind), _arms()["resumed"]

    assert (plan.restore, plan.first_step) == (resumed.restore, resumed.first_step)
    assert plan.faults[0].step is None
    assert arms.needs(plan) == ("reference",)


@pytest.mark.parametrize("kind", ["ulp", "batch-swap", "gradient", "loss-logging", "nan-loss"])
def test_a_fault_in_a_step_starts_from_scratch_and_strikes_after_the_resume_step(kind: str) -> None:
    plan = _fault(kind=kind)

    assert (plan.restore, plan.first_step) == (None, 1)
    assert plan.faults[0].step == 7
    assert arms.needs(plan) == ()


def test_a_fault_strikes_the_last_rank_unless_it_strikes_all() -> None:
    assert _fault(kind="ulp").faults[0].rank == 1
    assert _fault(kind="rng-skip").faults[0].rank == 1
    assert _fault(kind="nan-loss").faults[0].rank is None
    assert _fault(kind="upstream").faults[0].rank is None


def test_what_a_fault_says_stands() -> None:
    assert _fault(kind="ulp", rank=0, step=3, target="w").faults == (Fault(kind="ulp", rank=0, step=3, target="w"),)


def test_arms_without_a_control_have_no_faults() -> None:
    assert [arm for arm, plan in _arms().items() if plan.faults] == ["control-ulp", "control-resume"]


def test_checkpoints_are_named_absolutely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    plan = arms.plan(builders.recipe(), "resumed", Path("results"))

    assert plan.restore == str(tmp_path / "results/smoke/arms/reference/checkpoints/step-000006")


def test_an_unknown_arm_gets_those_that_there_are() -> None:
    with pytest.raises(RecipeError) as caught:
        arms.plan(builders.recipe(), "twin-2", _RESULTS)

    assert str(caught.value) == (
        "smoke: arm is 'twin-2', must be an arm of this recipe; "
        "use reference, twin-1, resumed, control-ulp, control-resume, bare"
    )


_FREE: list[dict[str, Any]] = [
    {"gates": ["observer", "resume", "repeatability", "control"]},
    {"twins": 2},
    {"controls": [{"name": "y", "fault": {"kind": "ulp"}}]},
    {"waivers": [{"item": "rng:python", "reason": "x"}]},
    {"launch": {"time_minutes": 99}},
]
_BOUND: list[tuple[dict[str, Any], list[str]]] = [
    ({"optimizer": {"lr": 2e-3}}, ["optimizer.lr: 0.001 -> 0.002"]),
    ({"seed": 1}, ["seed: 1234 -> 1"]),
    ({"capture": {"every": 2}}, ["capture.every: 1 -> 2"]),
    ({"capture": {"ranks": [1]}}, ["capture.ranks[0]: absent -> 1"]),
    ({"launch": {"threads": 2}}, ["launch.threads: 1 -> 2"]),
    ({"steps": 13}, ["last_step: 12 -> 13", "steps: 12 -> 13"]),
    ({"pins": {"torch": "2.13.0"}}, ['pins.torch: absent -> "2.13.0"']),
    ({"model": {"tied_embeddings": True}}, ["model.tied_embeddings: false -> true"]),
]


@pytest.mark.parametrize("changes", _FREE)
def test_a_finished_arm_stands_when_only_the_questions_change(changes: dict[str, Any]) -> None:
    old, new = builders.recipe(), builders.recipe(**changes)

    assert _key(old) == _key(new)
    assert arms.explain_change(_arms()["reference"], _arms(**changes)["reference"]) == []


@pytest.mark.parametrize(("changes", "reasons"), _BOUND)
def test_an_arm_runs_again_when_what_it_computes_or_records_changes(
    changes: dict[str, Any], reasons: list[str]
) -> None:
    old, new = builders.recipe(), builders.recipe(**changes)

    assert _key(old) != _key(new)
    assert arms.explain_change(_arms()["reference"], _arms(**changes)["reference"]) == reasons


def test_a_control_runs_again_when_its_own_fault_changes() -> None:
    changes = {"controls": [{"name": "ulp", "fault": {"kind": "ulp", "step": 3}}]}

    assert _key(builders.recipe(), "control-ulp") != _key(builders.recipe(**changes), "control-ulp")
    assert arms.explain_change(_arms()["control-ulp"], _arms(**changes)["control-ulp"]) == ["faults[0].step: 7 -> 3"]


def test_a_moved_token_file_with_the_same_digest_does_not_count() -> None:
    here, there = builders.recipe(data=builders.tokens("/a")), builders.recipe(data=builders.tokens("/b"))

    assert _key(here) == _key(there)


def test_arms_have_keys_of_their_own() -> None:
    keys = [_key(builders.recipe(), arm) for arm in _arms()]

    assert len(set(keys)) == len(keys)


def test_the_key_follows_the_software_here(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _key(builders.recipe())
    monkeypatch.setattr(arms, "_surroundings", lambda: {"software": {"torch": "0.0"}})

    assert _key(builders.recipe()) != before


def test_planning_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, samebits.plan.arms, samebits.plan.overview; sys.exit(bool({'torch', 'numpy'} & {*sys.modules}))"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_table_has_a_row_for_each_arm_with_the_command_that_runs_it() -> None:
    rows = overview.describe(_arms().values(), Path("my recipes/smoke.yaml"))

    assert [row.arm for row in rows] == list(_arms())
    assert rows[2] == overview.PlanRow(
        arm="resumed",
        ranks=2,
        first_step=7,
        last_step=12,
        steps=6,
        tokens=6 * 8 * 64,
        start="/results/smoke/arms/reference/checkpoints/step-000006",
        faults=(),
        rung="state",
        needs=("reference",),
        time_minutes=10,
        command="samebits run 'my recipes/smoke.yaml' resumed",
        environment={
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "NCCL_ALGO": "Ring",
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert [row.faults for row in rows[3:5]] == [("ulp, rank 1, step 7",), ("rng-skip, rank 1, at the restore",)]
    assert rows[5].rung == "none"
