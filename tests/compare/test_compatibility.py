"""Two arms that must not be compared are `invalid`, whatever their bits, and every deviation is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import artifacts
import builders
import evidence
from artifacts import coordinates
from comparing import WORLD, against, place_of, twin
from samebits.compare import compatibility
from samebits.compare.compare import compare
from samebits.compare.results import Comparison
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact
from samebits.gates.judge import judge
from samebits.plan import arms
from samebits.spec import stressors
from samebits.spec.pins import ABSENT, Pins
from samebits.spec.plan import Plan, PlanError
from samebits.spec.questions import Waiver
from samebits.spec.sections import Recipe
from samebits.spec.surroundings import Cluster, Container
from samebits.stress import results as stress

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


# not comparable


@pytest.mark.parametrize("group", ["software", "libraries", "hardware", "runtime", "environment", "code", "data"])
def test_a_deviating_pin_is_invalid_though_all_bits_are_equal(reference: Artifact, group: str) -> None:
    found = against(reference, pins=evidence.on_rank(1, **{group: {"thing": "other"}}))
    assert found.verdict == "invalid"
    assert [(row.pin, row.candidate, row.ranks) for row in found.deviations] == [(f"{group}.thing", "other", (1,))]


def test_a_deviating_pin_is_invalid_and_the_divergence_still_shown(reference: Artifact) -> None:
    changes = {"change": artifacts.altered("parameter:w0", rank=1, step=3)}
    found = against(reference, pins=evidence.on_rank(None, software={"torch": "2.14.0"}), **changes)
    assert found.verdict == "invalid"
    assert [(row.pin, row.reference, row.candidate) for row in found.deviations] == [
        ("software.torch", "2.13.0", "2.14.0")
    ]
    assert found.deviations[0].ranks == (0, 1, 2)
    assert place_of(found)[:4] == ("step", 3, 1, "parameter:w0")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 7}, "recipe.seed"),
        ({"precision": "fp32"}, "recipe.precision"),
        ({"optimizer": {"lr": 2e-3}}, "recipe.optimizer.lr"),
        ({"data": {"stream_seed": 8}}, "recipe.data.stream_seed"),
        ({"plan": evidence.limited(arm="twin-1", world=WORLD, every=2)}, "recipe.capture.every"),
        ({"determinism": {"environment": {"PYTHONHASHSEED": "1"}}}, "recipe.determinism.environment.PYTHONHASHSEED"),
    ],
)
def test_another_recipe_is_invalid_and_the_entry_named(reference: Artifact, change: dict[str, Any], named: str) -> None:
    found = against(reference, **change)
    assert found.verdict == "invalid"
    assert named in [row.pin for row in found.deviations]


def test_entries_without_effect_are_no_deviation(reference: Artifact) -> None:
    found = against(reference, name="other", gates=["control"], twins=3)
    assert found.verdict == "pass"


def test_another_rung_is_invalid_and_the_steps_are_named(reference: Artifact) -> None:
    found = against(reference, plan=evidence.limited(arm="twin-1", world=WORLD, ranks=(0, 1)))
    assert found.verdict == "invalid"
    capture = next(row for row in found.deviations if row.pin == "capture")
    assert (capture.ranks, "state" in capture.reference, "metrics" in capture.candidate) == ((2,), True, True)
    assert found.divergence is None


def test_a_rank_at_another_place_of_the_layout_is_a_deviation(reference: Artifact) -> None:
    manifest = read_manifest(reference)
    moved = dataclasses.replace(manifest.ranks[1], coordinates=dataclasses.replace(coordinates(1, WORLD), tensor=1))
    other = dataclasses.replace(manifest, ranks=(manifest.ranks[0], moved, *manifest.ranks[2:]))
    assert [(row.pin, row.ranks) for row in compatibility.of_surroundings(manifest, other)] == [("coordinates", (1,))]
    assert compatibility.of_surroundings(manifest, manifest) == []


def test_a_declared_pin_that_was_not_observed_is_invalid_in_either_arm(tmp_path: Path, reference: Artifact) -> None:
    declaring = evidence.written(tmp_path / "declaring", world=WORLD, launch="another", pins=evidence.pins, **_declared)
    for found in (compare(declaring, twin()), against(reference, **_declared)):
        assert found.verdict == "invalid"
        assert [(row.pin, row.reference, row.candidate) for row in found.deviations] == [
            ("software.torch", "9.9", "2.13.0")
        ]


_declared = {"plan": dataclasses.replace(artifacts.make_plan(world=WORLD, arm="twin-1", pins={"torch": "9.9"}))}


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("runtime", "deterministic_algorithms", "False"),
        ("runtime", "fill_uninitialized_memory", "True"),
        ("runtime", "threads", "2"),
        ("environment", "CUBLAS_WORKSPACE_CONFIG", ""),
        ("environment", "NCCL_ALGO", "Tree"),
    ],
)
def test_a_setting_that_is_not_in_force_in_both_arms_is_invalid(
    tmp_path: Path, group: str, name: str, value: str
) -> None:
    pins = evidence.on_rank(1, **{group: {name: value}})
    found = compare(
        evidence.written(tmp_path / "reference", pins=pins),
        evidence.written(tmp_path / "twin-1", arm="twin-1", pins=pins),
    )
    assert found.verdict == "invalid"
    assert [(row.pin, row.candidate, row.ranks) for row in found.deviations] == [
        (f"{group}.{name}", f"{value} (in force)", (1,))
    ]


def test_another_digest_algorithm_or_world_is_invalid(reference: Artifact) -> None:
    digest, world = against(reference, digest="other-1"), against(reference, world=2)
    assert (digest.verdict, [row.pin for row in digest.deviations]) == ("invalid", ["digest"])
    assert (world.verdict, [row.pin for row in world.deviations]) == ("invalid", ["world"])


PINS = {"hash-seed": "PYTHONHASHSEED", "cold-caches": "TRITON_CACHE_DIR"}


def varied(folder: Path, *names: str, **groups: dict[str, str]) -> tuple[Artifact, Artifact]:
    """A reference, and a run of these variations that observed other pins on rank 1."""
    plan = dataclasses.replace(artifacts.make_plan(arm="varied"), stress=names)
    pins = evidence.on_rank(1, **groups)
    return evidence.written(folder / "reference"), evidence.written(folder / "varied", plan=plan, pins=pins)


def stressed(pair: tuple[Artifact, Artifact]) -> Comparison:
    reference, candidate = pair
    return stress.compared(artifacts.make_plan().recipe, reference.folder, candidate.folder)


@pytest.mark.parametrize(("name", "variable"), PINS.items())
def test_a_stress_run_may_deviate_in_what_it_varies_and_only_where_it_is_judged_as_one(
    name: str, variable: str, tmp_path: Path
) -> None:
    pair = varied(tmp_path, name, environment={variable: "another"})
    assert stressed(pair).verdict == "pass"
    ordinary = compare(*pair)
    assert ordinary.verdict == "invalid"
    assert [row.pin for row in ordinary.deviations] == [f"environment.{variable}"]


@pytest.mark.parametrize("names", [(), ("contention",), ("addresses", "host-name", "delayed-rank", "node-order")])
@pytest.mark.parametrize("variable", PINS.values())
def test_a_pin_that_its_variations_do_not_change_makes_it_invalid(
    names: tuple[str, ...], variable: str, tmp_path: Path
) -> None:
    assert stressed(varied(tmp_path, *names, environment={variable: "another"})).verdict == "invalid"


@pytest.mark.parametrize(
    "groups",
    [
        {"environment": {"NCCL_ALGO": "Tree"}},
        {"environment": {"OMP_NUM_THREADS": "2"}},
        {"runtime": {"threads": "2"}},
        {"software": {"torch": "2.12.0"}},
        {"hardware": {"cpu": "another"}},
        {"code": {"samebits": "another"}},
        {"data": {"stream": "another"}},
        {"libraries": {"libm.so": "another"}},
    ],
)
def test_all_variations_together_excuse_no_other_pin(groups: dict[str, Any], tmp_path: Path) -> None:
    found = stressed(varied(tmp_path, *stressors.NAMES, **groups))
    assert found.verdict == "invalid"


def test_the_host_is_a_place_not_a_pin(tmp_path: Path) -> None:
    assert stressed(varied(tmp_path, "host-name", placement={"host": "stress-node-0"})).verdict == "pass"


def test_a_stress_run_in_the_place_of_a_twin_makes_the_gate_invalid(tmp_path: Path) -> None:
    """Whatever its pins are."""
    recipe = evidence.recipe(gates=["repeatability"])
    results = evidence.Results(recipe, tmp_path)
    twin = dataclasses.replace(arms.plan(recipe, "twin-1", tmp_path), stress=("contention",))
    results.write(twin_1={"plan": twin})
    judgement = judge(recipe, tmp_path)
    assert judgement.verdict == "invalid"
    (gate,) = judgement.gates
    assert [row.pin for row in gate.comparisons[0].deviations] == ["arm.stress"]


def test_a_plans_variations_make_its_arm_run_again() -> None:
    plan = artifacts.make_plan()
    other = dataclasses.replace(plan, stress=("contention",))
    assert arms.key(plan) != arms.key(other)
    assert arms.explain_change(plan, other) == ['stress[0]: absent -> "contention"']
    assert [row.pin for row in compatibility.of_plan(plan, other, (0,))] == ["arm.stress"]


def test_plans_that_know_no_stress_are_read_and_unknown_variations_are_not() -> None:
    plan = artifacts.make_plan()
    old = plan.to_json().replace(' "stress": [],\n', "")
    assert "stress" not in old
    assert Plan.from_json(old) == plan
    with pytest.raises(PlanError, match="hashseed"):
        Plan.from_json(plan.to_json().replace('"stress": []', '"stress": ["hashseed"]'))


def test_every_variation_says_what_it_does_and_is_one() -> None:
    assert len(set(stressors.NAMES)) == len(stressors.NAMES) == 9
    assert all(variation.does for variation in stressors.VARIATIONS)
    assert stressors.pins_varied(stressors.NAMES) == {f"environment.{name}" for name in PINS.values()}
