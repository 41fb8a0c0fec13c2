"""Sections as flat entries, so that two of them are held against each other name by name. Host only."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any


def entries(section: Any, without: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(dotted name, value as JSON) of every entry of a dataclass, but for those named and what lies below them."""
    for name, value in _flat(dataclasses.asdict(section), ""):
        if not any(name == left or name.startswith((f"{left}.", f"{left}[")) for left in without):
            yield name, value


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for entry, inner in value.items():
            yield from _flat(inner, f"{name}.{entry}" if name else entry)
    elif isinstance(value, tuple | list) and value:
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{index}]")
    elif value is not None and value not in ({}, ()):
        yield name, json.dumps(value)
