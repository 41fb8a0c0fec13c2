"""What pydantic refuses in a file of sections, as problems that its author can act on."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from samebits.recipe import expectation
from samebits.recipe.problem import MISSING, Problem, listed


def problems(root: Any, errors: Sequence[Any]) -> list[Problem]:
    """root: the dataclass that the file holds. errors: of pydantic. Unknown keys first: they are often the cause of
    missing ones."""
    absent = {entry["loc"] for entry in errors if entry["type"] == "missing"}
    unknown = {entry["loc"]: entry["input"] for entry in errors if entry["type"] == "unexpected_keyword_argument"}
    renamed = {location: _meant(root, location, absent) for location in unknown}
    named = set(renamed.values())
    return [
        *(_unknown_key(root, location, value, renamed[location]) for location, value in unknown.items()),
        *(_mistyped(root, entry) for entry in errors if entry["loc"] not in unknown and entry["loc"] not in named),
    ]


def _meant(root: Any, location: expectation.Location, absent: set[Any]) -> expectation.Location | None:
    """The missing key of the same section that an unknown one was meant to be, if one is near."""
    section, key = location[:-1], str(location[-1])
    missing = [name for name in expectation.keys(expectation.place_of(root, section).hint) if (*section, name) in absent]
    near = difflib.get_close_matches(key, missing, n=1)
    return (*section, near[0]) if near else None


def _unknown_key(
    root: Any, location: expectation.Location, value: object, meant: expectation.Location | None
) -> Problem:
    section, key = expectation.place_of(root, location[:-1]), str(location[-1])
    known = expectation.keys(section.hint)
    if meant:
        guesses = [expectation.place_of(root, meant).key]
    elif not (guesses := list(expectation.sections_of(root, key))):
        prefix = f"{section.key}." if section.key else ""
        guesses = [prefix + near for near in difflib.get_close_matches(key, known, n=1)]
    rule = f"must not be there: unknown key, {section.key or 'the file'} has {listed(known, 'and')}"
    way_out = f"did you mean {listed(guesses)}?" if guesses else "delete it"
    return Problem(expectation.place_of(root, location).key, value, rule, way_out)


def _mistyped(root: Any, entry: Any) -> Problem:
    location, value = entry["loc"], entry["input"]
    if entry["type"] == "missing":
        value = MISSING
        if isinstance(location[-1], int):
            location, value = location[:-1], entry["input"]
    place = expectation.place_of(root, location)
    return Problem(place.key, value, place.rule(), place.way_out(value))
