"""What a person sees on a terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

import judgement_costs
import judgements
from samebits.report import figures
from samebits.report.costs import label
from samebits.report.terminal import comparison_text, cost_text, gates_table, judgement_text, show


def shown(*parts, **settings) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), **{"encoding": "utf-8", "newline": "\n", **settings})
    show(*parts, file=stream)
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)


@pytest.mark.parametrize(
    "build", [*judgements.ALL.values(), *judgements.PRICED.values(), judgements.hostile, judgements.large]
)
def test_it_is_plain_and_narrow_where_there_is_no_terminal(build) -> None:
    judgement = build()
    comparisons = [comparison_text(comparison) for gate in judgement.gates for comparison in gate.comparisons]
    text = shown(judgement_text(judgement), *comparisons, *map(cost_text, judgement.costs))
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert judgement.verdict.upper() in text


def test_the_gates_stand_in_order_with_verdict_and_reason() -> None:
    lines = shown(gates_table(judgements.failing())).splitlines()
    assert lines[1].split()[:2] == ["repeatability", "FAIL"]
    assert "first on rank 17" in lines[1]
    assert [line.split()[0] for line in lines if "PASS" in line] == ["resume", "control", "observer"]


def test_where_the_arms_ran_is_said_once_for_those_that_ran_together() -> None:
    reference, twin, *others = judgements.arms()
    elsewhere = dataclasses.replace(twin, nodes="gpu-node-[001-002]", job="4712")
    text = shown(judgement_text(judgements.passing(arms=(reference, elsewhere, *others))))
    assert re.search(r"gpu-node-000, job 4711 +reference, resumed, control-ulp, bare *\n", text)
    assert re.search(r"gpu-node-\[001-002\], job 4712 +twin-1 *\n", text)


def test_a_divergence_is_named_by_rank_moment_item_and_digests() -> None:
    comparison = judgements.failing().gates[0].comparisons[0]
    text = shown(comparison_text(comparison))
    first = comparison.divergence.ranks[0]
    for fact in (
        "rank 17 on gpu-node-002",
        "step 5",
        "kernel",
        first.first.reference.digest,
        first.first.candidate.digest,
    ):
        assert fact in text
    assert first.first.item in text


def test_deviations_and_problems_are_named() -> None:
    text = shown(comparison_text(judgements.invalid().gates[0].comparisons[0]))
    assert re.search(r"software\.torch\s+2\.13\.0\+cpu\s+2\.12\.1\+cpu\s+0-1", text)
    assert "run them again in the pinned" in text


def test_strings_from_outside_are_not_read_as_markup() -> None:
    text = shown(judgement_text(judgements.hostile()))
    assert "[bold]x[/bold]" in text
    assert "⟨U+001B⟩" in text


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    assert "\\u6f22" in shown(judgement_text(judgements.hostile()), encoding="ascii")


def test_no_color_is_obeyed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    show(gates_table(judgements.passing()), file=coloured)
    assert "\x1b[1;32m" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    show(gates_table(judgements.passing()), file=plain)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain.getvalue())


def row(*cells: str) -> str:
    return " +".join(map(re.escape, cells))


def test_costs_stand_below_the_gates_one_row_an_effect() -> None:
    judgement = judgements.cheap()
    text = shown(judgement_text(judgement)).replace("-", "−")
    assert text.index("PASS     determinism costs") < text.index("experiment")
    for cost in judgement.costs:
        for effect in cost.findings.effects:
            found = figures.percent(effect.median), figures.interval(effect.median), figures.detectable(effect.median)
            assert re.search(row(cost.experiment, label(effect).replace("-", "−"), *found), text)


def test_an_experiment_is_told_with_settings_phases_and_the_file() -> None:
    cost = judgement_costs.passing()
    text = shown(cost_text(cost), encoding="ascii")
    effect, settings = cost.findings.effects[0], cost.findings.settings
    means = f"{figures.percent(effect.mean)}, {figures.interval(effect.mean)}"
    assert re.search(
        row("deterministic against baseline", figures.percent(effect.median)) + f".*{re.escape(means)}", text
    )
    for setting in settings:
        times = figures.step_time(setting.median), figures.step_time(setting.mean)
        slow = f"{setting.stragglers} of 1,600"
        assert re.search(row(setting.setting, *times, figures.rate(setting.tokens), slow), text)
    assert "forward  backward  communication  optimizer" in text
    days = figures.days(cost, cost.findings.gpu_days)
    assert f"in 100 days of training on 2 ranks: {days}" in text
    assert "step times: results/overhead/overhead/steps.parquet" in text
    assert "\\u" not in text


def test_minus_signs_are_in_every_encoding() -> None:
    text = shown(cost_text(judgement_costs.attribution()), encoding="ascii")
    assert re.search(r"-0\.\d+ to 0\.\d+ %", text)
    assert "\\u" not in text


def test_a_cost_without_evidence_gives_the_reasons_and_no_number() -> None:
    text = shown(cost_text(judgement_costs.not_deterministic()))
    assert "no evidence: deterministic-5: lm loss is nan on rank 1 at step 44" in text
    assert "%" not in text
    assert re.search(r"no cost is stated:\s+deterministic-5", shown(judgement_text(judgements.not_deterministic())))


def test_baseline_against_itself_says_whether_zero_is_inside() -> None:
    assert "The interval contains 0, as it should." in shown(cost_text(judgement_costs.null()))
