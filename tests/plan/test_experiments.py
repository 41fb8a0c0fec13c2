from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import builders
import timed
from samebits.plan import arms, overhead_runs
from samebits.recipe import determinism
from samebits.recipe.load import RecipeError
from samebits.spec.overhead import Experiment
from samebits.spec.questions import Rung

ALL = pytest.mark.parametrize("experiment", overhead_runs.EXPERIMENTS)


def test_baseline_and_deterministic_stand_in_blocks_and_after_a_rehearsal() -> None:
    assert [plan.arm for plan in overhead_runs.plans(timed.recipe(blocks=2), "overhead")] == [
        "rehearsal",
        *("baseline-1", "deterministic-1", "deterministic-2", "baseline-2"),
        *("deterministic-3", "baseline-3", "baseline-4", "deterministic-4"),
    ]


def test_blocks_are_turned_round_by_the_thue_morse_sequence() -> None:
    turned = [overhead_runs.block("AB", number)[0] for number in range(1, 17)]
    assert "".join(turned) == "ABBABAABBAABABBA"


@pytest.mark.parametrize("period", range(2, 13))
def test_no_disturbance_with_the_rhythm_of_the_blocks_stays_on_one_side(period: int) -> None:
    """A wave over the runs: what A B B A alone would leave of period 4 in every block is left in none on the whole."""
    settings = [setting for number in range(1, 17) for setting in overhead_runs.block("AB", number)]
    wave = np.cos(2 * np.pi * (np.arange(len(settings)) + 0.5) / period)
    on = np.array([1 if setting == "B" else -1 for setting in settings])
    assert abs(float(wave @ on)) / len(settings) < 0.25
    if period == 4:
        assert float(wave @ on) == pytest.approx(0, abs=1e-9)


@ALL
def test_in_every_block_each_setting_stands_at_the_same_mean_place(experiment: Experiment) -> None:
    """So that whatever drifts linearly hits all settings alike."""
    places: dict[tuple[int, str], list[int]] = {}
    for plan in overhead_runs.plans(timed.recipe(), experiment):
        assert plan.timing is not None
        if plan.timing.setting == overhead_runs.REHEARSAL:
            continue
        places.setdefault((plan.timing.block, plan.timing.setting), []).append(plan.timing.position)
    assert len({float(np.mean(found)) for found in places.values()}) == 1
    assert {len(found) for found in places.values()} == {2}


@ALL
def test_runs_have_names_of_their_own_and_write_no_checkpoint(experiment: Experiment) -> None:
    plans = overhead_runs.plans(timed.recipe(), experiment)
    assert max(Counter(plan.arm for plan in plans).values()) == 1
    assert not any(plan.saves_at(step) for plan in plans for step in range(1, 100))
    assert {(plan.first_step, plan.last_step) for plan in plans} == {(1, 13)}


def test_a_baseline_leaves_every_determinism_setting_off_and_a_deterministic_run_none() -> None:
    recipe = timed.recipe()
    _, baseline, deterministic, *_ = overhead_runs.plans(recipe, "overhead")
    assert set(baseline.relaxed) == {
        *("deterministic_algorithms", "deterministic_mode", "unfused_cross_entropy"),
        *("NCCL_ALGO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"),
    }
    assert deterministic.relaxed == ()
    assert determinism.environment(recipe.determinism, baseline.relaxed) == {}


def test_only_settings_that_are_on_can_be_left_off() -> None:
    off = builders.recipe(determinism={"deterministic_algorithms": False})
    on = builders.recipe(determinism={"fill_uninitialized_memory": True}, model={"moe": builders.moe()})
    assert "deterministic_algorithms" not in determinism.knobs(off)
    assert {"fill_uninitialized_memory", "unfused_router"} <= set(determinism.knobs(on))


def test_variables_that_are_only_recorded_stay_in_a_baseline() -> None:
    recipe = builders.recipe(determinism={"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}})
    assert determinism.environment(recipe.determinism, determinism.knobs(recipe)) == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1"
    }


def test_attribution_leaves_one_setting_off_at_a_time() -> None:
    recipe = timed.recipe(blocks=1)
    _, first, *others = overhead_runs.plans(recipe, "attribution")
    assert (first.arm, first.relaxed) == ("deterministic-1", ())
    relaxed = [plan.relaxed for plan in others[: len(others) // 2]]
    assert relaxed == [(knob,) for knob in determinism.knobs(recipe)]


def test_what_capture_costs_is_measured_at_every_rung_and_for_all_steps_of_all_ranks() -> None:
    plans = overhead_runs.plans(timed.recipe(blocks=1), "capture")
    captured = [plan for plan in plans if plan.capture]
    assert {plan.recipe.capture.rung for plan in captured} == set(get_args(Rung))
    assert {plan.rung_at(1, 5) for plan in captured} == set(get_args(Rung))
    assert {plan.timing.setting for plan in plans if plan.timing and not plan.capture} == {"deterministic", "rehearsal"}


def test_an_artificial_slowdown_is_of_all_settings_but_the_first() -> None:
    for plan in overhead_runs.plans(timed.recipe(), "null", slowdown_percent=2.0):
        assert plan.timing is not None
        assert plan.timing.slowdown_percent == (2.0 if plan.timing.setting == "again" else 0.0)


def test_no_two_runs_of_an_experiment_have_the_same_key() -> None:
    keys = [arms.key(plan) for plan in overhead_runs.plans(timed.recipe(), "overhead")]
    assert len(set(keys)) == len(keys)


def test_what_an_arm_is_made_of_does_not_depend_on_the_section_overhead() -> None:
    with_section = timed.recipe(gates=("repeatability", "overhead"))
    without = timed.recipe(gates=("repeatability", "overhead"), limit_percent=9.0)
    keys = {arms.key(arms.plan(recipe, "twin-1", Path("/r"))) for recipe in (with_section, without)}
    assert len(keys) == 1


def test_a_recipe_asks_for_experiments_by_its_gate() -> None:
    assert overhead_runs.asked(timed.recipe(also=("capture",))) == ("overhead", "capture")
    assert overhead_runs.asked(timed.recipe(gates=("repeatability",), also=("capture",))) == ()
    assert overhead_runs.asked(builders.recipe()) == ()


def test_without_a_section_overhead_the_way_out_is_told() -> None:
    with pytest.raises(RecipeError, match="smoke: overhead is absent, must say how time is measured; add the section"):
        overhead_runs.plans(builders.recipe(), "null")


def test_one_experiment_at_a_time_is_asked_for() -> None:
    assert overhead_runs.chosen(attribute=False, capture=False, null=False) == "overhead"
    assert overhead_runs.chosen(attribute=True, capture=False, null=False) == "attribution"
    with pytest.raises(RecipeError, match="one at a time"):
        overhead_runs.chosen(attribute=True, capture=True, null=False)


@pytest.mark.parametrize(
    ("experiment", "percent"), [("null", -1.0), ("null", float("nan")), ("null", 1e9), ("overhead", 2.0)]
)
def test_a_slowdown_that_cannot_be_planted_is_refused(experiment: Experiment, percent: float) -> None:
    with pytest.raises(RecipeError, match="--slowdown is"):
        overhead_runs.check_slowdown(experiment, percent)


@pytest.mark.parametrize(("experiment", "percent"), [("null", 2.0), ("null", 0.0), ("overhead", 0.0)])
def test_a_slowdown_is_planted_to_test_the_instrument(experiment: Experiment, percent: float) -> None:
    overhead_runs.check_slowdown(experiment, percent)


@ALL
def test_the_option_of_an_experiment_chooses_it(experiment: Experiment) -> None:
    given = overhead_runs.option(experiment)
    flags = {name: f"--{name}" in given for name in ("attribute", "capture", "null")}
    assert overhead_runs.chosen(**flags) == experiment
