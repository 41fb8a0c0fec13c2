"""The plan of one arm: everything a rank needs to know, as JSON that crosses into the container.

Standard library only. `decode` rebuilds the frozen dataclasses that `samebits.sections` declares.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from samebits.sections import Fault, Recipe, Rung

PLAN_FORMAT = 1

T = TypeVar("T")


class PlanError(ValueError):
    """A plan that cannot be read or does not fit."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One arm of a recipe.

    arm: `reference`, `twin-N`, `resumed`, `control-NAME`, `bare`.
    first_step, last_step: 1-based, inclusive.
    restore: checkpoint folder to start from, absolute; None: from scratch.
    capture: False in the arm `bare`, which records its final state only.
    faults: planted on purpose; empty in every arm but controls and tests.
    keep_checkpoints: other arms write theirs too (a twin does all that the reference does) and delete them at the end.
    """

    format: int = PLAN_FORMAT
    arm: str
    recipe: Recipe
    first_step: int
    last_step: int
    restore: str | None
    capture: bool
    keep_checkpoints: bool
    faults: tuple[Fault, ...] = ()

    @property
    def world(self) -> int:
        return self.recipe.parallel.world

    def rung_at(self, rank: int, step: int) -> Rung:
        """Rung at which `rank` records `step`: the recipe's inside the capture limits, `metrics` outside."""
        capture = self.recipe.capture
        inside = (
            (step % capture.every == 0 or step == self.last_step)
            and (capture.ranks is None or rank in capture.ranks)
            and (capture.windows is None or any(low <= step <= high for low, high in capture.windows))
        )
        return capture.rung if inside else "metrics"

    def saves_at(self, step: int) -> bool:
        return step % self.recipe.checkpoint.every == 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """Raises PlanError where the text is not a plan of this format."""
        try:
            body = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"plan: not JSON ({error}); make it again with `samebits plan`") from error
        if not isinstance(body, dict) or body.get("format") != PLAN_FORMAT:
            found = body.get("format") if isinstance(body, dict) else type(body).__name__
            raise PlanError(f"plan: format is {found!r}, must be {PLAN_FORMAT}; make it again with `samebits plan`")
        return decode(Plan, body)

    def digest(self) -> str:
        """Hex digest of all that the plan says."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()


def decode(kind: type[T], value: Any) -> T:
    """Rebuilds a frozen dataclass of this package (or a type that one of its fields may have) from JSON values.

    Raises PlanError where the value does not fit the type.
    """
    return typing.cast(T, _decode(kind, value, kind.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _decode(typing.get_args(kind)[0], value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type[Any], kind), value, where)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(kind), value, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), value, where)
    if origin is dict:
        return {str(key): _decode(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is typing.Literal:
        return _checked(value, value in typing.get_args(kind), kind, where)
    if kind is float and type(value) is int:
        return float(value)
    return _checked(value, type(value) is kind, kind, where)


def _decode_dataclass(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise PlanError(f"{where}: is {type(value).__name__}, must be an object")
    hints = typing.get_type_hints(kind, include_extras=True)
    names = {entry.name for entry in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - names):
        raise PlanError(f"{where}: unknown key {unknown[0]!r}; it has {', '.join(sorted(names))}")
    try:
        return kind(**{key: _decode(hints[key], item, f"{where}.{key}") for key, item in value.items()})
    except TypeError as error:
        raise PlanError(f"{where}: {error}") from error


def _decode_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _decode(kind, value, where)
        except PlanError as error:
            errors.append(str(error))
    raise PlanError("; or ".join(errors) or f"{where}: must not be null")


def _decode_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise PlanError(f"{where}: is {type(value).__name__}, must be a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    return tuple(_decode(kind, item, f"{where}[{index}]") for index, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _checked(value: Any, fits: bool, kind: Any, where: str) -> Any:
    if not fits:
        raise PlanError(f"{where}: is {value!r}, must be {kind}")
    return value
