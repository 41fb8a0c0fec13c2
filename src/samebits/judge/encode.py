"""Judging's nouns as strict JSON: enums as text, numbers that JSON has no word for as `nan`, `inf` and `-inf`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(noun: DataclassInstance) -> str:
    """One object in ASCII, indented, with a line's end."""
    return json.dumps(_plain(dataclasses.asdict(noun)), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
