"""Curves as inline SVG."""

from __future__ import annotations

import dataclasses
import math
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

import judgements
from samebits.compare.results import Curve
from samebits.report.plots import curve_svg, curve_table, gaps

PLAIN = judgements.curve("lm loss", "twin-1", apart_from=5)


def line(values: list[float | None], ulps: list[int | None]) -> Curve:
    steps = tuple(range(1, len(values) + 1))
    return Curve(
        name="x",
        steps=steps,
        reference=tuple(values),
        candidate=tuple(values),
        ulps=tuple(ulps),
        candidate_arm="twin-1",
    )


@pytest.mark.parametrize(
    "curve",
    [
        PLAIN,
        judgements.curve("lm loss", "twin-1"),
        judgements.curve("lm loss", "twin-1", nan_at=(1, 12)),
        line([], []),
        line([1.0], [0]),
        line([None, math.nan, math.inf, -math.inf], [None] * 4),
        line([1e308, -1e308, 5e-324, 0.0], [2**63, 2**64 - 1, 0, 1]),
        line([2.5] * 5, [0] * 5),
    ],
    ids=["apart", "equal", "gaps", "empty", "one step", "nothing finite", "extremes", "constant"],
)
def test_every_curve_gives_a_well_formed_picture_with_the_pages_colours(curve: Curve) -> None:
    text = curve_svg(curve, "c-0")
    root = ET.fromstring(text)
    assert root.tag == "svg"
    assert "#0" not in text.replace("url(#", "").replace('href="#', "")  # no colour of its own
    assert "var(--plot-" in text or not curve.steps


def test_the_same_curve_gives_the_same_bytes_and_leaves_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    mpl.rcParams["lines.linewidth"] = 7
    try:
        changed = curve_svg(PLAIN, "c-0")
    finally:
        mpl.rcParams["lines.linewidth"] = before["lines.linewidth"]
    assert curve_svg(PLAIN, "c-0") == changed
    assert dict(mpl.rcParams) == before


def test_names_from_outside_never_enter_the_picture() -> None:
    hostile = dataclasses.replace(PLAIN, name=judgements.HOSTILE, candidate_arm=judgements.HOSTILE)
    assert curve_svg(hostile, "c-0") == curve_svg(PLAIN, "c-0")


def test_ten_thousand_steps_stay_small() -> None:
    noisy = [math.sin(step * 12.9898) for step in range(10_000)]
    assert len(curve_svg(line(noisy, [step % 7 for step in range(10_000)]), "c-0")) < 1_000_000


def test_gaps_are_the_steps_without_a_distance() -> None:
    assert gaps(judgements.curve("lm loss", "twin-1", nan_at=(4, 5, 9))) == [4, 5, 9]


def test_a_long_table_keeps_the_steps_that_differ() -> None:
    rows = curve_table(line([0.1] * 100, [0] * 90 + [3] * 10), most=60)
    assert rows[0] == (91, "0.1", "0.1", "3")
    assert len(rows) == 10
