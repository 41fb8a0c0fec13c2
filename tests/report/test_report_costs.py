"""What determinism costs, on the page: every number, every doubt, and nothing where there is no evidence."""

from __future__ import annotations

import dataclasses
import re

import pytest
from test_report_html import Page

import judgement_costs
import judgements
from samebits.gates.judgement import Judgement
from samebits.overhead.results import Cost, Findings
from samebits.report import costs, figures, html, words
from samebits.report.html import report_html


@pytest.fixture(scope="module")
def cheap() -> Judgement:
    return judgements.cheap()


@pytest.fixture(scope="module")
def source(cheap: Judgement) -> str:
    return report_html(cheap)


@pytest.fixture(scope="module")
def text(source: str) -> str:
    return Page(source).text


def page(*found: Cost) -> str:
    return Page(report_html(judgements.priced(*found))).text


def known(cost: Cost) -> Findings:
    assert cost.findings is not None
    return cost.findings


def test_every_effect_has_its_numbers(cheap: Judgement, text: str) -> None:
    for entry in costs.evidence(cheap):
        assert entry.title in text
        for effect in entry.findings.effects:
            assert figures.percent(effect.median, entry.limit) in text
            assert figures.interval(effect.median, entry.limit) in text
            assert figures.interval(effect.mean) in text
            assert figures.detectable(effect.median) in text
            assert " , ".join(figures.ratio(ratio, effect.median) for ratio in effect.ratios) in text
            for phase in effect.phases:
                if phase.reference or phase.candidate:
                    assert f"{figures.points(phase)} {figures.points_interval(phase)}" in text


def test_every_setting_and_run_has_its_row(cheap: Judgement, text: str) -> None:
    for cost in cheap.costs:
        for setting in known(cost).settings:
            times = f"{figures.step_time(setting.median)} {figures.step_time(setting.mean)}"
            assert f"{setting.setting} {times} {figures.rate(setting.tokens)} {setting.stragglers}" in text
        for run in cost.runs:
            row = " ".join(costs.run_row(run))
            assert f"{run.arm} {run.setting} {run.block or '–'} {words.whole(run.steps)} {row}" in text


def test_the_number_stands_with_interval_limit_and_verdict_before_all_else(cheap: Judgement, text: str) -> None:
    section = text.partition("What determinism costs")[2]
    effect = known(cheap.costs[0]).effects[0].median
    parts = (
        f"{figures.percent(effect, 5.0)} of a step",
        f"95 % interval {figures.interval(effect, 5.0)}",
        "Allowed at most 5 % pass",
    )
    found = [section.index(part) for part in parts]
    assert found == sorted(found)
    assert found[-1] < section.index("Minimum detectable effect") < section.index("How long steps took")


def test_what_a_sceptic_asks_is_answered_in_numbers(cheap: Judgement, text: str) -> None:
    answers = costs.checks(cheap.costs[0], known(cheap.costs[0]))
    assert len(answers) == 10
    for question, answer in answers:
        assert f"{question} {answer}" in text
    told = " ".join(answer for _, answer in answers)
    for part in ("8, fixed", "320 in all", "0.42 % of all time", "64 steps", "Nothing is removed", "±0.71", "2 ranks"):
        assert part in told, part


def test_settings_in_force_are_those_that_ranks_read_back(text: str) -> None:
    assert "fill_uninitialized_memory False True" in text
    assert "NCCL_ALGO not set Ring" in text


def test_attribution_says_what_it_measures_and_that_costs_need_not_add_up(text: str) -> None:
    assert "The deterministic run against the same run without one setting" in text
    assert "need not add up" in text


def test_capture_gives_bytes_beside_cost_and_its_own_phase(text: str) -> None:
    section = text.partition("Cost of capture, by rung")[2].partition("Baseline against itself")[0]
    assert re.search(r"state 6\.\d % .* 9\.4 kB", section)
    assert "optimizer capture" in section
    assert "capture 0 ms" not in text  # where nothing was captured


@pytest.mark.parametrize(
    ("shift", "said"), [(0.0, "The interval contains 0, as it should."), (3.0, "does not contain 0.")]
)
def test_baseline_against_itself_says_whether_zero_is_inside(shift: float, said: str) -> None:
    text = page(judgement_costs.passing(), judgement_costs.cost((shift,), experiment="null"))
    assert said in text.partition("Baseline against itself")[2]


def test_a_rank_is_a_gpu_only_where_the_device_kept_the_time(text: str) -> None:
    dear = page(judgement_costs.dear())
    assert "tokens a second per rank" in text
    assert "rank-days" in text
    assert "GPU-days" not in text
    assert "tokens a second per GPU" in dear
    assert "In 100 days of training on 96 GPUs about 1,400 GPU-days more" in dear
    assert "job 4711" in dear


def test_a_cost_that_may_be_none_is_said_to_be_so() -> None:
    text = page(judgement_costs.free())
    assert re.search(
        r"less than 0\.1 rank-days either way 95 % interval [−\d.]+ to [\d.]+ rank-days if the estimate holds; "
        "no cost at all is within what was measured",
        text,
    )


@pytest.mark.parametrize("build", [judgement_costs.gone, judgement_costs.elsewhere, judgement_costs.not_deterministic])
def test_without_evidence_the_reasons_come_first_and_no_number_is_shown(build) -> None:
    cost = build()
    source = report_html(judgements.priced(cost))
    section = Page(source.partition('id="costs"')[2].partition("</article>")[0].partition(">")[2]).text
    assert section.index("No cost is stated") < section.index("runs, in the order")
    for reason in (*cost.problems, *cost.failures, *(row.pin for row in cost.deviations)):
        assert section.index("No cost is stated") < section.index(reason) < section.index("runs, in the order")
    assert "interval" not in section
    assert 'class="price"' not in source
    assert '<div role="img"' not in source


def test_cautions_stand_above_the_pictures() -> None:
    cost = judgement_costs.too_short()
    found = dataclasses.replace(known(cost), cautions=("the machine was not at rest",))
    text = page(dataclasses.replace(cost, findings=found))
    assert text.index("Caution: the machine was not at rest") < text.index("How long steps took")


def test_a_recipe_that_only_measures_time_has_no_empty_sections(source: str, text: str) -> None:
    for section in ("arms", "curves", "divergence", "vote", "deviations", "problems"):
        assert f'<section id="{section}"' not in source
    assert "nothing was compared" not in text
    assert "What each gate compared" not in text
    assert "Pins of the first deterministic run" in text


def test_bits_and_time_stand_on_one_page_each_with_its_own() -> None:
    text = Page(report_html(judgements.costly_and_failing())).text
    compared = text.partition("What each gate compared")[2].partition("Divergence")[0]
    assert "repeatability" in compared
    assert "overhead" not in compared
    assert text.index("Divergence") < text.index("What determinism costs") < text.index("Arms")


def test_a_page_without_costs_says_nothing_of_them() -> None:
    text = Page(report_html(judgements.inconclusive())).text
    assert "What determinism costs" not in text
    assert "NVIDIA" not in text


def test_what_was_published_stands_apart_each_figure_with_its_source(source: str) -> None:
    measured, _, context = source.partition('<details class="card context">')
    assert "NVIDIA" not in measured
    told = Page(context.partition("</details>")[0]).text
    for figure in html.FIGURES:
        assert f"{figure.scale} {figure.cost} {figure.source}" in told
    assert "not comparable" in told
    assert "no pass mark" in told


def test_published_figures_are_those_that_were_read() -> None:
    told = {(figure.source, figure.scale): figure.cost for figure in html.FIGURES}
    assert told["Megatron documentation on determinism", "typical"] == "about 15 %"
    assert told["Megatron-LM discussion 7497", "8 GPUs"] == "38 %, then 21 %, then 2 %"
    assert told["Megatron-LM discussion 7497", "3,072 GPUs"] == "4.6 %"
    assert told["press report", "2,432 GPUs"] == "2 %"
    assert len(told) == 10


def test_every_picture_is_told_in_words_and_stands_beside_its_numbers(source: str) -> None:
    pictures = re.findall(r'<div role="img" aria-label="([^"]+)">', source)
    assert len(pictures) == 3 + 1 + 1 + 3
    assert all(len(told) > 60 for told in pictures)


def test_a_page_with_every_experiment_stays_small(source: str) -> None:
    assert len(source.encode()) < 500_000
