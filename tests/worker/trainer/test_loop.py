"""Real Megatron Core training in local ranks: it learns, it repeats, and it resumes as if never interrupted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import workload
from samebits.spec.questions import Fault
from samebits.spec.sections import Recipe
from workload import MODEL, MOE, MTP, OPTIMIZER, PARALLEL, Result

LAYOUTS = {
    "data-parallel, fp32": workload.recipe(),
    "experts, MTP, distributed optimizer, bf16": workload.recipe(
        model=replace(MODEL, moe=MOE, mtp=MTP, tied_embeddings=True),
        parallel=replace(PARALLEL, expert=2),
        precision="bf16",
        optimizer=replace(OPTIMIZER, distributed=True),
    ),
    "tensor and sequence parallel, pipeline": workload.recipe(
        model=replace(MODEL, normalization="LayerNorm"),
        parallel=replace(PARALLEL, world=4, tensor=2, sequence=True, pipeline=2, data=1),
    ),
    "virtual pipeline": workload.recipe(
        model=replace(MODEL, layers=4),
        parallel=replace(PARALLEL, pipeline=2, data=1, virtual_pipeline=2),
        precision="bf16",
    ),
}
EXPERTS = "experts, MTP, distributed optimizer, bf16"

pytestmark = pytest.mark.ranks


@dataclasses.dataclass(frozen=True)
class Run:
    recipe: Recipe
    results: list[Result]
    checkpoint: Path


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The uninterrupted run of a layout, made once."""

    @functools.cache
    def reference(name: str) -> Run:
        folder = tmp_path_factory.mktemp("reference")
        results = workload.launch(workload.plan(LAYOUTS[name]), folder)
        return Run(LAYOUTS[name], results, folder / "checkpoints" / "step-000006")

    return reference


@pytest.fixture(scope="module")
def experts(references: Callable[[str], Run]) -> Run:
    return references(EXPERTS)


def losses(result: Result) -> dict[int, float]:
    return {int(step): float.fromhex(metrics["lm loss"]) for step, metrics in result.metrics.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_learns_on_with_the_same_bits(
    references: Callable[[str], Run], layout: str, tmp_path: Path
) -> None:
    reference = references(layout)
    resumed = workload.launch(workload.plan(reference.recipe, reference.checkpoint), tmp_path)
    for before, after in zip(reference.results, resumed, strict=True):
        assert after.restored == before.saved["6"]
        assert after.metrics == {step: before.metrics[step] for step in after.metrics} != {}
        assert after.state == before.state
    # The loss of an untrained model is ln 256 = 5.55; wrong gradients leave it there or raise it.
    learned = losses(reference.results[-1])
    assert learned[1] > 5.4
    assert learned[12] < 4.8


def test_a_twin_has_the_same_bits(experts: Run, tmp_path: Path) -> None:
    assert workload.launch(workload.plan(experts.recipe), tmp_path) == experts.results


def test_every_rank_logs_what_it_owns(experts: Run) -> None:
    every_step = {
        *("lm loss", "train loss", "mtp_1 loss", "load_balancing_loss", "z_loss", "grad-norm", "params-norm"),
        *("num-zeros", "learning-rate", "loss-scale", "tokens"),
    }
    for result in experts.results:
        assert all(set(metrics) == every_step for metrics in result.metrics.values())


def test_a_live_upstream_fault_restores_equal_state_and_diverges_silently(experts: Run, tmp_path: Path) -> None:
    plan = workload.plan(experts.recipe, experts.checkpoint, faults=(Fault(kind="upstream"),))
    for before, after in zip(experts.results, workload.launch(plan, tmp_path), strict=True):
        assert after.restored == before.saved["6"]
        assert after.metrics["7"]["lm loss"] == before.metrics["7"]["lm loss"]
        differing = {name.split()[0] for name in before.state if before.state[name] != after.state[name]}
        assert differing >= {"step", "main", "parameter"}
        assert not differing & {"rng", "sampler", "scheduler"}


def test_a_loss_that_is_not_a_number_does_not_end_the_run(tmp_path: Path) -> None:
    recipe = replace(LAYOUTS[EXPERTS], steps=3)
    plan = workload.plan(recipe, faults=(Fault(kind="nan-loss", step=2),))
    for result in workload.launch(plan, tmp_path):
        assert float.fromhex(result.metrics["3"]["grad-norm"]) != float.fromhex(result.metrics["3"]["grad-norm"])


def test_a_plan_that_starts_elsewhere_than_its_checkpoint_is_refused(experts: Run, tmp_path: Path) -> None:
    plan = replace(workload.plan(experts.recipe, experts.checkpoint), first_step=9)
    with pytest.raises(workload.RanksError, match="first_step is 9, must be 7"):
        workload.launch(plan, tmp_path)
