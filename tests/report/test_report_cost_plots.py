"""Pictures of costs as inline SVG."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Callable

import matplotlib as mpl
import pytest

import judgement_costs
import judgements
from samebits.overhead.results import Cost, Effect, Findings
from samebits.report import cost_plots
from samebits.report.cost_plots import effects_range, effects_svg, order_svg, plain, times_svg
from timing_noise import Noise


def findings(cost: Cost) -> Findings:
    assert cost.findings is not None
    return cost.findings


def one_block() -> Cost:
    return judgement_costs.cost(wanted=judgement_costs.recipe(blocks=1, steps=1))


def still() -> Cost:
    """Every step of every run takes the same time."""
    noise = Noise(step=0, process=0, walk=0, drift=0, stragglers=0)
    return judgement_costs.cost((0.0,), noise=noise)


def wild() -> Cost:
    return judgement_costs.cost((200.0,), judgement_costs.recipe(blocks=2, steps=5), noise=Noise(step=1.5, walk=1.0))


COSTS: dict[str, Callable[[], Cost]] = {
    "passing": judgement_costs.passing,
    "too short": judgement_costs.too_short,
    "dear": judgement_costs.dear,
    "null": judgement_costs.null,
    "one block": one_block,
    "still": still,
    "wild": wild,
}


def pictures(cost: Cost, key: str = "cost-0") -> list[str]:
    found = findings(cost)
    return [
        effects_svg(found.effects, 5.0, key),
        times_svg(found.settings, key),
        order_svg(cost, found.settings, key),
    ]


@pytest.mark.parametrize("name", COSTS)
def test_every_cost_gives_well_formed_pictures_with_the_pages_colours(name: str) -> None:
    for text in pictures(COSTS[name]()):
        assert ET.fromstring(text).tag == "svg"
        assert "#0" not in text.replace("url(#", "").replace('href="#', "")  # no colour of its own
        assert "var(--plot-reference)" in text
        assert "var(--plot-candidate)" in text
        assert "nan" not in text.lower()
        assert len(text) < 60_000


@pytest.mark.parametrize("build", [judgement_costs.attribution, judgement_costs.capture])
def test_there_is_a_row_for_each_effect(build: Callable[[], Cost]) -> None:
    effects = findings(build()).effects
    text = "".join(ET.fromstring(effects_svg(effects, None, "c")).itertext())
    assert all(effect.knob in text for effect in effects)


def test_the_limit_is_drawn_only_where_there_is_one() -> None:
    effects = findings(judgement_costs.passing()).effects
    assert "var(--plot-limit)" in effects_svg(effects, 5.0, "c")
    assert "var(--plot-limit)" not in effects_svg(effects, None, "c")


def test_the_same_cost_gives_the_same_bytes_and_leaves_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    first = pictures(judgement_costs.passing())
    mpl.rcParams["lines.linewidth"] = 7
    try:
        assert pictures(judgement_costs.passing()) == first
    finally:
        mpl.rcParams["lines.linewidth"] = before["lines.linewidth"]
    assert dict(mpl.rcParams) == before


def test_a_name_from_outside_becomes_plain_characters() -> None:
    effect = dataclasses.replace(findings(judgement_costs.passing()).effects[0], knob=judgements.HOSTILE)
    text = effects_svg([effect], 5.0, "c")
    ET.fromstring(text)
    shown = "".join(ET.fromstring(text).itertext())
    assert "<" not in shown
    assert "$" not in shown
    assert plain("NCCL_ALGO without-x 1.5") == "NCCL_ALGO without-x 1.5"
    assert set(plain("<b>&$\\\u202e")) == {".", "b"}


def wide(percent: float, low: float, high: float, ratios: tuple[float, ...]) -> Effect:
    effect = findings(judgement_costs.passing()).effects[0]
    assert effect.median.interval is not None
    interval = dataclasses.replace(effect.median.interval, low=low, high=high)
    median = dataclasses.replace(effect.median, percent=percent, interval=interval)
    return dataclasses.replace(effect, median=median, ratios=ratios)


def test_an_absurd_interval_does_not_flatten_the_blocks() -> None:
    low, high = effects_range([wide(3.4, -88, 773, (22.3, -12.6))], 5.0)
    assert low > -88
    assert high < 120
    assert low < -12.6 < 22.3 < high


def test_zero_and_the_limit_are_always_in_the_picture() -> None:
    low, high = effects_range([wide(40.0, 39.0, 41.0, (39.5, 40.5))], 5.0)
    assert low < 0
    assert high > 41


def test_one_straggler_does_not_flatten_the_distribution() -> None:
    bulk = [0.25 + 0.0001 * number for number in range(100)]
    assert cost_plots._slow_from([[*bulk, 90.0]]) < 0.27
    assert cost_plots._slow_from([[*bulk, 0.26]]) == 0.26


def test_every_run_of_a_block_is_drawn_where_it_ran_and_no_rehearsal() -> None:
    cost = judgement_costs.passing()
    found = findings(cost)
    drawn = order_svg(cost, found.settings, "c")
    rehearsed = dataclasses.replace(cost.runs[0], arm="rehearsal", setting="rehearsal", block=0)
    blocks = tuple(run for run in cost.runs if run.block)
    assert order_svg(dataclasses.replace(cost, runs=(rehearsed, *blocks)), found.settings, "c") == drawn
    marks = [element for element in ET.fromstring(drawn).iter() if element.tag.endswith("use")]
    assert len(marks) == len(blocks)
