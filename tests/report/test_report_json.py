"""report.json and the way back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

import judgements
from samebits.compare.results import plain
from samebits.report import json as json_report
from samebits.report.html import write
from samebits.report.json import ReportError, load, report_json


@pytest.mark.parametrize("build", [*judgements.ALL.values(), *judgements.PRICED.values(), judgements.hostile])
def test_a_judgement_survives_the_way_there_and_back(build, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(report_json(build()), encoding="utf-8")
    assert repr(load(path)) == repr(build())  # repr, since NaN equals nothing


def test_costs_survive_numbers_that_json_lacks_and_settings_named_like_them(tmp_path: Path) -> None:
    judgement = judgements.priced(judgements.cheap().costs[0])
    cost = judgement.costs[0]
    effect = dataclasses.replace(cost.findings.effects[0], candidate="NaN", ratios=(math.nan, math.inf))
    odd = dataclasses.replace(cost, findings=dataclasses.replace(cost.findings, effects=(effect,), gpu_days=-math.inf))
    path = tmp_path / "report.json"
    path.write_text(report_json(dataclasses.replace(judgement, costs=(odd,))), encoding="utf-8")
    assert repr(load(path).costs[0]) == repr(odd)


def test_numbers_that_json_lacks_are_strings() -> None:
    text = report_json(judgements.inconclusive())

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert "NaN" in json.loads(text, parse_constant=refuse)["curves"][0]["candidate"]


def test_the_three_reports_stand_beside_each_other_and_nothing_else(tmp_path: Path) -> None:
    write(judgements.inconclusive(), tmp_path / "new" / "smoke")
    assert sorted(path.name for path in (tmp_path / "new" / "smoke").iterdir()) == [
        "junit.xml",
        "report.html",
        "report.json",
    ]


def test_one_changed_character_anywhere_never_changes_what_is_read(tmp_path: Path) -> None:
    judgement = dataclasses.replace(judgements.failing(), curves=(), pins=())
    path = tmp_path / "report.json"
    text = report_json(judgement)
    draw = random.Random(7)
    for _ in range(150):
        place = draw.randrange(len(text))
        path.write_text(text[:place] + draw.choice('01ae"{},: \\') + text[place + 1 :], encoding="utf-8")
        with contextlib.suppress(ReportError):
            assert load(path) == judgement


def test_a_report_cut_at_any_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    data = report_json(judgements.inconclusive()).encode()
    for length in range(0, len(data) - 2, 97):
        path.write_bytes(data[:length])
        with pytest.raises(ReportError, match="not JSON"):
            load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a report of samebits"),
        ('{"verdict": "pass"}', "not a report of samebits"),
        (
            '{"kind": "samebits report", "format": 1}',
            "format is 1, must be 4; make it again with `samebits report RECIPE`",
        ),
        ('{"kind": "samebits report", "format": 3}', "format is 3, must be 4"),
        ('{"kind": "samebits report", "format": 4, "verdict": "pass"}', "damaged or edited"),
        ('{"kind": NaN}', "not strict JSON"),
        ("[" * 100_000, "recursion"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_is_no_report_is_refused_with_the_reason_and_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReportError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "samebits compare A B" in str(caught.value)


def test_reports_are_read_in_the_format_that_judging_writes() -> None:
    from samebits.gates.judge import JUDGEMENT_FORMAT

    assert json_report.REPORT_FORMAT == JUDGEMENT_FORMAT


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="there is no such file"):
        load(tmp_path / "report.json")


def test_an_unknown_verdict_is_refused_even_with_a_right_check(tmp_path: Path) -> None:
    body = plain(judgements.passing(curves=()))
    body["verdict"] = "fine"
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"kind": json_report.KIND, "check": json_report._check(body), **body}))
    with pytest.raises(ReportError, match=r"Judgement\.verdict: is 'fine'"):
        load(path)
