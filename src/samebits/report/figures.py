"""How measured numbers are written: never with more digits than their interval supports. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.judge.cost import Cost, PhaseCost
from samebits.judge.overhead import LEVEL, POWER, Estimate

LEVEL_TEXT = f"{LEVEL * 100:g} %"
POWER_TEXT = f"{POWER * 100:g} of 100"
_MOST_DECIMALS = 2
_DIGITS = 4
"""Of a step time: two settings that differ by a few tenths of a percent are told apart."""


def number(value: float, decimals: int) -> str:
    """`1,234.5`, `−0.3`; no zero has a sign."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def decimals(low: float | None, high: float | None, marks: Sequence[float] = (0.0,)) -> int:
    """For an interval's ends and what lies in it. marks: rounding moves no end to the other side of these, within the
    decimals that are ever written."""
    if low is None or high is None:
        return 1
    half = (high - low) / 2
    fewest = 0 if half >= 2 else 1 if half >= 0.2 else _MOST_DECIMALS
    return next((count for count in range(fewest, _MOST_DECIMALS) if _true(low, high, marks, count)), _MOST_DECIMALS)


def _true(low: float, high: float, marks: Sequence[float], count: int) -> bool:
    return all(_side(round(end, count), mark) == _side(end, mark) for end in (low, high) for mark in marks)


def _side(value: float, mark: float) -> int:
    return (value > mark) - (value < mark)


def _digits(found: Estimate, limit: float | None) -> int:
    if found.interval is None:
        return 1
    marks = (0.0,) if limit is None else (0.0, limit)
    return decimals(found.interval.low, found.interval.high, marks)


def percent(found: Estimate, limit: float | None = None) -> str:
    """`3.1 %`."""
    return f"{number(found.percent, _digits(found, limit))} %"


def interval(found: Estimate, limit: float | None = None) -> str:
    """`2.8 to 3.4 %`; for want of one, why."""
    if found.interval is None:
        return "none: one block has none" if found.blocks < 2 else "none: blocks agree more closely than clocks can"
    count = _digits(found, limit)
    return f"{number(found.interval.low, count)} to {number(found.interval.high, count)} %"


def estimate(found: Estimate, limit: float | None = None) -> str:
    """`3.1 % (95 % interval 2.8 to 3.4 %)`."""
    if found.interval is None:
        return f"{percent(found)} (interval {interval(found)})"
    return f"{percent(found, limit)} ({LEVEL_TEXT} interval {interval(found, limit)})"


def detectable(found: Estimate) -> str:
    """`0.6 %`."""
    return "not known" if found.interval is None else size(found.interval.detectable)


def size(value: float) -> str:
    """A percentage that is a width, to two digits at most: `0.44 %`, `1.4 %`, `1,450 %`."""
    return f"{number(value, 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else _MOST_DECIMALS)} %"


def points(phase: PhaseCost) -> str:
    """`1.9`, percentage points."""
    return number(phase.points, decimals(phase.low, phase.high))


def points_interval(phase: PhaseCost) -> str:
    if phase.low is None or phase.high is None:
        return "none"
    count = decimals(phase.low, phase.high)
    return f"{number(phase.low, count)} to {number(phase.high, count)}"


def ratio(value: float, found: Estimate) -> str:
    """One block's, as the estimate it belongs to."""
    return number(value, _digits(found, None))


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


def correlation(value: float) -> str:
    """`+0.30`."""
    return f"{value:+.2f}".replace("-", "−")
