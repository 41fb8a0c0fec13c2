"""Reads a fault to plant from a command line: `KIND[:rank=N][:step=N][:target=NAME][:probability=P]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import get_args

from samebits.recipe.evidence_rules import BY_CHANCE, fault_rank, fault_step
from samebits.spec.questions import Control, Fault, FaultKind
from samebits.spec.sections import Recipe


class PlantError(ValueError):
    """A text that names no fault."""


def parse(text: str) -> Fault:
    """Raises PlantError with the rule that the text breaks."""
    kind, *parts = text.split(":")
    if kind not in get_args(FaultKind):
        raise PlantError(f"--plant: kind is {kind!r}, must be one of {', '.join(get_args(FaultKind))}")
    values: dict[str, float | int | str] = {}
    for part in parts:
        key, separator, value = part.partition("=")
        if key not in _READERS or not separator:
            raise PlantError(f"--plant: {part!r} must be rank=N, step=N, target=NAME or probability=P")
        values[key] = _READERS[key](key, value)
    if "probability" in values and kind not in BY_CHANCE:
        raise PlantError(f"--plant: {kind} takes no probability; it strikes in every run alike")
    return Fault(kind=kind, **values)  # type: ignore[arg-type] # checked above


def check(recipe: Recipe, fault: Fault) -> None:
    """Raise PlantError where the fault names a rank or step at which the recipe's runs never are: it would not strike,
    and a run without it would look like one in which it was not found."""
    planted = dataclasses.replace(recipe, controls=(Control(name="planted", fault=fault),))
    for problem in (*fault_rank(planted), *fault_step(planted)):
        field = problem.key.rpartition(".")[2]
        raise PlantError(f"--plant: {fault.kind}'s {field} is {problem.value}, {problem.rule}; {problem.way_out}")


def _text(key: str, value: str) -> str:
    return value


def _share(key: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise PlantError(f"--plant: {key} is {value!r}, must be a number from 0 to 1")
    return found


def _number(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or (key == "step" and int(value) == 0):
        raise PlantError(f"--plant: {key} is {value!r}, must be a whole number {'from 1 on' if key == 'step' else ''}")
    return int(value)


_READERS: dict[str, Callable[[str, str], float | int | str]] = {
    "rank": _number,
    "step": _number,
    "target": _text,
    "probability": _share,
}
