"""Costs as a pipeline might measure them, made by the real judging from simulated step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import builders
from judgement_parts import digest
from samebits.compare.certify import Arm, Certified
from samebits.fingerprint.clock import TRAINING, ClockPhase
from samebits.fingerprint.format import Coordinates
from samebits.fingerprint.manifest import Manifest, RankFile, Unhealthy
from samebits.fingerprint.paths import Artifact
from samebits.overhead.analysis import Run, Runs, measure
from samebits.overhead.results import Cost
from samebits.overhead.timing import RunClocks, timing_of
from samebits.plan import overhead_runs
from samebits.recipe import determinism
from samebits.spec.overhead import Experiment
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe
from timing_noise import Design, Noise, step_times

SHARES = (0.31, 0.44, 0.19, 0.06)
"""Of a baseline's step: forward, backward, communication, optimizer."""
EXTRA = (0.05, 0.35, 0.6, 0.0)
"""Of what the candidate takes longer."""
CALM = Noise(process=0.001, walk=0.001)
Change = Callable[[Run], Run]


def recipe(blocks: int = 8, steps: int = 100, limit: float = 5.0, **changes: object) -> Recipe:
    section = {"limit_percent": limit, "blocks": blocks, "steps": steps, "warm_up": 10}
    on = {"deterministic_algorithms": True, "fill_uninitialized_memory": True}
    return builders.recipe(name="overhead", gates=["overhead"], overhead=section, determinism=on, **changes)


def cost(
    effects: Sequence[float] = (3.1,),
    wanted: Recipe | None = None,
    *,
    experiment: Experiment = "overhead",
    noise: Noise = CALM,
    change: Change = lambda run: run,
    seed: int = 5,
) -> Cost:
    """effects: percent that each setting after the first takes longer than the first."""
    asked = wanted or recipe()
    runs = Runs(asked, experiment, Path("results"))
    section = asked.overhead
    assert section is not None
    slower = dict(zip(overhead_runs.settings(asked, experiment), (0.0, *effects), strict=True))
    factors = np.array([1 + slower.get(timing_of(plan).setting, 0.0) / 100 for plan in runs.plans])
    times = _machine(len(runs.plans), section.steps, noise, seed) * factors[:, None]
    runs.all = [change(_run(plan, own)) for plan, own in zip(runs.plans, times, strict=True)]
    return measure(runs)


def _machine(runs: int, steps: int, noise: Noise, seed: int) -> np.ndarray:
    """Seconds, shape (runs, steps), of one setting."""
    design = Design(blocks=-(-runs // 2), effects=(), steps=steps, noise=noise, seed=seed)
    return step_times(design, 1).reshape(-1, steps)[:runs]


def _run(plan: Plan, steps: np.ndarray) -> Run:
    manifest = _manifest(plan)
    arm = Arm(plan.arm, Path("results") / plan.arm, _certified(manifest))
    warm_up = timing_of(plan).warm_up
    clocks = RunClocks(steps=steps, phases=_phases(plan, steps), data=0.0042, checkpoints=2, warm_up=warm_up)
    return Run(plan, arm, clocks, None)


def _certified(manifest: Manifest) -> Certified:
    final = np.frombuffer(digest(manifest.run_fingerprint).encode()[:32] * len(manifest.ranks), np.uint8)
    return Certified(Artifact(Path("results") / manifest.plan.arm), manifest, final.reshape(-1, 1, 32))


def _phases(plan: Plan, steps: np.ndarray) -> np.ndarray:
    """Adds up to the steps."""
    phases = np.zeros((len(steps), len(ClockPhase)))
    phases[:, TRAINING] = np.outer(steps, SHARES)
    if timing_of(plan).experiment == "overhead" and timing_of(plan).setting == overhead_runs.DETERMINISTIC:
        phases[:, TRAINING] = np.outer(steps, np.add(SHARES, np.multiply(0.03, EXTRA)) / 1.03)
    if plan.capture:
        phases[:, ClockPhase.CAPTURE] = steps * 0.02
        phases[:, TRAINING] *= 0.98
    return phases


def _manifest(plan: Plan) -> Manifest:
    world, asked = plan.recipe.parallel.world, plan.recipe.determinism
    relaxed = set(plan.relaxed)
    runtime = {name: str(getattr(asked, name) and name not in relaxed) for name in determinism.FLAGS}
    runtime[determinism.DETERMINISTIC_MODE] = str(determinism.DETERMINISTIC_MODE not in relaxed)
    runtime |= {fusion: str(name in relaxed) for name, fusion in determinism.UNFUSED.items()}
    runtime |= {"threads": "1", "clock": "host" if world == 2 else "cuda events"}
    size = {"metrics": 900, "state": 9_400, "boundary": 61_000, "op": 412_000}[plan.recipe.capture.rung]
    place = {"host": "gpu-node-000", "job": "4711"} if world > 2 else {"host": "laptop"}
    ranks = [
        RankFile(
            rank=rank,
            bytes=size * plan.last_step if plan.capture else 800,
            check=digest(f"{plan.arm} {rank}"),
            records=40,
            skipped=0,
            deep=True,
            coordinates=Coordinates(rank, world, tensor=0, pipeline=0, data=rank, expert=0, context=0),
            pins=Pins(runtime=runtime, environment=determinism.environment(asked, plan.relaxed), placement=place),
        )
        for rank in range(world)
    ]
    return Manifest(
        digest="test",
        launch=f"{digest(plan.recipe.name)}-{plan.arm}",
        plan=plan,
        blocks=(),
        ranks=tuple(ranks),
        planted=(),
        unhealthy=(),
        table="",
        clocks="",
        run_fingerprint="sb1-" + digest(",".join(sorted(relaxed))),
    )


def passing() -> Cost:
    return cost()


def straddling() -> Cost:
    """The interval lies on both sides of 5 %."""
    return cost((4.9,), noise=Noise())


def too_short() -> Cost:
    return cost(wanted=recipe(blocks=2, steps=20), noise=Noise(walk=0.2, stragglers=0.1))


def dear() -> Cost:
    return cost((14.7,), recipe(parallel={"world": 96, "data": 96}))


def free() -> Cost:
    """What is measured is next to nothing."""
    return cost((-0.158,))


def null() -> Cost:
    return cost((0.0,), experiment="null")


def attribution() -> Cost:
    return cost((-2.1, -0.3, -0.1, -0.4, 0.05, -0.6, 0.1), experiment="attribution")


def capture() -> Cost:
    return cost((0.4, 6.4, 19.0, 180.0), experiment="capture")


def gone() -> Cost:
    """One run is not there."""

    def change(run: Run) -> Run:
        if run.plan.arm != "deterministic-3":
            return run
        problem = "results/overhead/overhead/deterministic-3: there is no manifest.json; run `samebits overhead` again"
        return Run(run.plan, Arm(run.plan.arm, run.arm.folder, None, problem), None, problem)

    return cost(change=change)


def elsewhere() -> Cost:
    """One run was made on another node."""

    def change(run: Run) -> Run:
        return _with_ranks(run, placement={"host": "desk"}) if run.plan.arm == "baseline-4" else run

    return cost(change=change)


def not_deterministic() -> Cost:
    """One deterministic run ends in another state, one in NaN."""

    def change(run: Run) -> Run:
        manifest = run.manifest
        assert manifest is not None
        if run.plan.arm == "deterministic-4":
            return _with(run, dataclasses.replace(manifest, run_fingerprint="sb1-" + digest("other")))
        if run.plan.arm == "deterministic-5":
            lost = Unhealthy(rank=1, step=44, name="lm loss", value="nan")
            return _with(run, dataclasses.replace(manifest, unhealthy=(lost,)))
        return run

    return cost(change=change)


def _with(run: Run, manifest: Manifest) -> Run:
    return dataclasses.replace(run, arm=dataclasses.replace(run.arm, certified=_certified(manifest)))


def _with_ranks(run: Run, **groups: dict[str, str]) -> Run:
    manifest = run.manifest
    assert manifest is not None
    ranks = [dataclasses.replace(rank, pins=dataclasses.replace(rank.pins, **groups)) for rank in manifest.ranks]
    return _with(run, dataclasses.replace(manifest, ranks=tuple(ranks)))
