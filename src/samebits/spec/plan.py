"""The plan of one arm: everything a rank needs to know, as JSON that crosses into the container.

Standard library only. `decode` rebuilds the frozen dataclasses that `samebits.spec.sections` declares.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from samebits.spec.overhead import Timing
from samebits.spec.questions import Fault, Rung
from samebits.spec.sections import Recipe
from samebits.spec.stressors import Stressor

PLAN_FORMAT = 1

T = TypeVar("T")


class PlanError(ValueError):
    """A plan that cannot be read or does not fit."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One arm of a recipe.

    arm: `reference`, `twin-N`, `resumed`, `control-NAME`, `bare`; `SETTING-N` of an experiment.
    first_step, last_step: 1-based, inclusive.
    restore: checkpoint folder to start from, absolute; None: from scratch.
    capture: False in the arm `bare`, which records its final state only.
    faults: planted on purpose; empty in every arm but controls and tests.
    keep_checkpoints: other arms write theirs too (a twin does all that the reference does) and delete them at the end.
    timing: of a run that measures time, which writes no checkpoint; None: of an arm that is compared.
    stress: what is varied although it must not matter; empty in every arm but those of `samebits stress`.
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
    timing: Timing | None = None
    stress: tuple[Stressor, ...] = ()

    @property
    def world(self) -> int:
        return self.recipe.parallel.world

    @property
    def relaxed(self) -> tuple[str, ...]:
        """Determinism settings that it leaves off."""
        return self.timing.relaxed if self.timing else ()

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
        return self.timing is None and step % self.recipe.checkpoint.every == 0

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
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if decoder := _BY_ORIGIN.get(typing.get_origin(kind)):
        return decoder(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    return _checked(value, type(value) is kind, kind, where)


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise PlanError(f"{where}: is {type(value).__name__}, must be an object")
    if kind is Recipe:
        kind = Recipe.kind_of(value.get("workload"))
    hints = _type_hints(kind)
    names = {entry.name for entry in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - names):
        raise PlanError(f"{where}: unknown key {unknown[0]!r}; it has {', '.join(sorted(names))}")
    try:
        return kind(**{key: _decode(hints[key], item, f"{where}.{key}") for key, item in value.items()})
    except TypeError as error:
        raise PlanError(f"{where}: {error}") from error


@functools.cache
def _type_hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _decode_union(kind: Any, value: Any, where: str) -> Any:
    kinds = typing.get_args(kind)
    if value is None and type(None) in kinds:
        return None
    errors = []
    for choice in kinds:
        if choice is type(None):
            continue
        try:
            return _decode(choice, value, where)
        except PlanError as error:
            errors.append(str(error))
    raise PlanError("; or ".join(errors) or f"{where}: must not be null")


def _decode_mapping(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise PlanError(f"{where}: is {type(value).__name__}, must be an object")
    inner = typing.get_args(kind)[1]
    return {str(key): _decode(inner, item, f"{where}.{key}") for key, item in value.items()}


def _decode_tuple(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise PlanError(f"{where}: is {type(value).__name__}, must be a list")
    kinds = typing.get_args(kind)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise PlanError(f"{where}: has {len(value)} entries, must have {len(kinds)}")
    return tuple(_decode(inner, value[index], f"{where}[{index}]") for index, inner in enumerate(kinds))


def _decode_literal(kind: Any, value: Any, where: str) -> Any:
    return _checked(value, value in typing.get_args(kind), kind, where)


def _decode_annotated(kind: Any, value: Any, where: str) -> Any:
    return _decode(typing.get_args(kind)[0], value, where)


_BY_ORIGIN: dict[Any, Callable[[Any, Any, str], Any]] = {
    typing.Annotated: _decode_annotated,
    typing.Literal: _decode_literal,
    typing.Union: _decode_union,
    types.UnionType: _decode_union,
    tuple: _decode_tuple,
    dict: _decode_mapping,
}


def _checked(value: Any, fits: bool, kind: Any, where: str) -> Any:
    if not fits:
        raise PlanError(f"{where}: is {value!r}, must be {kind}")
    return value
