"""Experiments as they lie in a results folder: synthetic runs whose clocks say what a test wants.

recipe = timed.recipe(blocks=4)
results = timed.write(tmp_path, recipe, cost=3.0)
cost = timed.measured(results, recipe)
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import artifacts
import evidence
from samebits.fingerprint.clock import CLOCK, ClockPhase, Clocks
from samebits.fingerprint.paths import Artifact
from samebits.overhead import step_times
from samebits.overhead.analysis import Runs, measure
from samebits.overhead.results import Cost
from samebits.plan import overhead_runs
from samebits.recipe import determinism
from samebits.spec.overhead import Experiment, Overhead
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe

STEP = 0.1
"""Seconds of a step of the first setting."""
SHARES = {ClockPhase.FORWARD: 0.3, ClockPhase.BACKWARD: 0.4, ClockPhase.COMMUNICATION: 0.2, ClockPhase.OPTIMIZER: 0.1}
LAUNCH = "0123456789abcdef"


def recipe(*, gates: tuple[str, ...] = ("overhead",), world: int = 2, **overhead: Any) -> Recipe:
    """Of time alone; four blocks of ten timed steps."""
    section = {"limit_percent": 5.0, "blocks": 4, "steps": 10, "warm_up": 3, **overhead}
    return dataclasses.replace(artifacts.make_plan(world=world).recipe, gates=gates, overhead=Overhead(**section))


def write(
    folder: Path,
    wanted: Recipe,
    experiment: Experiment = "overhead",
    *,
    cost: float = 0.0,
    noise: float = 0.2,
    slowdown: float = 0.0,
    seed: int = 1,
    change: Callable[[Plan], dict[str, Any] | None] = lambda _: {},
) -> Path:
    """All runs anew, collected. cost: percent, of every setting but the first. noise: percent, of each run as a whole.
    change: of one run's artifact (see `artifacts.write_artifact`); None leaves it out. Returns the results folder."""
    draw = np.random.default_rng(seed)
    home = overhead_runs.folder(folder, wanted.name, experiment)
    shutil.rmtree(home, ignore_errors=True)
    first = overhead_runs.settings(wanted, experiment)[0]
    for number, plan in enumerate(overhead_runs.plans(wanted, experiment, slowdown)):
        scale = float(np.exp(draw.normal(0, noise / 100)))
        if plan.timing and plan.timing.setting != first:
            scale *= 1 + cost / 100
        if (changes := change(plan)) is not None:
            write_run(home / plan.arm, plan, STEP * scale, **{"epoch": 1000 * number, **changes})
    step_times.collect_runs(step_times.run_folders(home))
    return folder


def write_run(folder: Path, plan: Plan, seconds: float, **changes: Any) -> Artifact:
    """Not collected. seconds: of each step of its slowest rank, the last one."""
    usual: dict[str, Any] = {
        "pins": lambda rank: pins(plan, rank),
        "clocks": lambda rank: clocks(plan, seconds if rank == plan.world - 1 else seconds * 0.9),
        "launch": f"{LAUNCH}-{plan.arm}",
    }
    return artifacts.write_artifact(folder, plan=plan, **{**usual, **changes})


def clocks(plan: Plan, seconds: float, **columns: Any) -> Clocks:
    """Every step took as long; the warm-up ten times. columns: of the records, instead."""
    count = plan.last_step - plan.first_step + 1
    rows = np.zeros(count, CLOCK)
    rows["step"] = np.arange(plan.first_step, plan.last_step + 1)
    for phase, share in SHARES.items():
        rows["spent"][:, phase] = round(seconds * share * 1e9)
    rows["spent"][:, ClockPhase.DATA] = rows["spent"][:, ClockPhase.OTHER] = round(seconds * 0.05 * 1e9)
    if plan.capture:
        rows["spent"][:, ClockPhase.CAPTURE] = round(seconds * 0.02 * 1e9)
    warm = plan.timing.warm_up if plan.timing else 0
    rows["spent"][:warm] *= 10
    for name, values in columns.items():
        rows[name] = values
    return rows


def pins(plan: Plan, rank: int = 0, **groups: dict[str, str]) -> Pins:
    """In force is what the plan asks for."""
    wanted, relaxed = plan.recipe.determinism, plan.relaxed
    asked = determinism.environment(wanted)
    own = evidence.pins(rank)
    environment = {name: value for name, value in own.environment.items() if name not in asked}
    changed = {
        "environment": {**environment, **determinism.environment(wanted, relaxed)},
        "runtime": {
            **own.runtime,
            **{name: str(getattr(wanted, name) and name not in relaxed) for name in determinism.FLAGS},
            "deterministic_mode": str("deterministic_mode" not in relaxed),
            "cross_entropy_loss_fusion": str("unfused_cross_entropy" in relaxed),
            "clock": "host",
        },
    }
    found = dataclasses.replace(own, **changed)
    return dataclasses.replace(found, **{name: {**getattr(found, name), **more} for name, more in groups.items()})


def measured(results: Path, wanted: Recipe, experiment: Experiment = "overhead") -> Cost:
    return measure(Runs(wanted, experiment, results))
