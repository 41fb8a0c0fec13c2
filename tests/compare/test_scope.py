"""Where two arms ran, seen from each other: nodes rank by rank, and allocations."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from samebits.compare.results import Allocation, Placement
from samebits.compare.scope import allocation, placement, renamed
from samebits.fingerprint.manifest import Manifest, read_manifest

WORLD = 4
NODES = st.lists(st.sampled_from(["n1", "n2", "n3", "n4", "n5"]), min_size=WORLD, max_size=WORLD)
JOBS = st.lists(st.sampled_from(["", "7", "8"]), min_size=WORLD, max_size=WORLD)


@functools.cache
def _manifest() -> Manifest:
    return read_manifest(evidence.written(evidence.scratch() / "a", world=WORLD))


def placed(entries: Sequence[dict[str, str]]) -> Manifest:
    """entries: placement of each rank."""
    files = [
        dataclasses.replace(file, pins=dataclasses.replace(artifacts.make_pins(), placement=entry))
        for file, entry in zip(_manifest().ranks, entries, strict=True)
    ]
    return dataclasses.replace(_manifest(), ranks=tuple(files))


def on(nodes: Sequence[str], **marks: Sequence[str]) -> Manifest:
    """nodes, marks: of each rank; letters count as one each."""
    columns = {"node": nodes, **marks}
    return placed([{name: values[rank] for name, values in columns.items()} for rank in range(WORLD)])


@pytest.mark.parametrize(
    ("reference", "candidate", "found"),
    [
        ("aaaa", "aaaa", "one node"),
        ("aabb", "aabb", "same nodes"),
        ("aabb", "bbaa", "same nodes, ranks placed otherwise"),
        ("aabb", "aaab", "same nodes, ranks placed otherwise"),
        ("aabb", "aacc", "partly other nodes"),
        ("aabb", "aaaa", "partly other nodes"),
        ("aabb", "ccdd", "other nodes"),
        ("aaaa", "bbbb", "other nodes"),
        (["a", "a", "b", ""], "ccdd", "unknown nodes"),
        ("aabb", ["", "", "", ""], "unknown nodes"),
    ],
)
def test_nodes_of_two_arms_are_held_against_each_other_rank_by_rank(
    reference: Sequence[str], candidate: Sequence[str], found: Placement
) -> None:
    assert placement(on(reference), on(candidate)) == found


@pytest.mark.parametrize("mark", ["boot", "gpu-uuid"])
def test_a_machine_under_another_name_is_no_other_node(mark: str) -> None:
    reference = on("aabb", **{mark: "xxyy"})
    assert placement(reference, on("ccdd", **{mark: "uuvv"})) == "other nodes"
    assert placement(reference, on("ccdd", **{mark: "uuvy"})) == "renamed nodes"
    assert renamed(reference, on("ccdd", **{mark: "uuvy"})) == {"d"}
    assert placement(reference, on("aadd", **{mark: "xxyy"})) == "renamed nodes"


def test_a_node_that_was_started_again_between_two_arms_is_the_same_node() -> None:
    assert placement(on("aabb", boot="xxyy"), on("aabb", boot="uuvv")) == "same nodes"


@given(reference=NODES, candidate=NODES)
def test_other_nodes_share_none_and_same_nodes_differ_on_no_rank(reference: list[str], candidate: list[str]) -> None:
    found = placement(on(reference), on(candidate))
    shared = set(reference) & set(candidate)
    assert found in typing.get_args(Placement)
    assert (found == "other nodes") == (not shared)
    assert (found in ("one node", "same nodes")) == (reference == candidate)
    assert (found == "partly other nodes") == (bool(shared) and set(reference) != set(candidate))


@given(reference=NODES, candidate=NODES)
def test_the_relation_of_nodes_is_the_same_from_both_sides(reference: list[str], candidate: list[str]) -> None:
    assert placement(on(reference), on(candidate)) == placement(on(candidate), on(reference))


@given(reference=NODES, candidate=NODES, boots=NODES)
def test_a_boot_id_can_take_the_claim_of_other_nodes_away_and_never_give_it(
    reference: list[str], candidate: list[str], boots: list[str]
) -> None:
    known = placement(on(reference, boot=boots), on(candidate, boot=boots))
    assert known in (placement(on(reference), on(candidate)), "renamed nodes")


@pytest.mark.parametrize(
    ("reference", "candidate", "found"),
    [
        ("7777", "7777", "one allocation"),
        ("7788", "7788", "one allocation"),
        ("7777", "8888", "several allocations"),
        ("7788", "8877", "unknown allocations"),
        ("7777", "7778", "unknown allocations"),
        (["", "", "", ""], ["", "", "", ""], "no scheduler"),
        ("7777", ["", "", "", ""], "unknown allocations"),
        (["7", "7", "7", ""], ["7", "7", "7", ""], "unknown allocations"),
    ],
)
def test_allocations_are_told_apart_by_the_jobs_of_all_ranks(
    reference: Sequence[str], candidate: Sequence[str], found: Allocation
) -> None:
    assert allocation(on("aabb", job=reference), on("aabb", job=candidate)) == found


@given(reference=JOBS, candidate=JOBS)
def test_across_allocations_is_said_only_where_every_rank_of_both_has_a_job_of_its_own_side(
    reference: list[str], candidate: list[str]
) -> None:
    found = allocation(on("aabb", job=reference), on("aabb", job=candidate))
    certain = "" not in reference + candidate and not set(reference) & set(candidate)
    assert (found == "several allocations") == certain
    assert (found == "no scheduler") == (set(reference + candidate) == {""})
