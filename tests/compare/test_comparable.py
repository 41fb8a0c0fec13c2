"""Two arms that must not be compared are `invalid`, whatever their bits, and every deviation is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import artifacts
import evidence
from artifacts import coordinates
from comparing import WORLD, against, place_of, twin
from samebits.compare import compatibility
from samebits.compare.compare import compare
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return evidence.written(tmp_path_factory.mktemp("arms") / "reference", world=WORLD)


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
