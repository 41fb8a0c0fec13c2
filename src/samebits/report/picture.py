"""matplotlib as a pen for inline SVG: the page's colours, the same bytes each time, nothing that runs or is loaded.

Colours are the page's CSS variables, so a picture follows light and dark. matplotlib is imported late, pyplot never.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
