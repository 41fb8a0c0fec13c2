"""From the times of an experiment's runs to its effects: what each candidate takes beyond its reference, and how far
that can be believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samebits.fingerprint.clock import TRAINING, ClockPhase
from samebits.fingerprint.manifest import Manifest
from samebits.overhead import statistics
from samebits.overhead.gate import estimate, percent
from samebits.overhead.results import Checks, Effect, Findings, PhaseCost, SettingTimes
from samebits.overhead.timing import RunClocks
from samebits.plan import overhead_runs
from samebits.recipe import determinism
from samebits.spec.overhead import Experiment, Timing
from samebits.spec.sections import Recipe, built_in

Floats = NDArray[np.float64]

DAYS = 100
_QUANTILES = 101
_LARGE_SHARE = 1.0
"""Percent of a step."""
_LARGE_DRIFT = 5.0
"""Percent over the experiment: beyond it the machine was not at rest."""


@dataclass(frozen=True)
class TimedRun:
    timing: Timing
    clocks: RunClocks
    manifest: Manifest


def findings(recipe: Recipe, experiment: Experiment, runs: Sequence[TimedRun]) -> Findings:
    """runs: all of the experiment, in their order."""
    found = tuple(_effect(experiment, pair, runs) for pair in overhead_runs.pairs(recipe, experiment))
    checks = _checks(found[0], runs)
    settings = tuple(_setting(recipe, name, runs) for name in overhead_runs.settings(recipe, experiment))
    return Findings(
        effects=found,
        settings=settings,
        checks=checks,
        cautions=(
            *_cautions(checks, found),
            *_outside(settings, runs),
            *_lacking(experiment, runs),
            *_without_effect(experiment, found, settings),
        ),
        gpu_days=_days(recipe, found[0].median.percent),
        gpu_days_interval=_days_interval(recipe, found[0]),
    )


def _days(recipe: Recipe, share: float) -> float:
    return share / 100 * DAYS * recipe.parallel.world


def _days_interval(recipe: Recipe, effect: Effect) -> tuple[float, float] | None:
    interval = effect.median.interval
    return None if interval is None else (_days(recipe, interval.low), _days(recipe, interval.high))


def _effect(experiment: Experiment, pair: tuple[str, str], runs: Sequence[TimedRun]) -> Effect:
    reference, candidate = (_of(name, runs) for name in pair)
    medians = statistics.block_ratios(_by_block(reference, np.median), _by_block(candidate, np.median))
    # Without capture, what its watcher does is no part of a step.
    phases = (*TRAINING, ClockPhase.CAPTURE) if experiment == "capture" else TRAINING
    means = statistics.block_ratios(_by_block(reference, np.mean), _by_block(candidate, np.mean))
    return Effect(
        reference=pair[0],
        candidate=pair[1],
        knob=overhead_runs.knob(experiment, pair),
        median=statistics.estimate(medians),
        mean=statistics.estimate(means),
        ratios=tuple((np.expm1(medians) * 100).tolist()),
        phases=tuple(_phase(phase, reference, candidate) for phase in phases),
    )


def _of(setting: str, runs: Sequence[TimedRun]) -> list[TimedRun]:
    return [run for run in runs if run.timing.setting == setting]


def _by_block(runs: Sequence[TimedRun], statistic: Callable[[Floats], Any]) -> Floats:
    """Of each run's steps, shape (blocks, 2)."""
    return np.array([float(statistic(run.clocks.steps)) for run in runs]).reshape(-1, 2)


def _phase(phase: ClockPhase, reference: Sequence[TimedRun], candidate: Sequence[TimedRun]) -> PhaseCost:
    """A difference of means, in shares of the reference's step: those of all phases add up, ratios would not."""
    ours, theirs = _phase_means(phase, reference), _phase_means(phase, candidate)
    steps = _by_block(reference, np.mean).mean(axis=1)
    points = (theirs.mean(axis=1) - ours.mean(axis=1)) / steps * 100
    half = _half_width(points)
    return PhaseCost(
        phase=phase.name.lower(),
        reference=float(ours.mean()),
        candidate=float(theirs.mean()),
        points=float(points.mean()),
        low=None if half is None else float(points.mean()) - half,
        high=None if half is None else float(points.mean()) + half,
    )


def _half_width(values: Floats) -> float | None:
    """Of Student's interval on the mean, at LEVEL; None for one value."""
    if len(values) < 2:
        return None
    return float(statistics.half_widths(len(values), float(values.std(ddof=1))))


def _phase_means(phase: ClockPhase, runs: Sequence[TimedRun]) -> Floats:
    return np.array([run.clocks.phases[:, phase].mean() for run in runs]).reshape(-1, 2)


def _setting(recipe: Recipe, name: str, runs: Sequence[TimedRun]) -> SettingTimes:
    own = _of(name, runs)
    steps = np.concatenate([run.clocks.steps for run in own])
    median = _geometric([float(np.median(run.clocks.steps)) for run in own])
    trained = built_in(recipe)
    tokens = trained.data.global_batch * trained.model.sequence_length / recipe.parallel.world
    return SettingTimes(
        setting=name,
        runs=len(own),
        steps=len(steps),
        median=median,
        mean=_geometric([float(run.clocks.steps.mean()) for run in own]),
        quantiles=tuple(np.quantile(steps, np.linspace(0, 1, _QUANTILES)).tolist()),
        tokens=tokens / median,
        stragglers=sum(statistics.stragglers(run.clocks.steps) for run in own),
        bytes_a_step=_bytes_a_step(own[0]),
        in_force=_in_force(own[0].manifest, runs),
        end_states=len({run.manifest.run_fingerprint for run in own}),
    )


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _bytes_a_step(run: TimedRun) -> float | None:
    """Of the fingerprint, the file's fixed parts spread over its steps."""
    plan = run.manifest.plan
    if not plan.capture:
        return None
    return sum(file.bytes for file in run.manifest.ranks) / len(run.manifest.ranks) / plan.last_step


def _in_force(manifest: Manifest, runs: Sequence[TimedRun]) -> dict[str, str]:
    """As rank 0 read them back, those that are not the same in all settings."""
    names = [*determinism.FLAGS, determinism.DETERMINISTIC_MODE, *determinism.UNFUSED.values()]
    names += [variable.name for variable in determinism.ACCEPTED]
    first = [_read_back(run.manifest) for run in runs]
    return {
        name: value
        for name, value in _read_back(manifest).items()
        if name in names and any(other.get(name) != value for other in first)
    }


def _read_back(manifest: Manifest) -> dict[str, str]:
    own = manifest.ranks[0].pins
    unset = dict.fromkeys((variable.name for variable in determinism.ACCEPTED), "not set")
    return {**unset, **own.runtime, **own.environment}


def _checks(effect: Effect, runs: Sequence[TimedRun]) -> Checks:
    correlations = [found for run in runs if (found := statistics.autocorrelation(run.clocks.steps)) is not None]
    medians = [float(np.median(run.clocks.steps)) for run in runs]
    return Checks(
        drift=statistics.drift(medians, [run.timing.setting for run in runs]),
        steps=float(np.median(correlations)) if correlations else None,
        blocks=statistics.blocks_autocorrelation(np.log1p(np.array(effect.ratios) / 100)),
        data=float(np.mean([run.clocks.data for run in runs])),
        checkpoints=sum(run.clocks.checkpoints for run in runs),
        warm_up=sum(run.clocks.warm_up for run in runs),
    )


def _cautions(checks: Checks, effects: Sequence[Effect]) -> Iterator[str]:
    if checks.drift is not None and abs(checks.drift) > _LARGE_DRIFT:
        yield (
            f"runs changed by {checks.drift:+.1f} % from the first to the last: what is linear of it cancels within "
            "blocks, the machine was not at rest all the same"
        )
    if checks.blocks is not None and abs(checks.blocks.lag1) > checks.blocks.bound:
        yield (
            f"neighbouring blocks are correlated ({checks.blocks.lag1:+.2f}, beyond {checks.blocks.bound:.2f}): the "
            "interval may be too narrow"
        )
    if effects[0].median.blocks < statistics.BLOCKS_NEEDED:
        yield f"fewer than {statistics.BLOCKS_NEEDED} blocks decide nothing, whatever the figures say"
    for effect in effects:
        if _disagree(effect):
            yield (
                f"{effect.candidate} against {effect.reference}: by the runs' mean step times it is "
                f"{estimate(effect.mean)}, which the median's {percent(effect.median)} is not in: slow steps weigh in"
            )


def _outside(settings: Sequence[SettingTimes], runs: Sequence[TimedRun]) -> Iterator[str]:
    """Time that no step counts and that one setting takes more of than another."""
    shares = {}
    for setting in settings:
        own = _of(setting.setting, runs)
        outside = np.concatenate([run.clocks.phases[:, [ClockPhase.DATA, ClockPhase.OTHER]].sum(axis=1) for run in own])
        shares[setting.setting] = float(np.median(outside)) / settings[0].median * 100
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    if shares[high] - shares[low] > _LARGE_SHARE:
        yield (
            f"drawing batches and logging, which no step counts, took {shares[high]:.1f} % of a step in {high} and "
            f"{shares[low]:.1f} % in {low}: a cost may hide there"
        )


def _lacking(experiment: Experiment, runs: Sequence[TimedRun]) -> Iterator[str]:
    """Fusions that a baseline may have and has not."""
    for run in runs[:1] if experiment == "overhead" else ():
        found = _read_back(run.manifest)
        for name, fusion in determinism.UNFUSED.items():
            if name in run.timing.relaxed and found.get(fusion) == "False":
                yield f"{fusion} is off in {run.timing.setting}, too: this installation lacks it"


def _without_effect(
    experiment: Experiment, effects: Sequence[Effect], settings: Sequence[SettingTimes]
) -> Iterator[str]:
    """Settings that were left off and yet leave everything in force as it was: this installation lacks what they
    forbid."""
    in_force = {setting.setting: setting.in_force for setting in settings}
    for effect in effects if experiment in ("overhead", "attribution") else ():
        if in_force[effect.reference] == in_force[effect.candidate]:
            name = effect.knob or effect.candidate
            yield (
                f"{name}: with and without it the same settings are in force here, so this compares a run with itself; "
                "the installation may lack what it forbids"
            )


def _disagree(effect: Effect) -> bool:
    interval = effect.mean.interval
    return interval is not None and not interval.low <= effect.median.percent <= interval.high
