"""How costs are arranged and worded on a page: titles, labels, what a sceptic asks, and pictures told in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.compare.results import GateResult
from samebits.gates.judgement import Judgement
from samebits.overhead.results import Cost, Effect, Findings, PhaseCost, RunTimes, SettingTimes
from samebits.overhead.statistics import STRAGGLER
from samebits.report import figures, words
from samebits.spec.overhead import Experiment

_TITLE: dict[Experiment, str] = {
    "overhead": "Deterministic against baseline",
    "attribution": "Cost of each setting",
    "capture": "Cost of capture, by rung",
    "null": "Baseline against itself",
}
_LEAD: dict[Experiment, str] = {
    "overhead": "All determinism settings of the recipe on, against all of them off, capture off in both.",
    "attribution": "The deterministic run against the same run without one setting: what that setting costs. The costs "
    "need not add up: settings share work, and one can hide behind another.",
    "capture": "Each rung against capture off, both deterministic: what a finer look costs in time and in bytes.",
    "null": "A test of the instrument: the true cost is 0, so the interval should contain 0. An interval misses the "
    "truth in about 5 of 100 such experiments.",
}
_COLUMN: dict[Experiment, str] = {
    "overhead": "comparison",
    "attribution": "setting",
    "capture": "rung",
    "null": "comparison",
}
_CLOCKS = {
    "host": "the host's monotonic clock, read where a phase begins and ends",
    "cuda events": "the device's own time, by CUDA events where a phase begins and ends",
}
_SHOWN_PERCENTILES = (0, 5, 25, 50, 75, 95, 99, 100)


@dataclass(frozen=True, kw_only=True)
class CostEvidence:
    """A cost as the page shows it. key: unique there. limit: percent, where there is one. gate: that rests on it."""

    cost: Cost
    key: str
    limit: float | None
    gate: GateResult | None

    @property
    def findings(self) -> Findings:
        """Raises ValueError where there are none."""
        if self.cost.findings is None:
            raise ValueError(f"{self.cost.experiment}: there are no findings to draw")
        return self.cost.findings

    @property
    def title(self) -> str:
        return _TITLE[self.cost.experiment]

    @property
    def lead(self) -> str:
        return _LEAD[self.cost.experiment]

    @property
    def column(self) -> str:
        """What its effects are called by."""
        return _COLUMN[self.cost.experiment]


def evidence(judgement: Judgement) -> list[CostEvidence]:
    """In the judgement's order; only the experiment `overhead` has a limit and a gate."""
    gate = next((gate for gate in judgement.gates if words.is_measured(gate)), None)
    return [
        CostEvidence(
            cost=cost,
            key=f"cost-{index}",
            limit=cost.limit_percent,
            gate=gate if cost.experiment == "overhead" else None,
        )
        for index, cost in enumerate(judgement.costs)
    ]


def label(effect: Effect) -> str:
    """`fill_uninitialized_memory`, `deterministic against baseline`."""
    return effect.knob or f"{effect.candidate} against {effect.reference}"


def measured_text(cost: Cost) -> str:
    """One line: how much was measured, where, by which clock."""
    parts = [
        f"{words.counted(cost.blocks, 'block')} of {words.counted(cost.steps, 'step')} a run after "
        f"{words.whole(cost.warm_up)} of warm-up",
        words.counted(cost.ranks, "rank"),
        cost.nodes,
        cost.job and f"job {cost.job}",
        f"clock {cost.clock}",
    ]
    return ", ".join(part for part in parts if part)


def contains_zero(effect: Effect) -> bool | None:
    interval = effect.median.interval
    return None if interval is None else interval.low <= 0 <= interval.high


def zero_text(effect: Effect) -> str:
    """Of baseline against itself."""
    inside = contains_zero(effect)
    if inside is None:
        return "There is no interval to contain 0."
    return "The interval contains 0, as it should." if inside else "The interval does not contain 0."


def setting(findings: Findings, name: str) -> SettingTimes | None:
    return next((entry for entry in findings.settings if entry.setting == name), None)


def phases(effects: Sequence[Effect]) -> list[str]:
    """Names of those that take any time in any setting."""
    found = {phase.phase: None for effect in effects for phase in effect.phases if phase.reference or phase.candidate}
    return list(found)


def phase(effect: Effect, name: str) -> PhaseCost | None:
    return next((entry for entry in effect.phases if entry.phase == name), None)


def phase_name(name: str) -> str:
    return "communication, waiting for others included" if name == "communication" else name


def pins_in_force(settings: Sequence[SettingTimes]) -> list[str]:
    return list(dict.fromkeys(name for entry in settings for name in entry.in_force))


def percentiles(settings: Sequence[SettingTimes]) -> list[tuple[str, list[str]]]:
    """(which, a step time of each setting)."""
    names = {0: "fastest", 50: "median of all steps", 100: "slowest"}
    return [
        (names.get(which, f"{which} % are faster"), [figures.step_time(_at(entry, which)) for entry in settings])
        for which in _SHOWN_PERCENTILES
    ]


def _at(entry: SettingTimes, percent: int) -> float:
    """quantiles are evenly spaced."""
    return entry.quantiles[round(percent / 100 * (len(entry.quantiles) - 1))]


def run_row(run: RunTimes) -> tuple[str, ...]:
    return tuple(figures.step_time(value) for value in (run.low, run.median, run.mean, run.high))


def checks(cost: Cost, findings: Findings) -> list[tuple[str, str]]:
    """(what a sceptic asks, the answer)."""
    found = findings.checks
    slow, steps, runs = (
        sum(getattr(entry, name) for entry in findings.settings) for name in ("stragglers", "steps", "runs")
    )
    return [
        (
            "Blocks",
            f"{cost.blocks}, fixed in the recipe before the first run. A block runs its settings forth and back, or "
            "back and forth (A B B A, B A A B), each run in fresh processes. The interval is Student's over the "
            f"blocks' ratios.{_rehearsed(cost)}",
        ),
        ("Scatter of the blocks", _scatter(findings)),
        (
            "Steps",
            f"{words.whole(cost.steps)} timed steps in each of {words.counted(runs, 'run')}. Dropped as "
            f"warm-up: {words.whole(cost.warm_up)} before them, {words.whole(found.warm_up)} in all.",
        ),
        (
            "What is left out",
            f"Drawing batches, {figures.size(found.data * 100)} of all time; "
            f"{words.counted(found.checkpoints, 'step')} beside a checkpoint.",
        ),
        (
            "Outliers",
            "Nothing is removed. A run counts by its median step; the mean stands beside it, for a median hides "
            f"stragglers: {words.whole(slow)} of {words.counted(steps, 'step')} took longer than {STRAGGLER:g} times "
            "their run's median.",
        ),
        ("Drift", _drift(found.drift)),
        ("Are steps independent?", _steps_alike(found.steps)),
        ("Are blocks independent?", _blocks_alike(findings)),
        ("Clock", f"{cost.clock}: {_CLOCKS.get(cost.clock, 'not known')}. A step takes as long as its slowest rank."),
        ("Where", _where(cost)),
    ]


def _rehearsed(cost: Cost) -> str:
    rehearsal = any(not run.block for run in cost.runs)
    return " A rehearsal went before them, of which no figure is made." if rehearsal else ""


def _scatter(findings: Findings) -> str:
    first = findings.effects[0]
    interval = first.median.interval
    spread = "not known" if interval is None else figures.size(interval.spread)
    return f"{spread}: sample standard deviation of one block's ratio ({label(first)})."


def _drift(value: float | None) -> str:
    if value is None:
        return "Not known: too few runs."
    change = figures.number(value, 0 if abs(value) >= 10 else 1)
    return f"{change} % from the first run to the last. What is linear of it cancels within a block."


def _steps_alike(value: float | None) -> str:
    alike = "not known, too few steps" if value is None else f"{figures.correlation(value)} (median over runs)"
    return (
        f"Lag-1 autocorrelation within a run: {alike}. Steps of one process share it and its time, so the block is the "
        "unit, not the step: more steps would not narrow the interval by much."
    )


def _blocks_alike(findings: Findings) -> str:
    found = findings.checks.blocks
    if found is None:
        return "Not known: too few blocks to tell."
    return (
        f"Lag-1 autocorrelation {figures.correlation(found.lag1)}; independent ones stay within "
        f"±{found.bound:.2f} in about 95 of 100."
    )


def _where(cost: Cost) -> str:
    nodes = f" on {cost.nodes}" if cost.nodes else ""
    job = f"one allocation, job {cost.job}" if cost.job else "no scheduler"
    return f"{words.counted(cost.ranks, 'rank')}{nodes}, every run on the same nodes; {job}."


def effects_summary(entry: CostEvidence, findings: Findings) -> str:
    """The forest plot, for those who do not see it."""
    allowed = f"; allowed at most {entry.limit:g} %" if entry.limit is not None else ""
    ranked = sorted(findings.effects, key=lambda effect: effect.median.percent)
    if len(ranked) == 1:
        return f"{_told(ranked[0], entry)}{allowed}"
    return f"{len(ranked)} of them, from {_told(ranked[0], entry)} to {_told(ranked[-1], entry)}{allowed}"


def _told(effect: Effect, entry: CostEvidence) -> str:
    return f"{label(effect)} {figures.estimate(effect.median, entry.limit)}"


def times_summary(settings: Sequence[SettingTimes]) -> str:
    """The distribution, for those who do not see it."""
    return "; ".join(
        f"{entry.setting}: half of {words.counted(entry.steps, 'step')} within {figures.step_time(_at(entry, 25))} to "
        f"{figures.step_time(_at(entry, 75))}, the slowest {figures.step_time(_at(entry, 100))}"
        for entry in settings
    )


def blocks_runs(cost: Cost) -> list[RunTimes]:
    """Without the rehearsal."""
    return [run for run in cost.runs if run.block]


def order_summary(cost: Cost) -> str:
    """The runs in their order, for those who do not see them."""
    known = [run for run in blocks_runs(cost) if run.median is not None]
    if not known:
        return "no run has a time"
    low, high = min(run.median or 0.0 for run in known), max(run.median or 0.0 for run in known)
    return (
        f"{words.counted(len(known), 'run')}, medians from {figures.step_time(low)} to {figures.step_time(high)}; the "
        f"first {figures.step_time(known[0].median)}, the last {figures.step_time(known[-1].median)}"
    )
