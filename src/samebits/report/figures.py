"""How measured numbers are written: never with more digits than their interval supports. Decides nothing."""

from __future__ import annotations

from samebits.overhead.gate import LEVEL_TEXT, decimals, estimate, interval, number, percent, ratio, size
from samebits.overhead.results import Cost, PhaseCost
from samebits.overhead.statistics import POWER, Estimate

__all__ = [
    "LEVEL_TEXT",
    "POWER_TEXT",
    "correlation",
    "days",
    "days_interval",
    "decimals",
    "detectable",
    "estimate",
    "interval",
    "number",
    "percent",
    "points",
    "points_interval",
    "rate",
    "ratio",
    "size",
    "step_time",
    "unit",
]

POWER_TEXT = f"{POWER * 100:g} of 100"
_DIGITS = 4
"""Of a step time: two settings that differ by a few tenths of a percent are told apart."""


def detectable(found: Estimate) -> str:
    """`0.6 %`."""
    return "not known" if found.interval is None else size(found.interval.detectable)


def points(phase: PhaseCost) -> str:
    """`1.9`, percentage points."""
    return number(phase.points, decimals(phase.low, phase.high))


def points_interval(phase: PhaseCost) -> str:
    if phase.low is None or phase.high is None:
        return "none"
    count = decimals(phase.low, phase.high)
    return f"{number(phase.low, count)} to {number(phase.high, count)}"


def step_time(seconds: float | None) -> str:
    """`251.3 ms`, `1.234 s`, `87.40 µs`; `0 ms`; a dash for None."""
    if seconds is None:
        return "–"
    if seconds <= 0:
        return "0 ms"
    seconds = float(f"{seconds:.{_DIGITS}g}")
    scale, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    before = len(f"{seconds * scale:.0f}")
    return f"{number(seconds * scale, max(0, _DIGITS - before))} {unit}"


def rate(value: float) -> str:
    """`1,790`, `86.4`: tokens a second."""
    return number(value, 0 if value >= 100 else 1)


def unit(cost: Cost) -> str:
    """What a rank is, as far as the clock tells."""
    return "rank" if cost.clock in ("host", "unknown") else "GPU"


def days(cost: Cost, value: float) -> str:
    """`about 300 GPU-days more`, two digits; `fewer` where the candidate is faster."""
    shown = float(f"{abs(value):.2g}")
    if shown < 0.1:
        return f"less than 0.1 {unit(cost)}-days either way"
    return f"about {number(shown, 0 if shown >= 10 else 1)} {unit(cost)}-days {'more' if value > 0 else 'fewer'}"


def days_interval(cost: Cost, ends: tuple[float, float] | None) -> str:
    """`interval −3 to 350`; empty for None."""
    if ends is None:
        return ""
    low, high = (float(f"{end:.2g}") for end in ends)
    count = 0 if max(abs(low), abs(high)) >= 10 else 1
    return f"{LEVEL_TEXT} interval {number(low, count)} to {number(high, count)} {unit(cost)}-days"


def correlation(value: float) -> str:
    """`+0.30`."""
    return f"{value:+.2f}".replace("-", "−")
