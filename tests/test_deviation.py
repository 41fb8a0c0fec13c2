"""Which entries of a recipe make two arms incomparable."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import builders
import evidence
from samebits.judge import deviation
from samebits.sections import Recipe, Waiver


def pins_of(candidate: Recipe) -> list[str]:
    return [row.pin for row in deviation.of_recipes(builders.recipe(), candidate, (0,))]


def test_every_entry_that_can_change_a_number_or_a_record_counts() -> None:
    recipe = builders.recipe()
    excused = {"name", "gates", "controls", "twins", "waivers", "pins"}
    for field in dataclasses.fields(Recipe):
        other = dataclasses.replace(recipe, **{field.name: "another"})
        expected = [] if field.name in excused else None
        found = [row.pin for row in deviation.of_recipes(recipe, other, (0,))]
        assert found == expected if expected is not None else found, field.name


@pytest.mark.parametrize(
    ("section", "entry", "value", "counts"),
    [
        ("launch", "threads", 2, True),
        ("launch", "time_minutes", 99, False),
        ("data", "micro_batch", 4, True),
        ("capture", "every", 2, True),
        ("determinism", "environment", {"NCCL_ALGO": "Ring"}, True),
    ],
)
def test_an_entry_of_a_section_counts_or_not(section: str, entry: str, value: Any, counts: bool) -> None:
    recipe = builders.recipe()
    changed = dataclasses.replace(getattr(recipe, section), **{entry: value})
    found = pins_of(dataclasses.replace(recipe, **{section: changed}))
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
    assert [row.pin for row in deviation.of_plan(plan, dataclasses.replace(plan, **change), (0, 1))] == [named]


def test_a_checkpoint_that_moved_to_another_folder_is_no_deviation() -> None:
    plan = dataclasses.replace(builders.plan(), restore="/here")
    assert deviation.of_plan(plan, dataclasses.replace(plan, restore="/there"), (0,)) == []


def test_the_usual_pins_of_these_tests_are_in_force() -> None:
    assert evidence.pins().runtime["deterministic_algorithms"] == "True"
