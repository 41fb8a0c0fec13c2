"""A metric of two arms as inline SVG: both curves overlaid, and their distance in ULPs beneath.

The picture holds numbers only, no name from outside. The same curve gives the same bytes.

matplotlib as a pen for inline SVG: the page's colours, the same bytes each time, nothing that runs or is loaded.

Colours are the page's CSS variables, so a picture follows light and dark. matplotlib is imported late, pyplot never.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from samebits.compare.results import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# colours that matplotlib writes, and the variables of the page that take their place
INK, GRID, REFERENCE, CANDIDATE, ULPS, GAP, LIMIT, CARD = (f"#0{n}0{n}0{n}" for n in range(1, 9))
_VARIABLES = {
    INK: "var(--soft)",
    GRID: "var(--line)",
    REFERENCE: "var(--plot-reference)",
    CANDIDATE: "var(--plot-candidate)",
    ULPS: "var(--plot-ulps)",
    GAP: "var(--plot-gap)",
    LIMIT: "var(--plot-limit)",
    CARD: "var(--card)",
}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "samebits",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "path.simplify": True,
}


def inline_svg(draw: Callable[[], Figure], key: str) -> str:
    """`<svg>…</svg>` for inclusion in a page. key: makes the picture's ids unique there; letters, digits, hyphens."""
    import matplotlib as mpl  # noqa: PLC0415 -- half a second that only a page with pictures pays

    with mpl.rc_context():
        mpl.rcParams.update({name: mpl.rcParamsDefault[name] for name in mpl.rcParamsDefault if name != "backend"})
        mpl.rcParams.update(_SETTINGS)
        stream = io.StringIO()
        draw().savefig(
            stream, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _inline(stream.getvalue(), key)


def _inline(text: str, key: str) -> str:
    """Without prologue, global style, fonts and idle ids; with the page's colours."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?viewBox=\"([^\"]*)\"[^>]*>", _opening, text, count=1)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    text = re.sub(r" id=\"([^\"]*)\"", lambda match: _new_id(match, used, key), text)
    text = re.sub(r"(url\(|xlink:href=\")#", rf"\g<1>#{key}-", text).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"<(g|defs)>\s*</\1>|<g/>", "", re.sub(r" transform=\"rotate\(-0 [^\"]*\"", "", text))
    return re.sub(r"\s*\n\s*", " ", text).replace("> <", "><").strip()


def _opening(match: re.Match[str]) -> str:
    return f'<svg viewBox="{match[1]}" aria-hidden="true" focusable="false">'


def _new_id(match: re.Match[str], used: set[str], key: str) -> str:
    return f' id="{key}-{match[1]}"' if match[1] in used else ""


_MOST_MARKERS = 40
_MOST_STEMS = 300


def curve_svg(curve: Curve, key: str) -> str:
    """`<svg>…</svg>` for inclusion in a page. key: makes the picture's ids unique there; letters, digits, hyphens."""
    return inline_svg(lambda: _figure(curve), key)


def gaps(curve: Curve) -> list[int]:
    """Steps without a distance: a side is missing there or is not finite."""
    return [step for step, ulps in zip(curve.steps, curve.ulps, strict=True) if ulps is None]


def _figure(curve: Curve) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = Figure(figsize=(5.0, 3.3))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    figure.subplots_adjust(left=0.17, right=0.985, top=0.96, bottom=0.15, hspace=0.14)
    _draw_values(upper, curve)
    _draw_ulps(lower, curve)
    for axes in (upper, lower):
        _shade_gaps(axes, gaps(curve))
    lower.set_xlabel("step", labelpad=2)
    lower.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if curve.steps:
        lower.set_xlim(curve.steps[0] - 0.5, curve.steps[-1] + 0.5)
    return figure


def _draw_values(axes: Axes, curve: Curve) -> None:
    """The reference broad and plain, the candidate thin, dashed, with rings: equal curves show both."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    every = max(1, len(curve.steps) // _MOST_MARKERS)
    axes.plot(curve.steps, _drawable(curve.reference), color=REFERENCE, linewidth=3.4, solid_capstyle="round")
    ring: dict[str, Any] = {
        "marker": "o",
        "markersize": 4.2,
        "markerfacecolor": "none",
        "markeredgewidth": 1.0,
        "markevery": every,
    }
    axes.plot(curve.steps, _drawable(curve.candidate), color=CANDIDATE, linewidth=1.1, linestyle=(0, (4, 2)), **ring)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=2))
    axes.tick_params(labelbottom=False)


def _draw_ulps(axes: Axes, curve: Curve) -> None:
    known = [(step, float(ulps)) for step, ulps in zip(curve.steps, curve.ulps, strict=True) if ulps is not None]
    apart = [(step, ulps) for step, ulps in known if ulps]
    apart = _tallest(apart)
    if apart:
        axes.vlines([step for step, _ in apart], 0, [ulps for _, ulps in apart], color=ULPS, linewidth=1.4)
    equal = [step for step, ulps in known if not ulps]
    for steps, heights, colour in (
        (equal, [0.0] * len(equal), INK),
        ([step for step, _ in apart], [ulps for _, ulps in apart], ULPS),
    ):
        every = max(1, len(steps) // _MOST_MARKERS)
        dots: dict[str, Any] = {
            "linestyle": "none",
            "marker": "s",
            "markersize": 3,
            "color": colour,
            "clip_on": False,
            "zorder": 3,
        }
        axes.plot(steps[::every], heights[::every], **dots)
    _scale_ulps(axes, max((abs(ulps) for _, ulps in apart), default=0.0))
    axes.set_ylabel("ULPs", labelpad=3)


def _tallest(stems: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The tallest of each bundle of neighbours that would be drawn over each other."""
    width = -(-len(stems) // _MOST_STEMS) or 1
    return [max(stems[start : start + width], key=lambda stem: stem[1]) for start in range(0, len(stems), width)]


def _scale_ulps(axes: Axes, largest: float) -> None:
    """0 to 1 plainly, powers of ten above."""
    decades = max(1, math.ceil(math.log10(largest))) if largest > 1 else 0
    ticks = [0.0, 1.0] if decades == 0 else [0.0, *(10.0**power for power in {0, (decades + 1) // 2, decades})]
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_ylim(0, max(1.0, 10.0**decades) * 1.15)
    axes.set_yticks(ticks, [f"{tick:,.0f}" if tick < 1e5 else f"1e{round(math.log10(tick))}" for tick in ticks])
    axes.set_yticks([], minor=True)


def _shade_gaps(axes: Axes, steps: list[int]) -> None:
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    for low, high in runs:
        axes.axvspan(low - 0.5, high + 0.5, color=GAP, linewidth=0)


def _drawable(values: tuple[float | None, ...]) -> list[float]:
    """NaN, a gap in the line, for what is missing, not finite or beyond what an axis can span."""
    return [math.nan if value is None or not abs(value) < 1e300 else value for value in values]


def curve_table(curve: Curve, most: int) -> list[tuple[int, str, str, str]]:
    """(step, reference, candidate, ULPs) as text: every step where they fit, else those that are not 0 ULPs apart."""
    rows: list[Any] = list(zip(curve.steps, curve.reference, curve.candidate, curve.ulps, strict=True))
    if len(rows) > most:
        rows = [row for row in rows if row[3] != 0][:most]
    return [(step, *(_exact(value) for value in values)) for step, *values in rows]


def _exact(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else repr(value)
