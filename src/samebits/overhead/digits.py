"""How measured percentages are written: never with more digits than their interval supports. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.overhead.statistics import LEVEL, Estimate

LEVEL_TEXT = f"{LEVEL * 100:g} %"
_MOST_DECIMALS = 2


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


def size(value: float) -> str:
    """A percentage that is a width, to two digits at most: `0.44 %`, `1.4 %`, `1,450 %`."""
    return f"{number(value, 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else _MOST_DECIMALS)} %"


def ratio(value: float, found: Estimate) -> str:
    """One block's, as the estimate it belongs to."""
    return number(value, _digits(found, None))
