"""The gate `overhead`: whether determinism costs at most what the recipe allows, in one sentence with its interval.

How measured percentages are written: never with more digits than their interval supports. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from samebits.compare.results import GateResult
from samebits.fingerprint.format import ranks_text
from samebits.overhead import statistics
from samebits.overhead.results import Cost, Effect
from samebits.overhead.statistics import BLOCKS_NEEDED, LEVEL, Estimate
from samebits.overhead.timing import AGAIN
from samebits.spec.overhead import Overhead
from samebits.spec.pins import Deviation
from samebits.spec.verdicts import Verdict

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


def judge_overhead(
    cost: Cost, wanted: Overhead, failures: Sequence[str] = (), apart: Sequence[Deviation] = ()
) -> GateResult:
    """failures: of the recipe's further experiments. apart: of the timed runs from the arms whose bits are compared."""
    verdict, explanation = _judged(cost, wanted, [*cost.failures, *failures], [*cost.deviations, *apart])
    return GateResult(gate="overhead", verdict=verdict, explanation=explanation, comparisons=())


def evidence(cost: Cost) -> Verdict:
    """Whether its runs are evidence of time at all; `pass` says no more than that."""
    if cost.failures:
        return "fail"
    if cost.deviations:
        return "invalid"
    return "pass" if cost.findings else "inconclusive"


def _judged(
    cost: Cost, wanted: Overhead, failures: Sequence[str], deviations: Sequence[Deviation]
) -> tuple[Verdict, str]:
    if failures:
        return "fail", failures[0]
    if deviations:
        return "invalid", f"the runs are not comparable: {_told(deviations)}; {AGAIN}"
    if cost.findings is None:
        rest = f" (and {len(cost.problems) - 1} more)" if len(cost.problems) > 1 else ""
        told = f"{cost.problems[0].strip()}{rest}" if cost.problems else "no run was made"
        way_out = "" if AGAIN in told else "; `samebits overhead RECIPE` makes what is missing"
        return "inconclusive", f"not all runs are evidence: {told}{way_out}"
    effect = cost.findings.effects[0]
    verdict = statistics.decide(effect.median, wanted.limit_percent)
    if verdict == "pass" and statistics.decide(effect.mean, wanted.limit_percent) == "fail":
        return "inconclusive", _slow_steps(effect, wanted)
    return verdict, _SAID[verdict](effect.median, wanted)


def _told(deviations: Sequence[Deviation]) -> str:
    row, more = deviations[0], len(deviations) - 1
    rest = f" (and {more} more)" if more else ""
    return f"{row.pin} is {row.reference} and {row.candidate}, ranks {ranks_text(row.ranks)}{rest}"


def _said(found: Estimate, wanted: Overhead) -> str:
    return f"determinism costs {estimate(found, wanted.limit_percent)} of a step"


def _slow_steps(effect: Effect, wanted: Overhead) -> str:
    return (
        f"{_said(effect.median, wanted)} by the median, and {estimate(effect.mean, wanted.limit_percent)} by the mean, "
        f"which is more than the allowed {wanted.limit_percent:g} %: some steps are slow with determinism only; look "
        "at the report's step times"
    )


def _pass(found: Estimate, wanted: Overhead) -> str:
    return f"{_said(found, wanted)}, at most the allowed {wanted.limit_percent:g} %"


def _fail(found: Estimate, wanted: Overhead) -> str:
    return f"{_said(found, wanted)}, more than the allowed {wanted.limit_percent:g} %"


def _inconclusive(found: Estimate, wanted: Overhead) -> str:
    said = _said(found, wanted)
    if found.blocks >= BLOCKS_NEEDED and found.interval is None:
        return f"{said}: all blocks agree more closely than clocks can, so these are no measurements; {AGAIN}"
    if found.blocks < BLOCKS_NEEDED:
        return (
            f"{said}; {found.blocks} block{'s decide' if found.blocks > 1 else ' decides'} nothing, at least "
            f"{BLOCKS_NEEDED} are needed: {_more(found, wanted)}"
        )
    return f"{said}, on both sides of the allowed {wanted.limit_percent:g} %: {_more(found, wanted)}"


def _more(found: Estimate, wanted: Overhead) -> str:
    """How many blocks would decide."""
    if found.interval is None:
        return f"set overhead.blocks to {BLOCKS_NEEDED} or more, and run the experiment anew"
    blocks = statistics.blocks_to_decide(found, wanted.limit_percent)
    if blocks is None:
        return f"the cost lies too near the limit, more than {statistics.MOST_BLOCKS} blocks would be needed"
    more = blocks - found.blocks
    return (
        f"about {more} more block{'s' * (more != 1)} would decide, if cost and scatter stay as they are; set "
        f"overhead.blocks to {blocks} or more, and run the experiment anew"
    )


_SAID = {"pass": _pass, "fail": _fail, "inconclusive": _inconclusive}
