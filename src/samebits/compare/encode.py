"""Judging's nouns as strict JSON: enums as text; numbers that JSON lacks as `NaN`, `Infinity` and `-Infinity`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(noun: DataclassInstance) -> str:
    """One object in ASCII, indented, with a line's end."""
    return json.dumps(plain(noun), indent=1, allow_nan=False) + "\n"


def plain(noun: Any) -> Any:
    """A noun of judging as dicts, lists, strings and finite numbers."""
    if dataclasses.is_dataclass(noun) and not isinstance(noun, type):
        return {entry.name: plain(getattr(noun, entry.name)) for entry in dataclasses.fields(noun)}
    if isinstance(noun, dict):
        return {str(key): plain(value) for key, value in noun.items()}
    if isinstance(noun, tuple | list):
        return [plain(value) for value in noun]
    if isinstance(noun, float) and not math.isfinite(noun):
        return "NaN" if math.isnan(noun) else "Infinity" if noun > 0 else "-Infinity"
    return noun
