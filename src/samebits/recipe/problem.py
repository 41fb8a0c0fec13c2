"""One thing that is wrong with a recipe: which key, its value, the rule it breaks and the way out."""

from __future__ import annotations

import json
from dataclasses import dataclass

_LONGEST = 80
_LONGEST_PATH = 4096


class Missing:
    """Value of a key that is not there."""


MISSING = Missing()


@dataclass(frozen=True)
class Problem:
    """key: dotted. rule: begins with `must`. way_out: an order to the reader."""

    key: str
    value: object
    rule: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.key} is {show(self.value)}, {self.rule}; {self.way_out}"


def show(value: object) -> str:
    """A value as the recipe's author writes it, on one line, cut after 80 characters; a path is shown whole."""
    if value is MISSING:
        return "missing"
    if value is None:
        return "absent"
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    whole = isinstance(value, str) and "/" in value and len(value) <= _LONGEST_PATH
    return text if whole or len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def listed(values: list[str], last: str = "or") -> str:
    """`a`, `a or b`, `a, b or c`; nothing for an empty list."""
    if len(values) < 2:
        return "".join(values)
    return f"{', '.join(values[:-1])} {last} {values[-1]}"
