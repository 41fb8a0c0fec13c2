"""What a setting costs: the ratio of step times of two settings, with an interval, from blocks of fresh processes.

A block runs its settings forth and back: A B B A, or S0 S1 .. Sk Sk .. S1 S0 for several. Each run is a fresh process
and counts by one number, the median of its step times (the mean, apart). A block gives one log ratio d in which
whatever drifts linearly cancels; the blocks' d are as good as independent, so Student's interval on their mean holds.
Steps and runs are no unit: those of one process, or in one stretch of time, are alike, and intervals that resample
them cover too little (tests/overhead/test_overhead.py shows by how much).

Nothing is removed as an outlier. A median hardly moves with stragglers; that is why the mean's ratio stands beside it.

Not claimed: that several candidates of one block are covered jointly (each interval holds at LEVEL alone); that the
cost is the same on other nodes; anything where the number of blocks was chosen while looking at the result, or where
the machine is disturbed with the very period of a block.

Percent throughout is that of a ratio, (exp(x) - 1) x 100 for a distance x between logs; 0.5 reads "half a percent".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, nctdtrinc, stdtrit

from samebits.spec.verdicts import Verdict

Floats = NDArray[np.float64]

BLOCKS_NEEDED = 4
"""Fewer decide nothing: at 3 the interval is 1.6 times as wide as at 4, and no check can look at the blocks."""
LEVEL = 0.95
"""Share of two-sided intervals that hold the true ratio."""
POWER = 0.80
ASSURANCE = 0.9
"""Share of experiments whose interval comes out as narrow as planned."""
SPREAD_ASSUMED = 0.6
"""Percent; sample standard deviation of d to plan with before anything was measured. From the simulation in
tests/timing_noise.py, 100 steps a run, medians (of means: 1.4); measured blocks of the machine at hand are better."""
MOST_BLOCKS = 1000
"""No plan asks for more."""
MOST_RATIO = 1e6
"""Between any two step times of an experiment. Beyond it they are not in one unit."""
FINEST = 1e-9
"""Spread of d below which it tells of the clock (1 ns in a step of 1 s) or of copied records, not of the machine."""
STRAGGLER = 1.5
"""Times its run's median: a step beyond straggles."""
_MOST_LOG = 700.0
"""Its exponential is a float."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What the scatter of the blocks tells, percent. low, high: of the ratio, at LEVEL. half_width: from its middle.
    spread: sample standard deviation of d. detectable: smallest true effect that POWER of such samples would tell from
    0."""

    low: float
    high: float
    half_width: float
    spread: float
    detectable: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """percent: by how much the candidate takes longer than the reference; negative where it is faster. interval: None
    with one block, and where the blocks agree to FINEST: real clocks do not, so there is nothing to trust."""

    percent: float
    blocks: int
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """lag1: of neighbours, -1..1. bound: independent ones stay within it in about 95 of 100."""

    lag1: float
    bound: float


def block_ratios(reference: ArrayLike, candidate: ArrayLike) -> Floats:
    """d = (log B1 + log B2 - log A1 - log A2) / 2 of each block, shape (blocks,).

    reference (A), candidate (B): seconds, shape (blocks, 2): a block's first and second run of that setting, each run's
    median step time, or each run's mean. In A B B A, and between any two settings of a longer palindrome, both
    settings stand at the same mean time, so that a drift linear in time cancels (Cox, Some systematic experimental
    designs, Biometrika 38, 1951).
    ValueError: other shapes; times that are not positive and finite; times more than MOST_RATIO apart."""
    first, second = _times("reference", reference), _times("candidate", candidate)
    if first.shape != second.shape or first.shape != (len(first), 2):
        shapes = f"{first.shape} and {second.shape}"
        raise ValueError(f"reference and candidate have shapes {shapes}: must be (blocks, 2) both")
    logs = np.log(_in_one_unit(np.stack([second, first]))).mean(axis=2)
    return np.asarray(logs[0] - logs[1])


def estimate(ratios: ArrayLike) -> Estimate:
    """ratios: d of `block_ratios`. Student's interval, mean(d) -+ t(n-1) s / sqrt(n) (Student, The probable error of a
    mean, Biometrika 6, 1908), carried over to percent.
    ValueError: no block; d that is not finite, or beyond log(MOST_RATIO)."""
    d = _ratios(ratios)
    mean, blocks, spread = float(d.mean()), len(d), _spread(d)
    if spread is None:
        return Estimate(percent=_percent(mean), blocks=blocks, interval=None)
    half, wide = float(half_widths(blocks, spread)), _percent(spread)
    interval = Interval(
        low=_percent(mean - half),
        high=_percent(mean + half),
        half_width=_percent(half),
        spread=wide,
        detectable=detectable(blocks, wide),
    )
    return Estimate(percent=_percent(mean), blocks=blocks, interval=interval)


def decide(found: Estimate, limit: float) -> Verdict:
    """limit: percent, the most that the candidate may cost. `pass`: the whole interval is at or below it. `fail`: the
    whole interval is above. Else, and below BLOCKS_NEEDED blocks: `inconclusive`.
    ValueError: a limit that is not finite, or not above -100."""
    _log(limit, "limit")
    if found.interval is None or found.blocks < BLOCKS_NEEDED:
        return "inconclusive"
    if found.interval.high <= limit:
        return "pass"
    return "fail" if found.interval.low > limit else "inconclusive"


def blocks_to_decide(found: Estimate, limit: float) -> int | None:
    """Blocks in all, at least BLOCKS_NEEDED and those there are, with which the interval would lie on one side of the
    limit, should estimate and spread come out the same. None: more than MOST_BLOCKS, or no interval to go by.

    A plan for a new experiment: adding blocks to this one until it decides would no longer cover at LEVEL. An estimate
    comes out nearer to the limit about every second time, so that a plan is better rounded up."""
    distance = abs(_log(found.percent, "estimate") - _log(limit, "limit"))
    if found.interval is None:
        return None
    counts = np.arange(max(BLOCKS_NEEDED, found.blocks), MOST_BLOCKS + 1)
    return _first(counts, half_widths(counts, _log(found.interval.spread, "spread")) < distance)


def detectable(blocks: int, spread: float) -> float:
    """Minimum detectable effect, percent: the smallest true slowdown that POWER of experiments with so many blocks
    tell from 0 at LEVEL, two-sided. spread: percent.

    The noncentrality of Student's t at which POWER of samples exceed the critical value (Johnson, Kotz, Balakrishnan,
    Continuous Univariate Distributions 2, 1995, ch. 31), times s / sqrt(n). The usual t(LEVEL) + t(POWER) in its place
    (Bloom, Evaluation Review 19, 1995) is 14 % too small at 2 blocks and 2 % at 4.
    ValueError: fewer than 2 blocks; a spread that is not positive."""
    noncentrality = float(nctdtrinc(blocks - 1, 1 - POWER, _critical(blocks)))
    return _percent(noncentrality * _positive(spread, "spread") / math.sqrt(blocks))


def half_width(blocks: int, spread: float, assurance: float = ASSURANCE) -> float:
    """Percent: the half-width that the interval keeps within in a share `assurance` of experiments of so many blocks.
    spread: percent, true standard deviation of d.

    t(n-1) / sqrt(n) times the upper quantile of s, sigma sqrt(chi2(n-1) / (n-1)) (Kupper and Hafner, How appropriate
    are popular sample size formulas?, The American Statistician 43, 1989; Hahn and Meeker, Statistical Intervals,
    1991, ch. 8).
    ValueError: fewer than 2 blocks; a spread that is not positive; an assurance outside 0.5..1."""
    return _percent(float(_assured(np.asarray(blocks), _positive(spread, "spread"), assurance)))


def blocks_for(width: float, spread: float = SPREAD_ASSUMED, assurance: float = ASSURANCE) -> int:
    """Blocks to plan, at least BLOCKS_NEEDED, for a half-width of at most `width`: the inverse of `half_width`.
    ValueError: as there; more than MOST_BLOCKS needed."""
    counts = np.arange(BLOCKS_NEEDED, MOST_BLOCKS + 1)
    widths = _assured(counts, _positive(spread, "spread"), assurance)
    blocks = _first(counts, widths <= _positive(width, "half-width"))
    if blocks is None:
        rule = f"more than {MOST_BLOCKS} blocks at a spread of {spread:g} %"
        raise ValueError(f"half-width {width:g} % needs {rule}; ask for {_percent(float(widths[-1])):.2g} % or more")
    return blocks


def drift(times: ArrayLike, settings: Sequence[str]) -> float:
    """Percent by which runs got slower from the first to the last: least-squares slope of log time over run order,
    with one level a setting. Linear, it has cancelled in `block_ratios`; large, it says that the machine was not at
    rest. times: seconds, one a run, in the order they ran. settings: which one each run had.
    ValueError: other shapes; bad times; settings that cannot be told from order, such as A A B B."""
    seconds = _in_one_unit(_times("runs", times))
    if seconds.shape != (len(settings),):
        raise ValueError(f"runs: times have shape {seconds.shape}, must be ({len(settings)},): one for each setting")
    levels = np.equal.outer(list(settings), sorted(set(settings)))
    design = np.column_stack([levels, np.linspace(0, 1, len(settings))])
    fitted, _, rank, _ = np.linalg.lstsq(design, np.log(seconds), rcond=None)
    if rank < design.shape[1] or len(settings) <= design.shape[1]:
        raise ValueError(f"runs: {', '.join(settings)}: too few to tell drift from settings; run each twice, A B B A")
    return _percent(float(fitted[-1]))


def autocorrelation(steps: ArrayLike) -> float | None:
    """Lag 1, -1..1, of one run's step times (Box and Jenkins, Time Series Analysis, 1970, ch. 2). Above 0, a run of n
    steps tells less than n steps would: the reason that blocks are the unit. Stragglers pull it towards 0. steps:
    seconds in their order, shape (steps,). None: fewer than 3 steps, or all the same."""
    return _lag1(_run(steps))


def blocks_autocorrelation(ratios: ArrayLike) -> Correlation | None:
    """Lag 1 of d over blocks, with the bound 2 / sqrt(n) (Bartlett, Supplement to the JRSS 8, 1946): beyond it the
    interval may be too narrow. A weak check: at 8 blocks the bound is 0.71. None: fewer than 6 blocks, or no spread."""
    d = _ratios(ratios)
    lag1 = _lag1(d) if len(d) >= 6 and _spread(d) is not None else None
    return None if lag1 is None else Correlation(lag1=lag1, bound=2 / math.sqrt(len(d)))


def stragglers(steps: ArrayLike) -> int:
    """Steps of one run that took longer than STRAGGLER times its median. steps: seconds, shape (steps,)."""
    seconds = _run(steps)
    return int(np.count_nonzero(seconds > STRAGGLER * np.median(seconds)))


def _times(what: str, values: ArrayLike) -> Floats:
    times = np.asarray(values, dtype=np.float64)
    if not times.size:
        raise ValueError(f"{what}: no times")
    bad = times[~(np.isfinite(times) & (times > 0))]
    if bad.size:
        raise ValueError(f"{what}: a time is {bad[0]:g} s, must be positive and finite")
    return times


def _run(steps: ArrayLike) -> Floats:
    seconds = _times("steps", steps)
    if seconds.ndim != 1:
        raise ValueError(f"steps: times have shape {seconds.shape}, must be (steps,): one run at a time")
    return seconds


def _in_one_unit(times: Floats) -> Floats:
    low, high = float(times.min()), float(times.max())
    if high / MOST_RATIO > low:
        raise ValueError(f"times from {low:g} s to {high:g} s: more than {MOST_RATIO:g} apart; are all in seconds?")
    return times


def _ratios(values: ArrayLike) -> Floats:
    d = np.asarray(values, dtype=np.float64)
    if d.ndim != 1 or not d.size:
        raise ValueError(f"log ratios have shape {d.shape}, must be (blocks,) with a block at least")
    if not np.all(np.abs(d) <= math.log(MOST_RATIO) * (1 + 1e-12)):
        raise ValueError(f"log ratios are {d.min():g} to {d.max():g}, must be within -+log({MOST_RATIO:g})")
    return d


def _spread(d: Floats) -> float | None:
    spread = float(d.std(ddof=1)) if len(d) > 1 else 0.0
    return spread if spread >= FINEST else None


def _lag1(values: Floats) -> float | None:
    away = values - values.mean()
    power = float(away @ away)
    if len(values) < 3 or np.ptp(values) == 0 or power == 0:
        return None
    return float(away[:-1] @ away[1:]) / power


def _critical(blocks: NDArray[np.int_] | int) -> Floats:
    if np.min(blocks) < 2:
        raise ValueError(f"{blocks} blocks: 2 are needed for a spread")
    return np.asarray(stdtrit(np.subtract(blocks, 1), (1 + LEVEL) / 2))


def half_widths(blocks: NDArray[np.int_] | int, spread: float) -> Floats:
    """Of Student's interval on a mean, in the unit of `spread`."""
    return np.asarray(_critical(blocks) * spread / np.sqrt(blocks))


def _assured(blocks: NDArray[np.int_], spread: float, assurance: float) -> Floats:
    """Half-widths of logs that a share `assurance` keeps within."""
    if not 0.5 <= assurance < 1:
        raise ValueError(f"assurance is {assurance:g}, must be from 0.5 to below 1")
    return np.asarray(half_widths(blocks, spread) * np.sqrt(chdtri(blocks - 1, 1 - assurance) / (blocks - 1)))


def _first(counts: NDArray[np.int_], enough: NDArray[np.bool_]) -> int | None:
    return int(counts[enough.argmax()]) if enough.any() else None


def _percent(log: float) -> float:
    if log > _MOST_LOG:
        raise ValueError(f"a ratio of exp({log:g}) is no finite percentage: spread or assurance is out of bounds")
    return math.expm1(log) * 100


def _log(percent: float, what: str) -> float:
    if not (math.isfinite(percent) and percent > -100):
        raise ValueError(f"{what} is {percent:g} %, must be finite and above -100")
    return math.log1p(percent / 100)


def _positive(percent: float, what: str) -> float:
    if not percent > 0:
        raise ValueError(f"{what} is {percent:g} %, must be above 0")
    return _log(percent, what)
