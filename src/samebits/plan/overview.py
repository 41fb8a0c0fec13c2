"""What `samebits plan RECIPE` shows: a row for each arm that would run. Presenters only lay it out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from samebits.plan import arms
from samebits.recipe import determinism
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.spec.sections import MegatronRecipe, Recipe


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One arm.

    steps: how many; first_step, last_step: which. start: `scratch` or the checkpoint's folder. rung: `none` where
    capture is off. tokens: trained on by all ranks together. needs: arms that must be finished before.
    """

    arm: str
    ranks: int
    first_step: int
    last_step: int
    steps: int
    tokens: int | None
    start: str
    faults: tuple[str, ...]
    rung: str
    needs: tuple[str, ...]
    time_minutes: int
    command: str
    environment: dict[str, str]


def describe(plans: Iterable[Plan], path: Path) -> list[PlanRow]:
    """Rows in the order of the plans. path: of the recipe, as the commands name it."""
    return [_row(plan, path) for plan in plans]


def _row(plan: Plan, path: Path) -> PlanRow:
    recipe, steps = plan.recipe, plan.last_step - plan.first_step + 1
    return PlanRow(
        arm=plan.arm,
        ranks=plan.world,
        first_step=plan.first_step,
        last_step=plan.last_step,
        steps=steps,
        tokens=_tokens(recipe, steps),
        start=plan.restore or "scratch",
        faults=tuple(_fault_text(fault) for fault in plan.faults),
        rung=recipe.capture.rung if plan.capture else "none",
        needs=arms.needs(plan),
        time_minutes=recipe.launch.time_minutes,
        command=shlex.join(["samebits", "run", str(path), plan.arm]),
        environment={
            **determinism.environment(recipe.determinism, plan.relaxed),
            "OMP_NUM_THREADS": str(recipe.launch.threads),
        },
    )


def _tokens(recipe: Recipe, steps: int) -> int | None:
    if not isinstance(recipe, MegatronRecipe):
        return None
    return steps * recipe.data.global_batch * recipe.model.sequence_length


def _fault_text(fault: Fault) -> str:
    """For example `ulp, rank 1, step 7`."""
    where = "every rank" if fault.rank is None else f"rank {fault.rank}"
    when = "at the restore" if fault.step is None else f"step {fault.step}"
    what = f"{fault.kind} ({fault.target})" if fault.target else fault.kind
    return f"{what}, {where}, {when}"
