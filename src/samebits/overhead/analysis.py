"""Judges an experiment from its runs on disk: whether they are evidence of time, and what they say.

What timed runs must have in common: everything but the settings whose cost is measured, and, where they are
deterministic, the state in which they end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from samebits.compare import compatibility
from samebits.compare.certify import Arm, load
from samebits.compare.compare import Excuses, Waivers, compare_arms
from samebits.compare.nodes import jobs_text, nodes_text
from samebits.compare.records import opened
from samebits.fingerprint.manifest import Manifest, read_clocks
from samebits.fingerprint.paths import ArtifactError
from samebits.overhead import effects
from samebits.overhead.effects import TimedRun
from samebits.overhead.results import Cost, RunTimes
from samebits.overhead.timing import AGAIN, RunClocks, TimingError, instruments, run_clocks, start_of, timing_of
from samebits.plan import overhead_runs
from samebits.recipe import determinism
from samebits.spec.overhead import Experiment
from samebits.spec.pins import ABSENT, Deviation
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe


class Made(Protocol):
    """A run that lies on disk."""

    @property
    def plan(self) -> Plan: ...

    @property
    def arm(self) -> Arm: ...

    @property
    def manifest(self) -> Manifest | None: ...


def setting_deviations(recipe: Recipe, runs: Sequence[Made]) -> list[Deviation]:
    """Of each run from its plan and from what it asks for; between the runs in all that is not being measured. runs:
    those with a manifest, in their order."""
    found: dict[tuple[str, str, str], set[int]] = {}
    first_of: dict[str, Made] = {}
    for run in runs:
        own = [(f"{run.plan.arm}: {row.pin}", row) for row in _of_run(recipe, run)]
        alike = first_of.setdefault(timing_of(run.plan).setting, run)
        rows = [*_between(runs[0], run, strict=False), *_between(alike, run, strict=True)]
        for pin, row in (*own, *((row.pin, row) for row in rows)):
            found.setdefault((pin, row.reference, row.candidate), set()).update(row.ranks)
    return [Deviation(*key, ranks=tuple(sorted(ranks))) for key, ranks in found.items()]


def of_arm(reference: Manifest, timed: Manifest) -> list[Deviation]:
    """Of a timed run from an arm whose bits were compared: what was measured on another machine, or with other
    software, is not what it costs there."""
    return [row for row in compatibility.of_surroundings(reference, timed) if not _is_loaded(row)]


def _of_run(recipe: Recipe, run: Made) -> list[Deviation]:
    manifest = run.manifest
    if manifest is None:
        return []
    apart = compatibility.of_plan(run.plan, manifest.plan, compatibility.all_ranks(manifest))
    # A run of another plan does not have in force what this one asks for.
    return apart or compatibility.of_promises(manifest, recipe.pins)


def _between(first: Made, other: Made, *, strict: bool) -> Iterator[Deviation]:
    """strict: of one setting, where nothing may differ."""
    ours, theirs = first.manifest, other.manifest
    if ours is None or theirs is None or ours is theirs:
        return
    if apart := compatibility.of_layout(ours, theirs):
        yield from apart
        return
    measured = set() if strict else _measured(first.plan, other.plan)
    for row in compatibility.of_surroundings(ours, theirs):
        # A library that a fusion or an algorithm loads is part of what is measured.
        if row.pin not in measured and (strict or not _is_loaded(row)):
            yield row
    yield from _elsewhere(ours, theirs)
    if (there := start_of(ours)) != (here := start_of(theirs)):
        yield Deviation(f"{other.plan.arm}: launch", there, here, compatibility.all_ranks(theirs))


def _is_loaded(row: Deviation) -> bool:
    return row.pin.startswith("libraries.") and ABSENT in (row.reference, row.candidate)


def _elsewhere(ours: Manifest, theirs: Manifest) -> Iterator[Deviation]:
    """Time is compared on the same machines and within one allocation."""
    for name, pin in (("node", "placement.node"), ("job", "placement.job"), ("machine", "placement.machine")):
        moved: dict[tuple[str, str], list[int]] = {}
        for first, second in zip(ours.ranks, theirs.ranks, strict=True):
            if (there := _place(first.pins, name)) != (here := _place(second.pins, name)):
                moved.setdefault((there or ABSENT, here or ABSENT), []).append(first.rank)
        for places, ranks in moved.items():
            yield Deviation(pin, *places, ranks=tuple(ranks))


def _place(pins: object, name: str) -> str:
    found = getattr(pins, name)
    return found if isinstance(found, str) else ", ".join(f"{mark} {value}" for mark, value in sorted(found))


def _measured(first: Plan, other: Plan) -> set[str]:
    """Pins in which the two runs are to differ."""
    names = set(first.relaxed) ^ set(other.relaxed)
    fusions = {determinism.UNFUSED[name] for name in names if name in determinism.UNFUSED}
    return {f"{group}.{name}" for group in ("runtime", "environment") for name in names | fusions}


def unhealthy(runs: Sequence[Made]) -> Iterator[str]:
    for run in runs:
        if run.manifest and run.manifest.unhealthy:
            note = run.manifest.unhealthy[0]
            yield f"{run.plan.arm}: {note.name} is {note.value} on rank {note.rank} at step {note.step}"


def apart(recipe: Recipe, runs: Sequence[Made]) -> Iterator[str]:
    """Runs that leave no setting off end in one state, apart from what the recipe waives, or they are not deterministic
    and what they cost is beside the point. runs: of one experiment or of several."""
    settled = [run for run in runs if run.manifest and not run.plan.relaxed]
    for other in settled[1:]:
        if _final(other) == _final(settled[0]):
            continue
        comparison = compare_arms(settled[0].arm, other.arm, Excuses(waived=Waivers(recipe.waivers)))
        if recipe.waivers and comparison.verdict == "pass":
            continue
        where = f" ({comparison.divergence.explanation})" if comparison.divergence else ""
        yield (
            f"{_name(other)} did not end in the state that {_name(settled[0])} ended in{where}: the recipe's settings "
            "do not give the same bits here, so what they cost says nothing; see to the gate repeatability first"
        )
        return


def _final(run: Made) -> bytes:
    """Digests of the final state, of all ranks."""
    return run.arm.certified.table[:, -1, :16].tobytes() if run.arm.certified else b""


def _name(run: Made) -> str:
    timing = timing_of(run.plan)
    return run.plan.arm if timing.experiment == "overhead" else f"{run.plan.arm} of the experiment {timing.experiment}"


STEP_TIMES = "steps.parquet"
_NOT_MADE = "was not made"


@dataclass(frozen=True)
class Run:
    """One run as it lies on disk. problem: why it is no evidence; None exactly where it has clocks. ended: rank 0,
    nanoseconds since the epoch."""

    plan: Plan
    arm: Arm
    clocks: RunClocks | None
    problem: str | None
    ended: int = 0

    @property
    def setting(self) -> str:
        return timing_of(self.plan).setting

    @property
    def manifest(self) -> Manifest | None:
        return self.arm.certified.manifest if self.arm.certified else None


class Runs:
    """All runs of an experiment of the recipe in force. results: folder of all results. slowdown_percent: planted."""

    def __init__(self, recipe: Recipe, experiment: Experiment, results: Path, slowdown_percent: float = 0.0) -> None:
        self.recipe = recipe
        self.experiment = experiment
        self.folder = overhead_runs.folder(results, recipe.name, experiment)
        self.plans = overhead_runs.plans(recipe, experiment, slowdown_percent)

    @cached_property
    def all(self) -> list[Run]:
        return [self._load(plan) for plan in self.plans]

    @property
    def present(self) -> bool:
        """Whether anything of it lies there."""
        return any((self.folder / plan.arm).is_dir() for plan in self.plans)

    def _load(self, plan: Plan) -> Run:
        arm = load(self.folder / plan.arm, plan.arm)
        if not arm.folder.is_dir():
            return Run(plan, arm, None, _NOT_MADE)
        if arm.certified is None:
            return Run(plan, arm, None, arm.problem)
        manifest = arm.certified.manifest
        if manifest.plan.timing is None:
            return Run(plan, arm, None, f"{plan.arm}: is no timed run but arm {manifest.plan.arm}; take it away")
        if problem := instruments(manifest) or _planted(manifest):
            return Run(plan, arm, None, f"{plan.arm}: {problem}")
        try:
            clocks = run_clocks(read_clocks(arm.certified.artifact, manifest), manifest.plan)
            return Run(plan, arm, clocks, None, opened(arm.certified, 0).blocks[-1].started)
        except (TimingError, ArtifactError, OSError) as error:
            return Run(plan, arm, None, f"{plan.arm}: {error}")


def measure(runs: Runs) -> Cost:
    """Never raises for missing or damaged runs: they are problems, and no effect is stated."""
    problems = [*_missing(runs.all), *(run.problem for run in runs.all if run.problem not in (None, _NOT_MADE))]
    problems = problems or list(_disordered(runs.all))
    whole = [run for run in runs.all if run.manifest is not None]
    deviations = setting_deviations(runs.recipe, whole)
    # Runs that are not comparable may end in different states for that reason.
    failures = [] if deviations else [*unhealthy(whole), *apart(runs.recipe, whole)]
    found = None
    if not problems and not deviations and not failures:
        try:
            found = effects.findings(runs.recipe, runs.experiment, _times(runs.all))
        except ValueError as error:
            problems.append(str(error))
    lead = whole[0].manifest if whole else None
    return Cost(
        experiment=runs.experiment,
        blocks=timing_of(runs.plans[0]).blocks,
        steps=runs.plans[0].last_step - timing_of(runs.plans[0]).warm_up,
        warm_up=timing_of(runs.plans[0]).warm_up,
        limit_percent=_limit(runs),
        ranks=runs.recipe.parallel.world,
        nodes=nodes_text(lead) if lead else "",
        job=jobs_text(lead) if lead else "",
        start=start_of(lead) if lead else "",
        clock=lead.ranks[0].pins.runtime.get("clock", "unknown") if lead else "unknown",
        problems=tuple(dict.fromkeys(problems)),
        deviations=tuple(deviations),
        failures=tuple(failures),
        runs=tuple(_run_times(run) for run in runs.all),
        file=str(runs.folder / STEP_TIMES),
        findings=found,
    )


def _missing(runs: Sequence[Run]) -> Iterator[str]:
    names = [run.plan.arm for run in runs if run.problem == _NOT_MADE]
    if names:
        few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        yield f"{len(names)} of {len(runs)} runs were not made ({few})"


def _planted(manifest: Manifest) -> str | None:
    if not manifest.plan.faults and not manifest.planted:
        return None
    return f"carries a planted fault: what it takes is not the recipe's; {AGAIN}"


def _disordered(runs: Sequence[Run]) -> Iterator[str]:
    """Drift cancels in the order that was planned; whether it was kept is told by when each run ended."""
    for before, after in itertools.pairwise(runs):
        if after.ended < before.ended:
            yield f"{after.plan.arm}: ended before {before.plan.arm}, which it must follow; {AGAIN}"


def _limit(runs: Runs) -> float | None:
    """A planted slowdown is held to none."""
    wanted, planted = runs.recipe.overhead, any(timing_of(plan).slowdown_percent for plan in runs.plans)
    return wanted.limit_percent if wanted and runs.experiment == "overhead" and not planted else None


def _times(runs: Sequence[Run]) -> list[TimedRun]:
    """Of all blocks; the rehearsal counts for nothing."""
    found = [TimedRun(timing_of(run.plan), run.clocks, run.manifest) for run in runs if run.clocks and run.manifest]
    return [run for run in found if run.timing.block]


def _run_times(run: Run) -> RunTimes:
    timing, steps = timing_of(run.plan), run.clocks.steps if run.clocks else None
    low, median, high = np.percentile(steps, (5, 50, 95)).tolist() if steps is not None else (None, None, None)
    return RunTimes(
        arm=run.plan.arm,
        setting=timing.setting,
        block=timing.block,
        steps=0 if steps is None else len(steps),
        low=low,
        median=median,
        mean=None if steps is None else float(steps.mean()),
        high=high,
        seal=run.manifest.clocks if run.manifest else "",
        problem=run.problem,
    )
