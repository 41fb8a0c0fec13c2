from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import artifacts
import builders
import evidence
import timed
from samebits.compare.results import to_json
from samebits.fingerprint.clock import ClockPhase
from samebits.fingerprint.paths import ArtifactError
from samebits.gates.judge import judge
from samebits.overhead import step_times
from samebits.overhead.gate import judge_overhead
from samebits.overhead.results import Cost
from samebits.plan import overhead_runs
from samebits.spec.plan import Plan, decode
from samebits.spec.questions import Waiver
from samebits.spec.sections import Recipe
from samebits.spec.verdicts import Verdict


def only(arm: str, **changes: Any) -> Callable[[Plan], dict[str, Any] | None]:
    """Changes one run."""
    return lambda plan: changes if plan.arm == arm else {}


def judged(cost: Cost, recipe: Recipe) -> tuple[Verdict, str]:
    assert recipe.overhead is not None
    gate = judge_overhead(cost, recipe.overhead)
    return gate.verdict, gate.explanation


def test_a_cost_is_found_inside_its_interval_with_its_parts(tmp_path: Path) -> None:
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, cost=3.0), recipe)

    assert (cost.problems, cost.deviations, cost.failures) == ((), (), ())
    assert cost.findings is not None
    (effect,) = cost.findings.effects
    assert (effect.reference, effect.candidate, effect.knob) == ("baseline", "deterministic", "")
    assert effect.median.interval is not None
    assert effect.median.interval.low < 3.0 < effect.median.interval.high
    assert len(effect.ratios) == 4
    assert sum(phase.points for phase in effect.phases) == pytest.approx(effect.mean.percent, abs=0.05)
    baseline, deterministic = cost.findings.settings
    assert baseline.median == pytest.approx(timed.STEP, rel=0.01)
    # 8 samples of 64 tokens a step, on two ranks
    assert baseline.tokens == pytest.approx(8 * 64 / 2 / timed.STEP, rel=0.01)
    assert (baseline.runs, baseline.steps, deterministic.end_states) == (8, 80, 1)
    assert cost.findings.gpu_days == pytest.approx(effect.median.percent * 2)
    assert baseline.in_force["NCCL_ALGO"] == "not set"
    assert deterministic.in_force["NCCL_ALGO"] == "Ring"
    assert "threads" not in baseline.in_force
    assert cost.findings.checks.warm_up == 16 * 3


@pytest.mark.parametrize(
    ("cost", "limit", "verdict", "said"),
    [
        (3.0, 5.0, "pass", "at most the allowed 5 %"),
        (3.0, 2.0, "fail", "more than the allowed 2 %"),
        (-2.0, 0.0, "pass", "at most the allowed 0 %"),
    ],
)
def test_the_whole_interval_decides(tmp_path: Path, cost: float, limit: float, verdict: Verdict, said: str) -> None:
    recipe = timed.recipe(limit_percent=limit)
    found, text = judged(timed.measured(timed.write(tmp_path, recipe, cost=cost), recipe), recipe)

    assert found == verdict
    assert said in text
    assert "95 % interval" in text


def test_an_interval_on_both_sides_of_the_limit_says_how_many_blocks_would_decide(tmp_path: Path) -> None:
    recipe = timed.recipe(limit_percent=3.2)
    found, text = judged(timed.measured(timed.write(tmp_path, recipe, cost=3.0, noise=1.0), recipe), recipe)

    assert found == "inconclusive"
    assert "on both sides of the allowed 3.2 %" in text
    assert "more blocks would decide" in text
    assert "set overhead.blocks to" in text


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_too_few_blocks_decide_nothing_and_say_how_many_are_needed(tmp_path: Path, blocks: int) -> None:
    recipe = timed.recipe(blocks=blocks, limit_percent=90.0)
    found, text = judged(timed.measured(timed.write(tmp_path, recipe, cost=3.0), recipe), recipe)

    assert found == "inconclusive"
    assert "at least 4 are needed" in text
    assert "set overhead.blocks to 4 or more" in text


def test_the_slowest_rank_of_each_step_counts(tmp_path: Path) -> None:
    """Each rank is slow at every other step: no rank alone shows it."""
    recipe = timed.recipe()

    def alternating(plan: Plan) -> dict[str, Any]:
        def clocks(rank: int) -> Any:
            rows = timed.clocks(plan, 0.1)
            rows["spent"][rank::2] *= 2
            return rows

        return {"clocks": clocks}

    cost = timed.measured(timed.write(tmp_path, recipe, change=alternating), recipe)
    assert cost.runs[1].median == pytest.approx(0.2)


def test_data_loading_and_logging_are_no_part_of_a_step(tmp_path: Path) -> None:
    recipe = timed.recipe()

    def slow_data(plan: Plan) -> dict[str, Any]:
        def clocks(rank: int) -> Any:
            rows = timed.clocks(plan, 0.1)
            rows["spent"][:, ClockPhase.DATA] = rows["spent"][:, ClockPhase.OTHER] = 10**9
            return rows

        return {"clocks": clocks}

    cost = timed.measured(timed.write(tmp_path, recipe, change=slow_data), recipe)
    assert cost.runs[1].median == pytest.approx(0.1)


def test_steps_beside_a_checkpoint_are_left_out_and_counted(tmp_path: Path) -> None:
    recipe = timed.recipe(steps=12)

    def saving(plan: Plan) -> dict[str, Any]:
        def clocks(rank: int) -> Any:
            rows = timed.clocks(plan, 0.1, saved=0)
            rows["saved"][8] = 1
            rows["spent"][8:10] *= 50
            return rows

        return {"clocks": clocks}

    cost = timed.measured(timed.write(tmp_path, recipe, change=saving), recipe)
    assert cost.findings is not None
    assert cost.findings.checks.checkpoints == 16 * 2
    assert (cost.runs[1].steps, cost.runs[1].mean) == (10, pytest.approx(0.1))


@pytest.mark.parametrize("launch", ["another-3", f"{timed.LAUNCH}-3.1"])
def test_a_run_of_another_start_is_not_comparable(tmp_path: Path, launch: str) -> None:
    """Of another day, or from before the scheduler started the job again."""
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("baseline-4", launch=launch)), recipe)
    assert judged(cost, recipe)[0] == "invalid"
    assert [row.pin for row in cost.deviations] == ["baseline-4: launch"]


def test_runs_that_were_not_made_in_their_order_are_no_evidence(tmp_path: Path) -> None:
    """A B B A only cancels a drift where it was A B B A."""
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("deterministic-1", epoch=99_000)), recipe)
    assert cost.findings is None
    assert judged(cost, recipe) == (
        "inconclusive",
        "not all runs are evidence: deterministic-2: ended before deterministic-1, which it must follow; make the "
        "experiment again: `samebits overhead RECIPE --again`",
    )


def test_a_missing_run_leaves_no_figure(tmp_path: Path) -> None:
    recipe = timed.recipe()
    results = timed.write(tmp_path, recipe, cost=3.0)
    shutil.rmtree(overhead_runs.folder(results, recipe.name, "overhead") / "deterministic-3")
    cost = timed.measured(results, recipe)

    assert cost.findings is None
    found, text = judged(cost, recipe)
    assert (found, "deterministic-3" in text) == ("inconclusive", True)


def test_an_instrumented_run_is_no_evidence_of_time(tmp_path: Path) -> None:
    recipe = timed.recipe()
    results = timed.write(tmp_path, recipe)
    plan = overhead_runs.plans(recipe, "overhead")[2]
    folder = overhead_runs.folder(results, recipe.name, "overhead") / plan.arm
    shutil.rmtree(folder)
    timed.write_run(folder, dataclasses.replace(plan, capture=True), 0.1, epoch=2000)
    step_times.collect_runs(step_times.run_folders(folder.parent))
    cost = timed.measured(results, recipe)

    assert cost.findings is None
    assert judged(cost, recipe)[0] == "invalid"
    assert any("arm.capture" in row.pin for row in cost.deviations)


def test_a_run_that_recorded_steps_though_its_plan_forbids_it_is_refused(tmp_path: Path) -> None:
    recipe = timed.recipe()
    results = timed.write(tmp_path, recipe)
    folder = overhead_runs.folder(results, recipe.name, "overhead") / "deterministic-1"
    shutil.rmtree(folder)
    plan = overhead_runs.plans(recipe, "overhead")[2]
    artifact = timed.write_run(folder, plan, 0.1)
    for rank in range(2):
        artifacts.rewrite(artifact, rank, dataclasses.replace(plan, capture=True), launch=f"{timed.LAUNCH}-{plan.arm}")
    with pytest.raises(ArtifactError, match="which the plan does not have"):
        step_times.collect_runs(step_times.run_folders(folder.parent))


def test_an_arm_in_place_of_a_run_is_refused(tmp_path: Path) -> None:
    recipe = timed.recipe()
    results = timed.write(tmp_path, recipe)
    folder = overhead_runs.folder(results, recipe.name, "overhead") / "baseline-1"
    shutil.rmtree(folder)
    evidence.written(folder, arm="twin-1")
    cost = timed.measured(results, recipe)
    assert cost.findings is None
    assert "is no timed run" in cost.problems[0]
    with pytest.raises(ArtifactError, match="measures no time"):
        step_times.collect_runs(step_times.run_folders(folder.parent))


@pytest.mark.parametrize(
    ("groups", "pin"),
    [
        ({"software": {"torch": "9"}}, "software.torch"),
        ({"runtime": {"threads": "7"}}, "runtime.threads"),
        ({"runtime": {"clock": "cuda events"}}, "runtime.clock"),
        ({"hardware": {"cpu": "another"}}, "hardware.cpu"),
        ({"environment": {"OMP_PROC_BIND": "true"}}, "environment.OMP_PROC_BIND"),
        ({"placement": {"host": "node-9"}}, "placement.node"),
        ({"placement": {"job": "77"}}, "placement.job"),
        # set, and not in force
        ({"runtime": {"deterministic_mode": "False"}}, "runtime.deterministic_mode"),
        ({"environment": {"NCCL_ALGO": "Tree"}}, "environment.NCCL_ALGO"),
    ],
)
def test_runs_that_differ_in_more_than_what_is_measured_are_not_comparable(
    tmp_path: Path, groups: dict[str, dict[str, str]], pin: str
) -> None:
    recipe = timed.recipe()
    plan = next(plan for plan in overhead_runs.plans(recipe, "overhead") if plan.arm == "deterministic-3")
    changed = only(plan.arm, pins=lambda rank: timed.pins(plan, rank, **groups))
    cost = timed.measured(timed.write(tmp_path, recipe, change=changed), recipe)

    assert cost.findings is None
    assert judged(cost, recipe)[0] == "invalid"
    assert any(pin in row.pin for row in cost.deviations)


def test_a_baseline_in_which_a_setting_is_still_on_is_not_comparable(tmp_path: Path) -> None:
    recipe = timed.recipe()
    plan = overhead_runs.plans(recipe, "overhead")[1]
    still_on = only(plan.arm, pins=lambda rank: timed.pins(plan, rank, environment={"NCCL_ALGO": "Ring"}))
    cost = timed.measured(timed.write(tmp_path, recipe, change=still_on), recipe)

    assert judged(cost, recipe)[0] == "invalid"
    assert "NCCL_ALGO" in cost.deviations[0].pin


def test_an_artificial_slowdown_is_no_evidence_for_the_gate(tmp_path: Path) -> None:
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, slowdown=2.0), recipe)
    assert judged(cost, recipe)[0] == "invalid"


def test_runs_of_an_experiment_with_another_number_of_blocks_do_not_stand(tmp_path: Path) -> None:
    """Who looks first and takes the first four of eight has made another experiment."""
    results = timed.write(tmp_path, timed.recipe(blocks=8))
    fewer = timed.recipe(blocks=4)
    assert judged(timed.measured(results, fewer), fewer)[0] == "invalid"


def test_deterministic_runs_that_end_in_different_states_fail(tmp_path: Path) -> None:
    recipe = timed.recipe()
    apart = only("deterministic-4", change=artifacts.altered("parameter:w0", rank=1, step=13, moment=_final()))
    cost = timed.measured(timed.write(tmp_path, recipe, change=apart), recipe)

    found, text = judged(cost, recipe)
    assert (found, cost.findings) == ("fail", None)
    assert "deterministic-4 did not end in the state" in text


def _final() -> Any:
    from samebits.fingerprint.records import Moment

    return Moment.FINAL


def test_baseline_runs_may_end_in_different_states(tmp_path: Path) -> None:
    recipe = timed.recipe()
    apart = only("baseline-2", change=artifacts.altered("parameter:w0", rank=1, step=13, moment=_final()))
    cost = timed.measured(timed.write(tmp_path, recipe, change=apart), recipe)
    assert cost.findings is not None
    assert [setting.end_states for setting in cost.findings.settings] == [2, 1]


def test_a_loss_that_is_not_a_number_fails(tmp_path: Path) -> None:
    recipe = timed.recipe()
    note = {"type": "unhealthy", "rank": 0, "step": 4, "name": "lm loss", "value": "nan"}
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("baseline-1", notes=[note])), recipe)
    found, text = judged(cost, recipe)
    assert (found, text) == ("fail", "baseline-1: lm loss is nan on rank 0 at step 4")


def test_a_run_with_a_planted_fault_is_no_evidence(tmp_path: Path) -> None:
    recipe = timed.recipe()
    note = artifacts.planted("ulp", "parameter:w0", rank=0, step=4, moment="step")
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("baseline-2", notes=[note])), recipe)
    assert cost.findings is None
    assert "baseline-2: carries a planted fault" in cost.problems[0]


def test_a_clock_that_stood_still_is_refused(tmp_path: Path) -> None:
    recipe = timed.recipe()
    plan = overhead_runs.plans(recipe, "overhead")[1]
    still = only(plan.arm, clocks=lambda _: timed.clocks(plan, 0.1, spent=0))
    cost = timed.measured(timed.write(tmp_path, recipe, change=still), recipe)
    assert "stood still" in cost.problems[0]


def test_a_run_without_clocks_is_not_sealed(tmp_path: Path) -> None:
    recipe = timed.recipe()
    with pytest.raises(ArtifactError, match="lacks the clock of step 1"):
        timed.write(tmp_path, recipe, change=only("baseline-1", clocks=None))


def test_edited_step_times_are_refused(tmp_path: Path) -> None:
    recipe = timed.recipe()
    results = timed.write(tmp_path, recipe, cost=9.0)
    path = overhead_runs.folder(results, recipe.name, "overhead") / "deterministic-1" / "clocks.npy"
    clocks = np.load(path)
    clocks["spent"] //= 2
    np.save(path, clocks)
    cost = timed.measured(results, recipe)
    assert cost.findings is None
    assert "clocks.npy" in cost.problems[0]


def test_attribution_holds_the_deterministic_run_against_itself_without_each_setting(tmp_path: Path) -> None:
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, "attribution", cost=-4.0), recipe, "attribution")
    assert cost.findings is not None
    assert [effect.knob for effect in cost.findings.effects] == [
        "deterministic_algorithms",
        "deterministic_mode",
        "unfused_cross_entropy",
        "NCCL_ALGO",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "CUBLAS_WORKSPACE_CONFIG",
    ]
    for effect in cost.findings.effects:
        # 4 % faster without it
        assert effect.median.percent == pytest.approx(100 / 96 * 100 - 100, abs=0.5)


def test_a_setting_that_changes_nothing_in_force_is_told(tmp_path: Path) -> None:
    """As a fused router where Transformer Engine is missing."""
    with_experts = builders.recipe(model={"moe": builders.moe()}).model
    recipe = dataclasses.replace(timed.recipe(), model=with_experts)
    cost = timed.measured(timed.write(tmp_path, recipe, "attribution"), recipe, "attribution")
    assert cost.findings is not None
    told = [caution.partition(":")[0] for caution in cost.findings.cautions if "compares a run with itself" in caution]
    assert told == ["unfused_router"]
    cost = timed.measured(timed.write(tmp_path, recipe), recipe)
    assert cost.findings is not None
    assert [caution.partition(" ")[0] for caution in cost.findings.cautions if "lacks it" in caution] == [
        "moe_router_fusion"
    ]


def test_a_fusion_that_every_installation_has_must_be_in_force_in_a_baseline(tmp_path: Path) -> None:
    """Else the baseline is slower than it need be, and determinism looks cheap."""
    recipe = timed.recipe()
    off = {"runtime": {"cross_entropy_loss_fusion": "False"}}

    def unfused(plan: Plan) -> dict[str, Any]:
        return {"pins": lambda rank: timed.pins(plan, rank, **off)} if plan.relaxed else {}

    cost = timed.measured(timed.write(tmp_path, recipe, change=unfused), recipe)
    assert judged(cost, recipe)[0] == "invalid"
    assert "cross_entropy_loss_fusion" in cost.deviations[0].pin


def test_a_median_that_hides_slow_steps_does_not_pass(tmp_path: Path) -> None:
    recipe = timed.recipe()

    def slow_now_and_then(plan: Plan) -> dict[str, Any]:
        def clocks(rank: int) -> Any:
            rows = timed.clocks(plan, timed.STEP)
            if not plan.relaxed:
                rows["spent"][3::3] *= 3
            return rows

        # No two runs are alike to the nanosecond.
        return {"clocks": lambda rank: _jittered(clocks(rank), plan)}

    found, text = judged(timed.measured(timed.write(tmp_path, recipe, change=slow_now_and_then), recipe), recipe)
    assert found == "inconclusive"
    assert "by the mean, which is more than the allowed 5 %" in text


def _jittered(rows: Any, plan: Plan) -> Any:
    scale = 1 + np.random.default_rng(sum(plan.arm.encode())).normal(0, 1e-3)
    rows["spent"] = (rows["spent"] * scale).astype(np.int64)
    return rows


def test_time_that_no_step_counts_is_told_where_it_differs(tmp_path: Path) -> None:
    recipe = timed.recipe()

    def hidden(plan: Plan) -> dict[str, Any]:
        def clocks(_: int) -> Any:
            rows = _jittered(timed.clocks(plan, timed.STEP), plan)
            if not plan.relaxed:
                rows["spent"][:, ClockPhase.OTHER] *= 5
            return rows

        return {"clocks": clocks}

    cost = timed.measured(timed.write(tmp_path, recipe, change=hidden), recipe)
    assert cost.findings is not None
    assert any("a cost may hide there" in caution for caution in cost.findings.cautions)


@pytest.mark.parametrize(
    "libraries", [{"libmkl.so.3": "b"}, {"libjemalloc.so.2": "c"}], ids=["another version", "one more"]
)
def test_a_library_that_only_one_run_of_a_setting_has_is_a_deviation(tmp_path: Path, libraries: dict[str, str]) -> None:
    recipe = timed.recipe()
    plan = next(plan for plan in overhead_runs.plans(recipe, "overhead") if plan.arm == "deterministic-3")
    changed = only(plan.arm, pins=lambda rank: timed.pins(plan, rank, libraries=libraries))
    cost = timed.measured(timed.write(tmp_path, recipe, change=changed), recipe)
    assert judged(cost, recipe)[0] == "invalid"
    assert cost.deviations[0].pin.startswith("libraries.")


def test_a_library_that_a_setting_loads_is_part_of_what_is_measured(tmp_path: Path) -> None:
    recipe = timed.recipe()

    def loads(plan: Plan) -> dict[str, Any]:
        fused = {"libfused.so": "a"} if plan.relaxed else {}
        return {"pins": lambda rank: timed.pins(plan, rank, libraries=fused)}

    assert timed.measured(timed.write(tmp_path, recipe, change=loads), recipe).deviations == ()


def test_other_gpus_of_the_same_node_are_other_machines(tmp_path: Path) -> None:
    recipe = timed.recipe()

    def on_two(plan: Plan) -> dict[str, Any]:
        gpu = {"gpu-uuid": "GPU-1" if plan.relaxed else "GPU-2"}
        return {"pins": lambda rank: timed.pins(plan, rank, placement=gpu)}

    cost = timed.measured(timed.write(tmp_path, recipe, change=on_two), recipe)
    assert "placement.machine" in [row.pin for row in cost.deviations]


@pytest.mark.parametrize("experiment", ["attribution", "capture"])
def test_a_further_experiment_that_is_not_deterministic_fails_the_gate(tmp_path: Path, experiment: Any) -> None:
    """Whether the recipe asks for it, or somebody made it on request."""
    for also in ((), (experiment,)):
        recipe = timed.recipe(also=also)
        results = tmp_path / str(len(also))
        timed.write(results, recipe, cost=3.0)
        apart = artifacts.altered("parameter:w0", rank=1, step=13, moment=_final())
        odd = "capture-state-2" if experiment == "capture" else "deterministic-2"
        timed.write(results, recipe, experiment, change=only(odd, change=apart))
        found = judge(recipe, results)
        assert found.verdict == "fail"
        assert odd in found.gates[0].explanation


def test_experiments_that_end_in_different_states_fail_the_gate(tmp_path: Path) -> None:
    recipe = timed.recipe(also=("attribution",))
    timed.write(tmp_path, recipe, cost=3.0)

    def moved(plan: Plan) -> dict[str, Any]:
        return {"change": artifacts.altered("parameter:w0", rank=1, step=13, moment=_final())}

    timed.write(tmp_path, recipe, "attribution", change=moved)
    found = judge(recipe, tmp_path)
    assert found.verdict == "fail"
    assert "of the experiment attribution did not end in the state" in found.gates[0].explanation


def test_an_experiment_that_was_asked_for_and_not_made_is_told(tmp_path: Path) -> None:
    recipe = timed.recipe(also=("capture",))
    found = judge(recipe, timed.write(tmp_path, recipe, cost=3.0))
    assert found.verdict == "pass"
    assert "Asked for and not measured: capture" in found.scope


def test_a_state_that_the_recipe_waives_may_differ_between_timed_runs(tmp_path: Path) -> None:
    recipe = dataclasses.replace(timed.recipe(), waivers=(Waiver(item="rng:python", reason="training draws none"),))
    apart = artifacts.altered("rng:python", rank=1, step=13, moment=_final())
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("deterministic-4", change=apart)), recipe)
    assert cost.failures == ()
    apart = artifacts.altered("parameter:w0", rank=1, step=13, moment=_final())
    cost = timed.measured(timed.write(tmp_path, recipe, change=only("deterministic-4", change=apart)), recipe)
    assert len(cost.failures) == 1


def test_bits_of_one_machine_and_time_of_another_are_not_one_answer(tmp_path: Path) -> None:
    recipe = timed.recipe(gates=("observer", "overhead"))
    results = evidence.Results(recipe, tmp_path)
    results.write()
    timed.write(tmp_path, recipe, cost=3.0)
    gate = {gate.gate: gate for gate in judge(recipe, tmp_path).gates}["overhead"]
    assert gate.verdict == "pass", gate.explanation

    def elsewhere(plan: Plan) -> dict[str, Any]:
        return {"pins": lambda rank: timed.pins(plan, rank, hardware={"cpu": "another"})}

    timed.write(tmp_path, recipe, cost=3.0, change=elsewhere)
    gate = {gate.gate: gate for gate in judge(recipe, tmp_path).gates}["overhead"]
    assert gate.verdict == "invalid"
    assert "hardware.cpu (of the reference and of timed runs)" in gate.explanation


def test_a_run_that_was_at_its_checkpoints_most_of_the_time_is_no_evidence(tmp_path: Path) -> None:
    recipe = timed.recipe()
    plan = overhead_runs.plans(recipe, "overhead")[1]
    saving = only(plan.arm, clocks=lambda _: timed.clocks(plan, 0.1, saved=1))
    cost = timed.measured(timed.write(tmp_path, recipe, change=saving), recipe)
    assert "must be half of those behind the warm-up" in cost.problems[0]


def test_what_capture_costs_is_part_of_its_step_and_of_no_other(tmp_path: Path) -> None:
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, "capture", noise=0.01), recipe, "capture")
    assert cost.findings is not None
    assert [effect.knob for effect in cost.findings.effects] == ["metrics", "state", "boundary", "op"]
    for effect in cost.findings.effects:
        assert effect.median.percent == pytest.approx(2.0, abs=0.1)
        assert {phase.phase: round(phase.points, 1) for phase in effect.phases}["capture"] == 2.0
    off, metrics, state, *_ = cost.findings.settings
    assert off.bytes_a_step is None
    assert 0 < (metrics.bytes_a_step or 0) < (state.bytes_a_step or 0)


def test_all_step_times_are_there_as_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, cost=3.0), recipe)
    rows = pq.read_table(cost.file).to_pandas()

    assert len(rows) == 17 * 2 * 13
    assert list(rows["run"].unique()[:5]) == [
        "rehearsal",
        "baseline-1",
        "deterministic-1",
        "deterministic-2",
        "baseline-2",
    ]
    slowest = rows[~rows.warm_up].groupby(["run", "step"]).step_ns.max().groupby("run").median() / 1e9
    assert slowest["baseline-1"] == pytest.approx(cost.runs[1].median)
    assert (rows.forward_ns + rows.backward_ns + rows.communication_ns + rows.optimizer_ns == rows.step_ns).all()


def test_a_recipe_that_only_measures_time_passes_without_a_word_on_bits(tmp_path: Path) -> None:
    recipe = timed.recipe()
    found = judge(recipe, timed.write(tmp_path, recipe, cost=3.0))

    assert found.verdict == "pass"
    assert "whether it computes the same bits was not tested" in found.headline
    assert "No bits were compared" in found.scope
    assert found.arms == ()
    assert [cost.experiment for cost in found.costs] == ["overhead"]
    assert {row.pin for row in found.pins} >= {"software.torch", "runtime.clock"}


def test_an_experiment_made_on_request_is_reported_where_it_stands(tmp_path: Path) -> None:
    recipe = timed.recipe()
    timed.write(tmp_path, recipe, cost=3.0)
    timed.write(tmp_path, recipe, "null")
    assert [cost.experiment for cost in judge(recipe, tmp_path).costs] == ["overhead", "null"]
    shutil.rmtree(overhead_runs.folder(tmp_path, recipe.name, "null") / "again-1")
    assert [cost.experiment for cost in judge(recipe, tmp_path).costs] == ["overhead"]


def test_a_cost_survives_json(tmp_path: Path) -> None:
    recipe = timed.recipe()
    cost = timed.measured(timed.write(tmp_path, recipe, cost=3.0), recipe)
    assert decode(Cost, json.loads(to_json(cost))) == cost
