"""junit.xml: never green for anything but `pass`."""

from __future__ import annotations

import dataclasses
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import judgements
from samebits.report.junit import junit_xml

GOLDEN = Path(__file__).parent / "golden"


def red(root: ET.Element) -> list[str]:
    return [
        case.get("name")
        for case in root.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


@pytest.mark.parametrize("name", judgements.ALL)
def test_the_file_is_the_golden_one(name: str) -> None:
    """`UPDATE_GOLDEN=1 pytest tests/test_junit.py` writes them anew; read the difference before you commit it."""
    path, text = GOLDEN / f"junit-{name}.xml", junit_xml(judgements.ALL[name]())
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("build", [*judgements.ALL.values(), judgements.hostile, judgements.large])
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
