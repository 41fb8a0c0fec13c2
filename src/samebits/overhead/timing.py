"""The step times of one run: the slowest rank's, as its clock records say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samebits.fingerprint.clock import TRAINING, ClockPhase, Clocks
from samebits.fingerprint.manifest import Manifest
from samebits.spec.overhead import Timing
from samebits.spec.plan import Plan

Floats = NDArray[np.float64]

AGAIN = "make the experiment again: `samebits overhead RECIPE --again`"


class TimingError(ValueError):
    """A run whose times are no evidence: what is wrong, the way out."""


@dataclass(frozen=True)
class RunClocks:
    """steps: seconds, shape (steps,), of the slowest rank at each step: its TRAINING phases, and CAPTURE where the run
    captures. phases: seconds of that rank, shape (steps, phases). data: share of all time that went into drawing
    batches. checkpoints: steps left out because one was written right before or after. warm_up: steps left out."""

    steps: Floats
    phases: Floats
    data: float
    checkpoints: int
    warm_up: int


def run_clocks(clocks: Clocks, plan: Plan) -> RunClocks:
    """clocks: CLOCK, shape (ranks, steps), of the whole run.

    Raises TimingError where no step is left, or where a step took no time.
    """
    timing = timing_of(plan)
    spent = clocks["spent"].astype(np.float64) / 1e9
    saved = (clocks["saved"] != 0).any(axis=0)
    warm = np.arange(len(saved)) < timing.warm_up
    # What a checkpoint leaves behind, in caches and in threads that still write, is no part of a step either.
    disturbed = saved | np.roll(saved, 1) & (np.arange(len(saved)) > 0)
    kept = spent[:, ~warm & ~disturbed]
    if kept.shape[1] * 2 < np.count_nonzero(~warm) or not kept.shape[1]:
        raise TimingError(
            f"{kept.shape[1]} steps are left of {len(saved)} (warm-up {timing.warm_up}, the rest beside checkpoints), "
            f"must be half of those behind the warm-up; {AGAIN}"
        )
    times = kept[:, :, counted(plan)].sum(axis=2)
    if not (times > 0).all():
        raise TimingError(f"its clock stood still: a step took no time; {AGAIN}")
    slowest, columns = times.argmax(axis=0), np.arange(times.shape[1])
    return RunClocks(
        steps=times[slowest, columns],
        phases=kept[slowest, columns],
        data=float(kept[:, :, ClockPhase.DATA].sum() / kept.sum()),
        checkpoints=int(np.count_nonzero(disturbed & ~warm)),
        warm_up=int(np.count_nonzero(warm)),
    )


def timing_of(plan: Plan) -> Timing:
    if plan.timing is None:
        raise TimingError(f"arm {plan.arm} measures no time; give a run of an experiment")
    return plan.timing


def start_of(manifest: Manifest) -> str:
    """Launch ids are JOB-N, or JOB-N.RESTART: runs of one start of one job have the same JOB and RESTART."""
    job, _, rest = manifest.launch.partition("-")
    return ".".join([job, *rest.split(".")[1:]])


def instruments(manifest: Manifest) -> str | None:
    """What makes a run without capture useless as evidence of time: that it was captured all the same."""
    blocks = [block for block in manifest.blocks if block.moment != "final"]
    if manifest.plan.capture or not blocks:
        return None
    return f"recorded {len(blocks)} blocks beside its final state: an instrumented run is no evidence of time"


def counted(plan: Plan) -> list[int]:
    """Phases that a step time is the sum of."""
    return [*TRAINING, *([ClockPhase.CAPTURE] if plan.capture else [])]
