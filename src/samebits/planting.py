"""Reads a fault to plant from a command line: `KIND[:rank=N][:step=N][:target=NAME]`."""

from __future__ import annotations

from typing import get_args

from samebits.questions import Fault, FaultKind


class PlantError(ValueError):
    """A text that names no fault."""


def parse(text: str) -> Fault:
    """Raises PlantError with the rule that the text breaks."""
    kind, *parts = text.split(":")
    if kind not in get_args(FaultKind):
        raise PlantError(f"--plant: kind is {kind!r}, must be one of {', '.join(get_args(FaultKind))}")
    values: dict[str, int | str] = {}
    for part in parts:
        key, separator, value = part.partition("=")
        if key not in ("rank", "step", "target") or not separator:
            raise PlantError(f"--plant: {part!r} must be rank=N, step=N or target=NAME")
        values[key] = value if key == "target" else _number(key, value)
    return Fault(kind=kind, **values)  # type: ignore[arg-type] # checked above


def _number(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or (key == "step" and int(value) == 0):
        raise PlantError(f"--plant: {key} is {value!r}, must be a whole number {'from 1 on' if key == 'step' else ''}")
    return int(value)
