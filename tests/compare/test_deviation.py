"""Which entries of a recipe make two arms incomparable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import artifacts
import builders
import evidence
from samebits.compare import compatibility
from samebits.fingerprint.manifest import read_manifest
from samebits.spec.pins import ABSENT, Pins
from samebits.spec.questions import Waiver
from samebits.spec.sections import Recipe
from samebits.spec.surroundings import Cluster, Container

DIGEST = "sha256:" + "ab" * 32
IMAGE = f"hub.example/torch@{DIGEST}"
CLUSTER = Cluster(nodes=1, ranks_per_node=2)


def pins_of(candidate: Recipe) -> list[str]:
    return [row.pin for row in compatibility.of_recipes(builders.recipe(), candidate, (0,))]


def test_every_entry_that_can_change_a_number_or_a_record_counts() -> None:
    recipe = builders.recipe()
    excused = {"name", "gates", "controls", "twins", "waivers", "overhead", "pins"}
    for field in dataclasses.fields(Recipe):
        other = dataclasses.replace(recipe, **{field.name: "another"})
        expected = [] if field.name in excused else None
        found = [row.pin for row in compatibility.of_recipes(recipe, other, (0,))]
        assert found == expected if expected is not None else found, field.name


@pytest.mark.parametrize(
    ("section", "entry", "value", "counts"),
    [
        ("launch", "threads", 2, True),
        ("launch", "time_minutes", 99, False),
        ("cluster", "placement", "other-nodes", False),
        ("cluster", "nodes", 2, True),
        ("container", "image", "hub/torch@sha256:1", True),
        ("data", "micro_batch", 4, True),
        ("capture", "every", 2, True),
        ("determinism", "environment", {"NCCL_ALGO": "Ring"}, True),
    ],
)
def test_an_entry_of_a_section_counts_or_not(section: str, entry: str, value: Any, counts: bool) -> None:
    recipe = dataclasses.replace(builders.recipe(), cluster=CLUSTER, container=Container(image=IMAGE))
    changed = dataclasses.replace(getattr(recipe, section), **{entry: value})
    other = dataclasses.replace(recipe, **{section: changed})
    found = [row.pin for row in compatibility.of_recipes(recipe, other, (0,))]
    assert bool(found) == counts
    assert all(pin.startswith(f"recipe.{section}.{entry}") for pin in found)


def test_waivers_do_not_count() -> None:
    assert not pins_of(dataclasses.replace(builders.recipe(), waivers=(Waiver(item="rng:python", reason="unused"),)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"arm": "twin-2"}, "arm.name"),
        ({"first_step": 2}, "arm.first_step"),
        ({"last_step": 3}, "arm.last_step"),
        ({"restore": "/checkpoint"}, "arm.restored"),
        ({"capture": False}, "arm.capture"),
    ],
)
def test_an_arm_run_otherwise_than_planned_is_named(change: dict[str, Any], named: str) -> None:
    plan = builders.plan()
    assert [row.pin for row in compatibility.of_plan(plan, dataclasses.replace(plan, **change), (0, 1))] == [named]


def test_a_checkpoint_that_moved_to_another_folder_is_no_deviation() -> None:
    plan = dataclasses.replace(builders.plan(), restore="/here")
    assert compatibility.of_plan(plan, dataclasses.replace(plan, restore="/there"), (0,)) == []


def test_the_usual_pins_of_these_tests_are_in_force() -> None:
    assert evidence.pins().runtime["deterministic_algorithms"] == "True"


def promises(pins: Callable[[int], Pins], world: int, **sections: Any) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Deviations of one arm from what its own recipe asks for."""
    artifact = evidence.written(evidence.scratch() / "a", pins=pins, plan=artifacts.make_plan(world=world, **sections))
    found = compatibility.of_promises(read_manifest(artifact), {})
    return [(row.pin, row.reference, row.candidate, row.ranks) for row in found]


def on_nodes(*nodes: str) -> Callable[[int], Pins]:
    """nodes: of each rank."""
    return lambda rank: evidence.pins(rank, placement={"host": "container", "node": nodes[rank]})


def in_image(*images: str) -> Callable[[int], Pins]:
    return lambda rank: evidence.pins(rank, software={"image": images[rank]} if images[rank] else {})


def test_the_image_that_was_asked_for_must_be_in_force_on_every_rank() -> None:
    container = {"container": {"image": IMAGE}}
    assert promises(in_image(DIGEST, DIGEST), 2, **container) == []
    asked = f"{DIGEST} (asked for)"
    assert promises(in_image(DIGEST, "sha256:cd"), 2, **container) == [
        ("software.image", asked, "sha256:cd (in force)", (1,))
    ]
    assert promises(in_image("", ""), 2, **container) == [("software.image", asked, f"{ABSENT} (in force)", (0, 1))]


def test_an_image_that_was_not_asked_for_is_no_promise() -> None:
    assert promises(in_image(DIGEST, DIGEST), 2) == []


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (["n1", "n1", "n2", "n2"], []),
        (["n1", "n2", "n1", "n2"], []),
        (
            ["n1", "n1", "n1", "n1"],
            [
                ("cluster.nodes", "2 (asked for)", "1: n1 (in force)", (0, 1, 2, 3)),
                ("cluster.ranks_per_node", "2 (asked for)", "4 on n1 (in force)", (0, 1, 2, 3)),
            ],
        ),
        (
            ["n1", "n1", "n2", "n3"],
            [
                ("cluster.nodes", "2 (asked for)", "3: n[1-3] (in force)", (0, 1, 2, 3)),
                ("cluster.ranks_per_node", "2 (asked for)", "1 on n[2-3] (in force)", (2, 3)),
            ],
        ),
        (
            ["n1", "n1", "n1", "n2"],
            [
                ("cluster.ranks_per_node", "2 (asked for)", "1 on n2 (in force)", (3,)),
                ("cluster.ranks_per_node", "2 (asked for)", "3 on n1 (in force)", (0, 1, 2)),
            ],
        ),
    ],
)
def test_nodes_and_ranks_on_each_must_be_as_many_as_asked_for(nodes: list[str], found: list[Any]) -> None:
    assert promises(on_nodes(*nodes), 4, cluster={"nodes": 2, "ranks_per_node": 2}) == found


def test_ranks_whose_node_is_not_known_are_no_evidence_of_a_cluster() -> None:
    unknown = promises(
        lambda rank: dataclasses.replace(evidence.pins(rank), placement={}),
        2,
        cluster={"nodes": 1, "ranks_per_node": 2},
    )
    assert unknown == [
        ("cluster.nodes", "1 (asked for)", "0: unknown (in force)", (0, 1)),
        ("cluster.ranks_per_node", "2 (asked for)", "2 on unknown (in force)", (0, 1)),
    ]
