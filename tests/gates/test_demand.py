"""Arms that must run on the same nodes, or on others: equal bits elsewhere are no answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import artifacts
import evidence
from comparing import SOME
from samebits.compare.results import GateResult
from samebits.gates.evidence import Evidence
from samebits.gates.gates import held_to_placement
from samebits.gates.judge import judge
from samebits.gates.judgement import Judgement
from samebits.plan import arms
from samebits.spec.pins import Pins
from samebits.spec.surroundings import Cluster

WORLD = 4
ALTERED = artifacts.altered("parameter:w0", rank=1, step=4)


def on(nodes: str, job: str = "7", **marks: str) -> dict[str, Any]:
    """nodes, marks: a letter for each rank."""

    def pins(rank: int) -> Pins:
        own = {name: letters[rank] for name, letters in marks.items()}
        return evidence.pins(rank, placement={"node": f"n{nodes[rank]}", "job": job, **own})

    return {"pins": pins}


def asking(placement: str, **cluster: Any) -> dict[str, Any]:
    return {
        "parallel": {"world": WORLD, "data": WORLD},
        "gates": ["repeatability", "resume", "control", "observer"],
        "cluster": {"nodes": 2, "ranks_per_node": 2, "placement": placement, **cluster},
    }


def judged(placement: str, recorded: str | None = None, **changes: dict[str, Any]) -> Judgement:
    """Arms run on n1 and n2 unless a change says otherwise. recorded: placement in the arms' own plans."""
    results = evidence.Results(evidence.recipe(world=WORLD, **asking(recorded or placement)), evidence.scratch())
    usual = {name.replace("-", "_"): on("1122") for name in arms.arms(results.recipe)}
    for name, change in changes.items():
        usual[name] = {**usual[name], **change}
    folder = results.write(**usual)
    cluster = dataclasses.replace(results.recipe.cluster, placement=placement)
    return judge(dataclasses.replace(results.recipe, cluster=cluster), folder)


def gate(judgement: Judgement, name: str) -> GateResult:
    return next(gate for gate in judgement.gates if gate.gate == name)


def test_any_placement_passes_where_none_is_asked_for() -> None:
    assert judged("any", twin_1=on("3344")).verdict == "pass"
    assert judged("any").verdict == "pass"


def test_twins_on_other_nodes_pass_and_the_scope_says_so() -> None:
    found = judged("other-nodes", twin_1=on("3344", job="8"))
    assert found.verdict == "pass"
    assert (
        "twin-1 ran on none of the reference's nodes; this says nothing about nodes that took no part." in found.scope
    )
    assert "twin-1 and the reference were compared across allocations" in found.scope
    assert "bare, resumed ran within one allocation with the reference" in found.scope
    assert "Asked for and not tested" not in found.scope


@pytest.mark.parametrize(
    ("twin", "told"),
    [
        (on("1122"), "both ran on n[1-2]"),
        (on("2211"), "both ran on n[1-2]"),
        (on("1133"), "both ran on n1"),
        (on("3344", boot="wxyz"), "n4 is a machine of the reference under another name (same boot id or GPU)"),
    ],
)
def test_twins_that_share_a_node_are_inconclusive_and_the_node_is_named(twin: dict[str, Any], told: str) -> None:
    found = judged("other-nodes", reference=on("1122", boot="abcz"), twin_1=twin)
    result = gate(found, "repeatability")
    assert (result.verdict, found.verdict) == ("inconclusive", "inconclusive")
    assert f"cluster.placement is other-nodes and {told}, so that is not tested" in result.explanation
    assert "run twin-1 again on nodes that the reference did not have" in result.explanation
    assert "Asked for and not tested: repeatability on other nodes, for twin-1 did not run so." in found.scope
    assert {gate(found, name).verdict for name in ("resume", "control", "observer")} == {"pass"}


def nowhere(rank: int) -> Pins:
    return dataclasses.replace(evidence.pins(rank), placement={})


def test_a_twin_of_unknown_nodes_passes_only_where_nothing_is_asked_for() -> None:
    """In the arms' own plans no number of nodes is asked for: that would be a deviation already."""
    recipe = evidence.recipe(gates=["repeatability", "control"])
    results = evidence.Results(recipe, evidence.scratch())
    folder = results.write(**{name.replace("-", "_"): {"pins": nowhere} for name in arms.arms(recipe)})
    found = judge(recipe, folder)
    assert found.verdict == "pass"
    assert "Where the reference or the compared arms ran was not recorded" in found.scope
    for placement in ("other-nodes", "same-nodes"):
        asked = dataclasses.replace(recipe, cluster=Cluster(nodes=1, ranks_per_node=2, placement=placement))
        result = held_to_placement(gate(found, "repeatability"), Evidence(asked, folder))
        assert result.verdict == "inconclusive"
        assert "where the reference or twin-1 ran was not recorded" in result.explanation


def test_a_failure_stays_a_failure_wherever_it_ran() -> None:
    for placement, twin in (("other-nodes", on("1122")), ("same-nodes", on("3344"))):
        found = judged(placement, twin_1={**twin, "change": ALTERED})
        assert gate(found, "repeatability").verdict == "fail"


def test_an_arm_that_is_not_comparable_stays_invalid_wherever_it_ran() -> None:
    unlike = {"pins": lambda rank: evidence.pins(rank, software={"torch": "9"}, placement={"node": f"n{rank // 2}"})}
    assert gate(judged("other-nodes", twin_1=unlike), "repeatability").verdict == "invalid"


def test_all_arms_on_the_same_nodes_pass() -> None:
    found = judged("same-nodes")
    assert found.verdict == "pass"
    assert "The compared arms ran on the reference's nodes, rank by rank" in found.scope
    assert "The compared arms ran within one allocation with the reference: NCCL_ALGO=Ring" in found.scope


@pytest.mark.parametrize(("arm", "name"), [("twin_1", "repeatability"), ("resumed", "resume"), ("bare", "observer")])
@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("2211", "ranks 0-3 ran on n[1-2] there and on n[1-2] here"),
        ("2112", "ranks 0, 2 ran on n[1-2] there and on n[1-2] here"),
        ("3344", "ranks 0-3 ran on n[1-2] there and on n[3-4] here"),
    ],
)
def test_an_arm_with_a_rank_on_another_node_is_inconclusive_in_its_gate(
    arm: str, name: str, nodes: str, told: str
) -> None:
    found = judged("same-nodes", **{arm: on(nodes)})
    assert gate(found, name).verdict == "inconclusive"
    assert told in gate(found, name).explanation
    assert f"Asked for and not tested: {name} on the same nodes, rank by rank" in found.scope
    assert [other.gate for other in found.gates if other.verdict != "pass"] == [name]


@pytest.mark.parametrize("recorded", ["any", "same-nodes", "other-nodes"])
def test_the_observed_nodes_decide_whatever_the_arms_own_plan_asked_for(recorded: str) -> None:
    assert judged("other-nodes", recorded, twin_1=on("3344")).verdict == "pass"
    assert gate(judged("other-nodes", recorded), "repeatability").verdict == "inconclusive"
    assert judged("any", recorded).verdict == "pass"


@SOME
@given(nodes=st.permutations("112233445566").map(lambda letters: "".join(letters[:WORLD])))
def test_a_pass_on_other_nodes_has_no_node_in_common(nodes: str) -> None:
    found = judged("other-nodes", twin_1=on(nodes))
    if gate(found, "repeatability").verdict == "pass":
        assert not set(nodes) & set("12")


def test_other_nodes_without_a_twin_are_said_to_be_untested() -> None:
    recipe = evidence.recipe(world=WORLD, **{**asking("other-nodes"), "gates": ["resume", "control"]})
    results = evidence.Results(recipe, evidence.scratch())
    found = judge(recipe, results.write(**{name.replace("-", "_"): on("1122") for name in arms.arms(recipe)}))
    assert "Asked for and not tested: other nodes, for the recipe has no gate repeatability." in found.scope


def test_unlike_nodes_are_named_in_the_scope_and_fail_nothing() -> None:
    def pins(rank: int) -> Pins:
        cpu = "B" if rank > 1 else "A"
        return evidence.pins(rank, placement={"node": f"n{rank // 2}"}, hardware={"cpu": cpu})

    names = [name.replace("-", "_") for name in arms.arms(evidence.recipe())]
    found = judged("any", **{name: {"pins": pins} for name in names})
    assert found.verdict == "pass"
    assert "Nodes differ: cpu is A on n0 and B on n1." in found.scope


def test_the_summary_of_an_arm_names_its_nodes_and_its_job() -> None:
    found = {arm.arm: (arm.nodes, arm.job) for arm in judged("any", twin_1=on("3344", job="8")).arms}
    assert (found["reference"], found["twin-1"]) == (("n[1-2]", "7"), ("n[3-4]", "8"))


def test_a_divergence_names_the_node_of_each_arm() -> None:
    found = judged("any", twin_1={**on("3344"), "change": ALTERED})
    divergence = gate(found, "repeatability").comparisons[0].divergence
    assert divergence is not None
    assert divergence.ranks[0].host == "n1 / n3"
