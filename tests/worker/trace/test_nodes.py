"""Node names folded into ranges, and what makes nodes of one job unlike each other."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evidence
from samebits.compare.nodes import MOST_RUNS, differences, names_text
from samebits.fingerprint.manifest import Manifest, read_manifest
from samebits.fingerprint.paths import Artifact


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        ([""], "unknown"),
        (["n1"], "n1"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["login", "n001", "n002"], "login, n[001-002]"),
        (["r1n1.cluster7.org", "r1n2.cluster7.org", "r2n1.cluster7.org"], "r1n[1-2].cluster7.org, r2n1.cluster7.org"),
        (["node-a", "node-b"], "node-a, node-b"),
    ],
)
def test_names_that_count_up_are_one_range(names: list[str], text: str) -> None:
    assert names_text(names) == text
    assert names_text([*reversed(names), *names]) == text


def test_608_nodes_stay_readable() -> None:
    assert names_text(f"nid{number:06d}" for number in range(1000, 1608)) == "nid[001000-001607]"
    scattered = names_text(f"n{number:04d}" for number in range(0, 1216, 2))
    assert len(scattered) < 100
    assert scattered.endswith("and 596 more")


def unfolded(text: str) -> set[str]:
    """The names of a text of `names_text`."""
    found = set()
    for prefix, numbers, suffix in re.findall(r"([a-z0-9-]*)(?:\[([0-9,-]+)\])?([a-z.]*)(?:, |$)", text):
        for entry in numbers.split(",") if numbers else [""]:
            low, _, high = entry.partition("-")
            counted = range(int(low), int(high or low) + 1) if low else [""]
            found |= {f"{prefix}{str(number).zfill(len(low))}{suffix}" for number in counted}
    return found - {""}


@given(names=st.sets(st.from_regex(r"(n|gpu-|r1n|a)(0{0,2}[0-9]{1,2})?(\.x)?", fullmatch=True), max_size=MOST_RUNS))
def test_a_folded_text_names_exactly_the_nodes(names: set[str]) -> None:
    assert unfolded(names_text(names)) == names


def manifest(*pins: dict[str, dict[str, str]]) -> Manifest:
    """pins: groups of each rank."""
    artifact = evidence.written(
        evidence.scratch() / "a", world=len(pins), pins=lambda rank: evidence.pins(rank, **pins[rank])
    )
    return read_manifest(Artifact(artifact.folder))


def on(node: str, **hardware: str) -> dict[str, dict[str, str]]:
    return {"placement": {"node": node}, "hardware": hardware}


def test_nodes_of_one_kind_are_not_worth_a_word() -> None:
    assert differences([manifest(on("n1"), on("n2"))]) == []


def test_nodes_that_differ_are_named_with_their_values() -> None:
    found = differences([manifest(on("n1", cpu="A"), on("n2", cpu="B"), on("n3", cpu="A"))])
    assert found == ["Nodes differ: cpu is A on n[1,3] and B on n2."]


def test_driver_and_kernel_belong_to_the_node() -> None:
    apart = {"placement": {"node": "n2", "kernel": "6.2"}, "software": {"driver": "580"}}
    usual = {"placement": {"node": "n1", "kernel": "6.1"}, "software": {"driver": "570"}}
    assert differences([manifest(usual, apart)]) == [
        "Nodes differ: driver is 570 on n1 and 580 on n2.",
        "Nodes differ: kernel is 6.1 on n1 and 6.2 on n2.",
    ]


def test_unlike_ranks_on_like_nodes_are_no_difference_of_nodes() -> None:
    ranks = [on(node, gpu=gpu) for node, gpu in itertools.product(("n1", "n2"), ("A", "B"))]
    assert differences([manifest(*ranks)]) == []


def test_nodes_of_two_arms_are_held_against_each_other() -> None:
    assert differences([manifest(on("n1", cpu="A")), manifest(on("n2", cpu="B"))]) == [
        "Nodes differ: cpu is A on n1 and B on n2."
    ]


def test_many_differences_stay_a_few_lines() -> None:
    ranks = [on(f"n{rank}", **{f"pin-{pin}": str(rank) for pin in range(6)}) for rank in range(7)]
    found = differences([manifest(*ranks)])
    assert found[0] == "Nodes differ: pin-0 is 0 on n0, 1 on n1, 2 on n2, 3 on n3 and 3 more on 3 nodes."
    assert (len(found), found[-1]) == (5, "Nodes differ in 2 more pins.")
