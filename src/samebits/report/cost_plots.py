"""What time costs as inline SVG: effects with their intervals, how long steps took, and the runs in their order.

The pictures hold numbers, and names of settings reduced to plain characters: nothing from outside can become markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samebits.overhead.results import Cost, Effect, RunTimes, SettingTimes
from samebits.report.costs import blocks_runs, label
from samebits.report.plots import CANDIDATE, CARD, INK, LIMIT, REFERENCE, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 5.0
"""Inches; with letters of 10.5 points it stays legible on a phone."""
_LONGEST_NAME = 42
_COLOURS = (REFERENCE, CANDIDATE)
_MARKERS = ("o", "D")

Range = tuple[float, float]


def effects_svg(effects: Sequence[Effect], limit: float | None, key: str) -> str:
    """A row each: the estimate with its interval, its blocks as dots. limit: percent, a dashed line."""
    return inline_svg(lambda: _effects_figure(effects, limit), key)


def times_svg(settings: Sequence[SettingTimes], key: str) -> str:
    """The empirical distribution of the first two settings' step times; slow ones beside it on a scale of their own."""
    return inline_svg(lambda: _times_figure(settings[:2]), key)


def order_svg(cost: Cost, settings: Sequence[SettingTimes], key: str) -> str:
    """The runs' medians in the order in which they were made; settings: first and second, by colour and shape."""
    return inline_svg(lambda: _order_figure(blocks_runs(cost), [entry.setting for entry in settings]), key)


def _canvas(height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(_WIDTH, height))


def plain(name: str) -> str:
    """Letters, digits, blanks, `_`, `-` and `.`; all else becomes a dot."""
    return re.sub(r"[^A-Za-z0-9_ .-]", ".", name)[:_LONGEST_NAME]


def _effects_figure(effects: Sequence[Effect], limit: float | None) -> Figure:
    height = 0.5 * len(effects) + 0.62
    figure = _canvas(height)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.02, right=0.98, top=1 - 0.04 / height, bottom=0.5 / height)
    edges = effects_range(effects, limit)
    axes.axvline(0, color=INK, linewidth=1)
    if limit is not None:
        axes.axvline(limit, color=LIMIT, linewidth=1.6, linestyle=(0, (4, 2)))
    for row, effect in enumerate(effects):
        _draw_effect(axes, row, effect, edges)
    axes.set_xlim(*edges)
    axes.set_ylim(len(effects) - 0.42, -0.72)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("cost, percent of a step", labelpad=2)
    return figure


def effects_range(effects: Sequence[Effect], limit: float | None) -> Range:
    """Holds zero, limit, estimates and blocks; intervals as far as the rest stays legible."""
    core = [
        0.0,
        *(effect.median.percent for effect in effects),
        *(ratio for effect in effects for ratio in effect.ratios),
    ]
    core += [] if limit is None else [limit]
    ends = [end for effect in effects if (found := effect.median.interval) for end in (found.low, found.high)]
    return _around(core, ends, 1.0)


def _around(core: Sequence[float], others: Sequence[float], reach: float) -> Range:
    """All of core, and others within `reach` times its span; a little air."""
    low, high = min(core), max(core)
    span = (high - low) or abs(high) or 1.0
    low, high = max(min([low, *others]), low - reach * span), min(max([high, *others]), high + reach * span)
    air = 0.04 * ((high - low) or span)
    return low - air, high + air


def _draw_effect(axes: Axes, row: int, effect: Effect, edges: Range) -> None:
    """The name above, then blocks as small dots beneath the estimate and its interval."""
    back: dict[str, Any] = {"facecolor": CARD, "edgecolor": "none", "pad": 1.0}
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 9.5}
    axes.text(0.004, row - 0.42, plain(label(effect)), bbox=back, **place)
    dots: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3.2, "markeredgewidth": 0}
    axes.plot(effect.ratios, [row + 0.24] * len(effect.ratios), color=REFERENCE, **dots)
    if interval := effect.median.interval:
        ends = max(interval.low, edges[0]), min(interval.high, edges[1])
        axes.hlines(row, *ends, color=CANDIDATE, linewidth=2.4)
        for end, whole, cut in (
            (ends[0], interval.low >= edges[0], "<"),
            (ends[1], interval.high <= edges[1], ">"),
        ):
            style: dict[str, Any] = {"marker": "|" if whole else cut, "markersize": 9 if whole else 7}
            axes.plot([end], [row], color=CANDIDATE, markeredgewidth=1.6, clip_on=False, **style)
    axes.plot([effect.median.percent], [row], color=CANDIDATE, marker="s", markersize=7)


def _times_figure(settings: Sequence[SettingTimes]) -> Figure:
    figure = _canvas(3.0)
    scale, unit = _unit(settings[0].median)
    times = [[seconds * scale for seconds in entry.quantiles] for entry in settings]
    edge, slowest = _slow_from(times), max(line[-1] for line in times)
    body, tail = figure.subplots(1, 2, sharey=True, width_ratios=(3.2, 1))
    figure.subplots_adjust(left=0.13, right=0.965, top=0.97, bottom=0.17, wspace=0.06)
    for axes in (body, tail):
        for line, colour, width in zip(times, _COLOURS, (3.0, 1.4), strict=False):
            shares = [100 * place / (len(line) - 1) for place in range(len(line))]
            axes.plot(line, shares, color=colour, linewidth=width)
    fastest = min(line[0] for line in times)
    body.set_xlim(*((fastest, edge) if edge > fastest else (fastest * 0.95, fastest * 1.05)))
    body.set_ylim(0, 101)
    body.set_ylabel("steps at most as long, percent", labelpad=3)
    body.set_xlabel(f"step time, {unit}", labelpad=2)
    _ticks(body, 5)
    _scale_tail(tail, edge, slowest)
    return figure


def _slow_from(times: Sequence[Sequence[float]]) -> float:
    """Where the second scale begins: past the bulk of every setting, so that stragglers do not flatten it."""
    ends = [(line[round(0.05 * (len(line) - 1))], line[round(0.95 * (len(line) - 1))]) for line in times]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return min(high + 0.5 * (high - low or high), max(line[-1] for line in times))


def _scale_tail(axes: Axes, edge: float, slowest: float) -> None:
    """Logarithmic; empty where no step is slow."""
    from matplotlib.ticker import NullFormatter, NullLocator  # noqa: PLC0415

    high = max(slowest * 1.02, edge * 1.1)
    axes.set_xscale("log")
    axes.set_xlim(edge, high)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([slowest] if slowest > edge else [], [f"{slowest:,.4g}"] if slowest > edge else [], ha="right")
    axes.set_xlabel("slow ones, log", labelpad=2)
    axes.spines["left"].set_visible(True)


def _ticks(axes: Axes, most: int) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axes.xaxis.set_major_locator(MaxNLocator(nbins=most, min_n_ticks=2))


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def _order_figure(runs: Sequence[RunTimes], names: Sequence[str]) -> Figure:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = _canvas(3.0)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.13, right=0.985, top=0.97, bottom=0.17)
    known = [(number, run) for number, run in enumerate(runs, 1) if run.median is not None]
    scale, unit = _unit(known[0][1].median or 1.0)
    for number in range(1, len(runs)):
        if runs[number].block != runs[number - 1].block:
            axes.axvline(number + 0.5, color=INK, linewidth=0.7, linestyle=(0, (1, 2)))
    for name, colour, marker in zip(names, _COLOURS, _MARKERS, strict=False):
        _draw_runs(axes, [entry for entry in known if entry[1].setting == name], scale, (colour, marker))
    ends = [end * scale for _, run in known for end in (run.low, run.high) if end is not None]
    axes.set_ylim(*_around([(run.median or 0.0) * scale for _, run in known], ends, 1.0))
    axes.set_xlim(0.3, len(runs) + 0.7)
    axes.grid(axis="x", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 4, 5, 10], min_n_ticks=1))
    axes.set_xlabel("run, in the order in which they were made", labelpad=2)
    axes.set_ylabel(f"step time, {unit}", labelpad=3)
    return figure


def _draw_runs(axes: Axes, runs: Sequence[tuple[int, RunTimes]], scale: float, style: tuple[str, str]) -> None:
    """Medians as marks, the 5th to the 95th percentile as lines."""
    colour, marker = style
    numbers = [number for number, _ in runs]
    lows, highs = (
        [(end or 0.0) * scale for end in ends] for ends in zip(*((run.low, run.high) for _, run in runs), strict=True)
    )
    axes.vlines(numbers, lows, highs, color=colour, linewidth=1.0)
    medians = [(run.median or 0.0) * scale for _, run in runs]
    axes.plot(numbers, medians, color=colour, linestyle="none", marker=marker, markersize=6.5)
