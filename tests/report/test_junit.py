"""junit.xml: never green for anything but `pass`."""

from __future__ import annotations

import dataclasses
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import judgements
from samebits.report.junit import junit_xml

GOLDEN = Path(__file__).parents[1] / "golden"


ALL = [*judgements.ALL.values(), *judgements.PRICED.values(), judgements.hostile, judgements.large]


def red(root: ET.Element) -> list[str]:
    return [
        case.get("name")
        for case in root.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


WRITTEN = {**judgements.ALL, "cheap": judgements.cheap, "unpriced": judgements.unpriced}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_file_is_the_golden_one(name: str) -> None:
    """`UPDATE_GOLDEN=1 pytest tests/report/test_junit.py` writes them anew; read the difference before a commit."""
    path, text = GOLDEN / f"junit-{name}.xml", junit_xml(WRITTEN[name]())
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("build", ALL)
def test_it_is_valid_xml_whose_counts_are_right(build) -> None:
    root = ET.fromstring(junit_xml(build()).encode())
    suite = root.find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase"))
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("errors")) == len(suite.findall("testcase/error"))
    assert suite.get("skipped") == "0"
    assert root.get("tests") == suite.get("tests")


def test_pass_is_green_although_a_planted_fault_differs() -> None:
    assert red(ET.fromstring(junit_xml(judgements.passing()).encode())) == []


@pytest.mark.parametrize(("name", "element"), [("fail", "failure"), ("invalid", "error"), ("inconclusive", "error")])
def test_every_other_verdict_is_red(name: str, element: str) -> None:
    judgement = judgements.ALL[name]()
    root = ET.fromstring(junit_xml(judgement).encode())
    assert {"verdict", "gate repeatability", "gate repeatability: reference and twin-1"} <= set(red(root))
    assert root.find(f"testsuite/testcase/{element}").get("type") == name


def test_a_verdict_without_gates_is_red_too() -> None:
    judgement = dataclasses.replace(judgements.inconclusive(), gates=())
    assert red(ET.fromstring(junit_xml(judgement).encode())) == ["verdict"]


def test_the_gate_overhead_tells_what_was_measured_and_the_properties_carry_the_numbers() -> None:
    root = ET.fromstring(junit_xml(judgements.cheap()).encode())
    told = root.find("testsuite/testcase[@name='gate overhead']/system-out").text
    assert re.search(r"deterministic against baseline: 3\.\d % \(95 % interval [23]\.\d to 3\.\d %\)", told)
    assert "nothing was compared" not in told
    facts = {entry.get("name"): entry.get("value") for entry in root.iter("property")}
    found = judgements.cheap().costs[0].findings.effects[0].median
    name = "cost overhead deterministic against baseline"
    assert facts[name] == f"{found.percent:.2f}"
    assert (facts[f"{name} low"], facts[f"{name} high"]) == (f"{found.interval.low:.2f}", f"{found.interval.high:.2f}")
    assert "cost attribution NCCL_ALGO" in facts


def test_a_cost_without_evidence_is_red_and_says_why() -> None:
    root = ET.fromstring(junit_xml(judgements.unpriced()).encode())
    assert red(root) == ["verdict", "gate overhead"]
    assert "there is no manifest.json" in root.find("testsuite/testcase[@name='gate overhead']/error").text
    assert not [entry for entry in root.iter("property") if entry.get("name").startswith("cost")]
