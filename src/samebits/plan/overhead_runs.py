"""The experiments that measure time: which runs they take, in which order, with which settings. Host only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from samebits.recipe import determinism
from samebits.recipe.load import RecipeError
from samebits.spec.overhead import Experiment, Overhead, Timing
from samebits.spec.plan import Plan
from samebits.spec.questions import Capture, Rung
from samebits.spec.sections import Recipe, built_in

EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)

BASELINE = "baseline"
DETERMINISTIC = "deterministic"
AGAIN = "again"
REHEARSAL = "rehearsal"
"""A run before the first block; no figure is made of it."""
_MOST_SLOWDOWN = 1000
_WITHOUT = "without-"
_CAPTURE = "capture-"


def asked(recipe: Recipe) -> tuple[Experiment, ...]:
    """Those that the recipe's pipeline makes."""
    if recipe.overhead is None or "overhead" not in recipe.gates:
        return ()
    return ("overhead", *(experiment for experiment in EXPERIMENTS if experiment in recipe.overhead.also))


def chosen(*, attribute: bool, capture: bool, null: bool) -> Experiment:
    """The one that a command line names; `overhead` where it names none. Raises RecipeError for more than one."""
    wanted: dict[Experiment, bool] = {"attribution": attribute, "capture": capture, "null": null}
    named = [experiment for experiment, asked_for in wanted.items() if asked_for]
    if len(named) > 1:
        raise RecipeError(f"overhead: {' and '.join(named)} are experiments of their own; ask for one at a time")
    return named[0] if named else "overhead"


def check_slowdown(experiment: Experiment, percent: float) -> None:
    """Raises RecipeError where no such slowdown can be planted."""
    if not 0 <= percent <= _MOST_SLOWDOWN:
        raise RecipeError(
            f"overhead: --slowdown is {percent:g}, must be a percentage from 0 to {_MOST_SLOWDOWN}; use 2, for example"
        )
    if percent and experiment != "null":
        raise RecipeError(
            f"overhead: --slowdown is {percent:g}, must be left out but with --null: runs that are slowed down on "
            "purpose tell nothing about determinism"
        )


def option(experiment: Experiment) -> tuple[str, ...]:
    """Of `samebits overhead`: the other way round."""
    return {
        "overhead": (),
        "attribution": ("--attribute",),
        "capture": ("--capture",),
        "null": ("--null",),
    }[experiment]


def settings(recipe: Recipe, experiment: Experiment) -> tuple[str, ...]:
    """In the order of a block's first half."""
    match experiment:
        case "overhead":
            return BASELINE, DETERMINISTIC
        case "attribution":
            return DETERMINISTIC, *(f"{_WITHOUT}{knob}" for knob in determinism.knobs(built_in(recipe)))
        case "capture":
            return DETERMINISTIC, *(f"{_CAPTURE}{rung}" for rung in get_args(Rung))
        case "null":
            return BASELINE, AGAIN


def pairs(recipe: Recipe, experiment: Experiment) -> list[tuple[str, str]]:
    """(reference, candidate): the effect is what the candidate costs beyond the reference. What a setting costs is what
    the deterministic run takes beyond the one without it."""
    first, *others = settings(recipe, experiment)
    return [(other, first) if experiment == "attribution" else (first, other) for other in others]


def knob(experiment: Experiment, pair: tuple[str, str]) -> str:
    """The one setting, or the rung, that makes the difference; empty where all settings do."""
    reference, candidate = pair
    match experiment:
        case "attribution":
            return reference.removeprefix(_WITHOUT)
        case "capture":
            return candidate.removeprefix(_CAPTURE)
    return ""


def plans(recipe: Recipe, experiment: Experiment, slowdown_percent: float = 0.0) -> list[Plan]:
    """Every run, in the order in which they are made, a rehearsal first: whatever is cold then (files, kernel caches,
    the machine itself) would fall on the first setting. slowdown_percent: of every setting but the first.

    Raises RecipeError for a recipe without a section `overhead`.
    """
    wanted, order = _section(recipe), settings(recipe, experiment)
    first = Timing(
        experiment=experiment,
        setting=REHEARSAL,
        block=0,
        position=1,
        blocks=wanted.blocks,
        warm_up=wanted.warm_up,
        relaxed=_relaxed(recipe, order[0]),
    )
    found, count = [_plan(recipe, REHEARSAL, first, wanted.steps)], dict.fromkeys(order, 0)
    for number in range(1, wanted.blocks + 1):
        for position, setting in enumerate(block(order, number), 1):
            count[setting] += 1
            timing = dataclasses.replace(
                first,
                setting=setting,
                block=number,
                position=position,
                relaxed=_relaxed(recipe, setting),
                slowdown_percent=slowdown_percent if setting != order[0] else 0.0,
            )
            found.append(_plan(recipe, f"{setting}-{count[setting]}", timing, wanted.steps))
    return found


def block(order: Sequence[str], number: int) -> list[str]:
    """The settings of one block, from number 1 on: forth and back, or back and forth.

    Which of the two follows the Thue-Morse sequence, so that no disturbance with the rhythm of the blocks stays on one
    setting's side: A B B A, B A A B, B A A B, A B B A, ...
    """
    half = list(order) if (number - 1).bit_count() % 2 == 0 else list(reversed(order))
    return [*half, *reversed(half)]


def folder(results: Path, recipe_name: str, experiment: Experiment) -> Path:
    """Of the experiment; each run's artifact lies in it, by its arm's name."""
    return results / recipe_name / experiment


def _section(recipe: Recipe) -> Overhead:
    if recipe.overhead is None:
        raise RecipeError(
            f"{recipe.name}: overhead is absent, must say how time is measured; add the section `overhead` with "
            "limit_percent, blocks, steps and warm_up"
        )
    return recipe.overhead


def _plan(recipe: Recipe, arm: str, timing: Timing, steps: int) -> Plan:
    rung = timing.setting.removeprefix(_CAPTURE) if timing.setting.startswith(_CAPTURE) else None
    if rung is not None:
        whole = Capture(rung=next(known for known in get_args(Rung) if known == rung))
        recipe = dataclasses.replace(recipe, capture=whole)
    return Plan(
        arm=arm,
        recipe=recipe,
        first_step=1,
        last_step=timing.warm_up + steps,
        restore=None,
        capture=rung is not None,
        keep_checkpoints=False,
        timing=timing,
    )


def _relaxed(recipe: Recipe, setting: str) -> tuple[str, ...]:
    if setting in (BASELINE, AGAIN):
        return determinism.knobs(built_in(recipe))
    return (setting.removeprefix(_WITHOUT),) if setting.startswith(_WITHOUT) else ()
