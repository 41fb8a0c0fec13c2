"""What pydantic refuses in a file of sections, as problems that its author can act on.

What a place in a recipe or a cluster file must hold, in words: read from the types of its sections.

A place is pydantic's location of an error: keys, list positions, and the names of classes between which it chose.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from samebits.recipe.problem import MISSING, Problem, listed, show
from samebits.spec.strict import Bounds

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class KeyPlace:
    """key: dotted. hint: its type, with bounds. absent: whether it may be left out."""

    key: str
    hint: Any
    absent: bool = False

    def rule(self) -> str:
        return f"must be {_words(self.hint)}"

    def way_out(self, value: object) -> str:
        if value is MISSING:
            return "add it"
        if value is None:
            return "give a value or delete the key" if self.absent else "give a value"
        return _way_out(self.hint, value)


def place_of(root: Any, location: Location) -> KeyPlace:
    """Where in a section `root` (a dataclass) `location` is. An unknown key ends at its section's type."""
    key, hint, absent = "", root, False
    for step in location:
        if isinstance(step, str) and step in _classes(hint):
            hint = _classes(hint)[step]
            continue
        key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else step
        hint, absent = _inside(hint, step)
    return KeyPlace(key, hint, absent)


def keys(hint: Any) -> list[str]:
    """Keys of a section; nothing for other types."""
    return [entry.name for entry in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else []


@functools.cache
def sections_of(root: Any, key: str) -> tuple[str, ...]:
    """Dotted places of all keys of this name, for a key that stands in the wrong section."""
    return tuple(dict.fromkeys(found for found in _all_keys(root, "") if found.rpartition(".")[2] == key))


def _all_keys(hint: Any, prefix: str) -> typing.Iterator[str]:
    for section in _classes(hint).values():
        for name in keys(section):
            yield f"{prefix}{name}"
            yield from _all_keys(_inside(section, name)[0], f"{prefix}{name}.")


@functools.cache
def _hints(section: Any) -> dict[str, Any]:
    return typing.get_type_hints(section, include_extras=True)


def _inside(hint: Any, step: int | str) -> tuple[Any, bool]:
    """Type of one key or position, and whether it may be left out."""
    if dataclasses.is_dataclass(hint):
        return _entry(hint, str(step))
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return arguments[0 if arguments[-1] is Ellipsis else min(int(step), len(arguments) - 1)], False
    return (arguments[1], True) if typing.get_origin(hint) is dict else (hint, False)


def _entry(section: Any, name: str) -> tuple[Any, bool]:
    entries = {entry.name: entry for entry in dataclasses.fields(section)}
    if name not in entries:
        return section, True
    hint = _hints(section)[name]
    if type(None) in typing.get_args(hint):
        choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        hint = functools.reduce(lambda left, right: left | right, choices)
    entry = entries[name]
    required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    return hint, not required


def _classes(hint: Any) -> dict[str, Any]:
    """The sections that this type is, or is a choice of, by name."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {
        choice.__name__: choice for choice in choices if isinstance(choice, type) and dataclasses.is_dataclass(choice)
    }


def _words(hint: Any) -> str:
    if classes := list(_classes(hint).values()):
        return "a mapping with the keys " + ", or with ".join(listed(keys(section), "and") for section in classes)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return listed([repr(choice) for choice in arguments])
    if origin is tuple:
        fixed = Ellipsis not in arguments
        return f"a list of {len(arguments)} whole numbers" if fixed else "a list"
    if origin is dict:
        return "a mapping of names to text"
    return _number_words(hint) if origin is typing.Annotated or hint is int else _plain_words(hint)


def _number_words(hint: Any) -> str:
    kind, bounds = _bounds(hint)
    noun = "a whole number" if kind is int else "a number"
    if bounds.above is not None:
        return f"{noun} above {bounds.above:g}"
    if bounds.low is None:
        return noun
    if bounds.high is None:
        return f"{noun} of at least {bounds.low:g}"
    return f"{noun} from {bounds.low:g} to {bounds.high:g}"


def _plain_words(hint: Any) -> str:
    return {bool: "true or false", str: "text"}.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(hint: Any) -> tuple[Any, Bounds]:
    if typing.get_origin(hint) is typing.Annotated:
        kind, bounds = typing.get_args(hint)[:2]
        return kind, bounds
    return hint, Bounds()


def _way_out(hint: Any, value: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return _nearest([str(choice) for choice in typing.get_args(hint)], value)
    if _classes(hint) or origin is dict:
        return "write its keys below it, indented"
    if origin is tuple:
        return "write [first, last]" if Ellipsis not in typing.get_args(hint) else f"write [{show(value)}]"
    if hint is bool:
        return "write true or false, without quotes"
    if hint is str:
        return f"write it in quotes: '{value}'" if isinstance(value, int | float) else "give one text"
    return _number_way_out(hint, value)


def _number_way_out(hint: Any, value: Any) -> str:
    kind, bounds = _bounds(hint)
    if isinstance(value, str) and _is_number(value):
        return "take away the quotes"
    if kind is int and isinstance(value, float) and value.is_integer():
        return f"write {value:.0f}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if bounds.low is not None and value < bounds.low:
            return f"use {bounds.low:g} or more"
        if bounds.high is not None and value > bounds.high:
            return f"use {bounds.high:g} or less"
    return f"give {_number_words(hint)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nearest(choices: list[str], value: object) -> str:
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use {choices[0]!r}" + (", for example" if choices[1:] else "")


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


def _meant(root: Any, location: Location, absent: set[Any]) -> Location | None:
    """The missing key of the same section that an unknown one was meant to be, if one is near."""
    section, key = location[:-1], str(location[-1])
    missing = [name for name in keys(place_of(root, section).hint) if (*section, name) in absent]
    near = difflib.get_close_matches(key, missing, n=1)
    return (*section, near[0]) if near else None


def _unknown_key(root: Any, location: Location, value: object, meant: Location | None) -> Problem:
    section, key = place_of(root, location[:-1]), str(location[-1])
    known = keys(section.hint)
    if meant:
        guesses = [place_of(root, meant).key]
    elif not (guesses := list(sections_of(root, key))):
        prefix = f"{section.key}." if section.key else ""
        guesses = [prefix + near for near in difflib.get_close_matches(key, known, n=1)]
    rule = f"must not be there: unknown key, {section.key or 'the file'} has {listed(known, 'and')}"
    way_out = f"did you mean {listed(guesses)}?" if guesses else "delete it"
    return Problem(place_of(root, location).key, value, rule, way_out)


def _mistyped(root: Any, entry: Any) -> Problem:
    location, value = entry["loc"], entry["input"]
    if entry["type"] == "missing":
        value = MISSING
        if isinstance(location[-1], int):
            location, value = location[:-1], entry["input"]
    place = place_of(root, location)
    return Problem(place.key, value, place.rule(), place.way_out(value))
