"""What an experiment says about time, as it is written to JSON and presented."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.overhead.statistics import Correlation, Estimate
from samebits.spec.overhead import Experiment
from samebits.spec.pins import Deviation


@dataclass(frozen=True, kw_only=True)
class PhaseCost:
    """One phase of a mean step. reference, candidate: seconds, geometric mean of runs. points: percentage points of the
    reference's step time that it adds, with low and high at the same level as estimates; None below two blocks."""

    phase: str
    reference: float
    candidate: float
    points: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What the candidate takes beyond the reference. knob: the determinism setting or rung that makes the difference,
    empty where all do. median, mean: of ratios of the runs' median and mean step times. ratios: percent, of the
    medians, by block."""

    reference: str
    candidate: str
    knob: str
    median: Estimate
    mean: Estimate
    ratios: tuple[float, ...]
    phases: tuple[PhaseCost, ...]


@dataclass(frozen=True, kw_only=True)
class SettingTimes:
    """All runs of one setting. median, mean: seconds a step, geometric mean over runs. quantiles: seconds, of all its
    steps, evenly spaced from the fastest to the slowest. tokens: a second and rank, at the median. stragglers: steps.
    bytes_a_step: of fingerprint a step and rank; None where nothing was captured. in_force: settings that ranks read
    back, and that another setting of the experiment has otherwise. end_states: different run fingerprints of its
    runs."""

    setting: str
    runs: int
    steps: int
    median: float
    mean: float
    quantiles: tuple[float, ...]
    tokens: float
    stragglers: int
    bytes_a_step: float | None
    in_force: dict[str, str]
    end_states: int


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """One run, in the order in which they were made. low, median, high: seconds, 5th, 50th and 95th percentile of its
    steps. seal: sha256 of its clock records. problem: why it is no evidence."""

    arm: str
    setting: str
    block: int
    steps: int
    low: float | None
    median: float | None
    mean: float | None
    high: float | None
    seal: str
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What a sceptic asks. drift: percent from the first run to the last. steps: lag-1 autocorrelation of a run's
    steps, median over runs. blocks: of the block ratios. data: share of all time that went into drawing batches, 0..1,
    excluded. checkpoints, warm_up: steps excluded."""

    drift: float | None
    steps: float | None
    blocks: Correlation | None
    data: float
    checkpoints: int
    warm_up: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What runs that are evidence say. cautions: what to bear in mind. gpu_days: a hundred days' worth of the first
    effect at this number of ranks; gpu_days_interval: of its interval."""

    effects: tuple[Effect, ...]
    settings: tuple[SettingTimes, ...]
    checks: Checks
    cautions: tuple[str, ...]
    gpu_days: float
    gpu_days_interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One experiment. problems, deviations, failures: why it is no evidence, why its runs are not comparable, and what
    they do that they must not; without any there are findings. limit_percent: of the gate; None of other experiments.
    ranks: of one run. start: of the job, its launch id. clock: what was timed by. file: raw
    step times, Parquet."""

    experiment: Experiment
    blocks: int
    steps: int
    warm_up: int
    limit_percent: float | None
    ranks: int
    nodes: str
    job: str
    start: str
    clock: str
    problems: tuple[str, ...]
    deviations: tuple[Deviation, ...]
    failures: tuple[str, ...]
    runs: tuple[RunTimes, ...]
    findings: Findings | None
    file: str
