"""The report as one HTML file that needs nothing else: no network, no script, no font of its own.

Every value passes through `printable` and autoescape; what is inserted as markup is the style sheet of this package
and the pictures of `plots` and `cost_plots`, which hold numbers, and names of settings reduced to plain characters.

What NVIDIA published about the cost of determinism, each figure with where it stands: context, never a pass mark.

Other models on other machines, measured in another way; nothing here is compared with anything that samebits measures.

Writes the three reports of a judgement beside each other, each whole or not at all.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from samebits.compare.results import Curve
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.paths import write_whole
from samebits.gates.judgement import Judgement
from samebits.report import cost_plots, costs, figures, layout, words
from samebits.report import terminal as found
from samebits.report.json import report_json
from samebits.report.junit import junit_xml
from samebits.report.plots import curve_svg, curve_table, gaps
from samebits.spec.verdicts import EXIT_STATUS

_GUIDE = "Megatron documentation on determinism"
_DISCUSSION = "Megatron-LM discussion 7497"
_PRESS = "press report"


@dataclass(frozen=True, kw_only=True)
class Published:
    """scale: GPUs, or which models. cost: of a step, as published."""

    scale: str
    cost: str
    source: str


FIGURES = (
    Published(scale="typical", cost="about 15 %", source=_GUIDE),
    Published(scale="dense models", cost="about 4 %", source=_GUIDE),
    Published(scale="hybrid mixture of experts", cost="about 17 %", source=_GUIDE),
    Published(scale="their goal", cost="below 10 %, stretch 5 %", source=_GUIDE),
    Published(scale="8 GPUs", cost="38 %, then 21 %, then 2 %", source=_DISCUSSION),
    Published(scale="96 GPUs", cost="15 %, then 1 to 2 %", source=_DISCUSSION),
    Published(scale="1,024 GPUs", cost="3.5 %", source=_DISCUSSION),
    Published(scale="1,536 GPUs", cost="1.5 %", source=_DISCUSSION),
    Published(scale="2,432 GPUs", cost="2 %", source=_PRESS),
    Published(scale="3,072 GPUs", cost="4.6 %", source=_DISCUSSION),
)
METHOD = (
    "Their cost is (deterministic / fastest supported baseline − 1) × 100, after stabilisation. Their gate takes three "
    "alternating pairs of fresh processes, 20 warm-up and 50 timed steps, the median ratio and a bootstrap interval."
)


_MOST_VALUES = 60


def report_html(judgement: Judgement) -> str:
    """The whole page. The same judgement gives the same text."""
    findings = layout.findings(judgement)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            judgement=judgement,
            meaning=words.MEANING[judgement.verdict],
            counted=[finding for finding in findings if finding.counted],
            expected=[finding for finding in findings if not finding.counted],
            deviation_tables=layout.deviation_tables(judgement),
            troubles=layout.troubles(judgement),
            waivers=layout.waivers(judgement),
            curve_groups=layout.curve_groups(judgement),
            pin_groups=layout.pin_groups(judgement),
            comparing=[gate for gate in judgement.gates if not words.is_measured(gate)],
            cost_entries=costs.evidence(judgement),
            example=layout.example(judgement),
            exit_status=EXIT_STATUS,
        )
    )
    return page + "\n"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("samebits.report", "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        stylesheet=_stylesheet(environment),
        svg=_svg,
        curve_summary=curve_summary,
        curve_rows=lambda curve: curve_table(curve, _MOST_VALUES),
        words=words,
        found=found,
        figures=figures,
        costs=costs,
        published={"METHOD": METHOD, "FIGURES": FIGURES},
        effects_svg=_effects_svg,
        times_svg=_times_svg,
        order_svg=_order_svg,
        ranks_text=ranks_text,
        pair=layout.pair,
    )
    return environment


def _finalize(value: Any) -> Any:
    """Runs on every value that the template prints, before it is escaped."""
    return words.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _stylesheet(environment: Environment) -> Markup:
    if environment.loader is None:
        raise ValueError("the environment has no loader")
    return Markup(environment.loader.get_source(environment, "report.css")[0])


def _svg(key: str, curve: Curve) -> Markup:
    return Markup(curve_svg(curve, key))


def _effects_svg(entry: costs.CostEvidence) -> Markup:
    found = entry.findings
    return Markup(cost_plots.effects_svg(found.effects, entry.limit, f"{entry.key}-effects"))


def _times_svg(entry: costs.CostEvidence) -> Markup:
    return Markup(cost_plots.times_svg(entry.findings.settings, f"{entry.key}-times"))


def _order_svg(entry: costs.CostEvidence) -> Markup:
    return Markup(cost_plots.order_svg(entry.cost, entry.findings.settings, f"{entry.key}-order"))


def curve_summary(curve: Curve) -> str:
    """What the picture shows, for those who do not see it."""
    apart = [(step, ulps) for step, ulps in zip(curve.steps, curve.ulps, strict=True) if ulps]
    unknown = gaps(curve)
    parts = [_apart_text(apart, len(curve.steps), len(curve.steps) - len(unknown))]
    if unknown:
        parts.append(f"no distance at {_steps(unknown)}: a side is missing or not finite")
    return "; ".join(parts)


def _apart_text(apart: list[tuple[int, int]], steps: int, known: int) -> str:
    if not known:
        return f"no distance in ULPs at any of {words.counted(steps, 'step')}"
    if not apart:
        return f"0 ULPs apart at {words.whole(known)} of {words.counted(steps, 'step')}"
    largest = words.counted(max((ulps for _, ulps in apart), key=abs), "ULP")
    where = f"{words.whole(len(apart))} of {words.counted(steps, 'step')}, first at step {apart[0][0]}"
    return f"apart at {where}, at most {largest}"


def _steps(steps: list[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {ranks_text(steps)}"


def write(judgement: Judgement, folder: Path) -> None:
    """report.html, report.json and junit.xml; makes the folder. All are rendered before the first is written.

    Raises OSError where the folder cannot be written to.
    """
    texts = {
        "report.json": report_json(judgement),
        "junit.xml": junit_xml(judgement),
        "report.html": report_html(judgement),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode("utf-8"))
