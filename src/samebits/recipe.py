"""A recipe as a person writes it: YAML, read strictly. Host only.

    recipe = load(Path("recipes/smoke.yaml"))

Types and bounds are those of `samebits.sections`, rules across fields those of `samebits.rules`. This module does not
look at the machine: that a recipe loads does not show that its software is installed.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from samebits import document, expectation, rules, sections, surroundings
from samebits.problem import MISSING, Problem, listed
from samebits.sections import Recipe, TokenData

_SOURCES = {"stream": "StreamData", "tokens": "TokenData"}
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "int32": 4}


class RecipeError(ValueError):
    """A recipe that cannot be used. One line per problem: file, key, value, rule, way out."""


def load(path: Path) -> Recipe:
    """The recipe in `path`, its token file as an absolute path.

    Raises RecipeError with all problems of the file; rules across fields are checked once every field is well typed.
    """
    try:
        body = document.read(path)
    except document.DocumentError as error:
        raise RecipeError(str(error)) from error
    try:
        recipe = _adapter().validate_json(json.dumps(body))
    except ValidationError as error:
        raise _refusal(path, _type_problems(body, error)) from error
    recipe = _with_absolute_data(path, recipe)
    if found := [*_name_problems(path, recipe), *rules.problems(recipe), *_data_problems(recipe)]:
        raise _refusal(path, found)
    return recipe


def schema() -> dict[str, Any]:
    """JSON schema of a recipe, with the descriptions that `samebits.sections` gives its fields."""
    body = _adapter().json_schema()
    described = _descriptions()
    for name, section in [*body["$defs"].items(), ("Recipe", body)]:
        for key, entry in section["properties"].items():
            entry.pop("title", None)
            if text := described.get((name, key)):
                entry["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


def schema_text() -> str:
    """The text of `workflow/schemas/recipe.schema.json`."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


@functools.cache
def _adapter() -> TypeAdapter[Recipe]:
    # JSON, in which lists are what tuples come as; strict mode refuses a Python list for a tuple.
    return TypeAdapter(Recipe)


def _refusal(path: Path, problems: Iterable[Problem]) -> RecipeError:
    return RecipeError("\n".join(f"{path}: {problem}" for problem in problems))


def _with_absolute_data(path: Path, recipe: Recipe) -> Recipe:
    if not isinstance(recipe.data, TokenData):
        return recipe
    absolute = (path.parent / recipe.data.path).resolve()
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, path=str(absolute)))


def _name_problems(path: Path, recipe: Recipe) -> list[Problem]:
    if recipe.name == path.stem:
        return []
    rule = f"must be the file's name without its ending ({path.stem}), which names its results"
    return [Problem("name", recipe.name, rule, f"write `name: {path.stem}`, or rename the file to {recipe.name}.yaml")]


def _data_problems(recipe: Recipe) -> list[Problem]:
    """Whether the token file can give one sample; its digest is checked by the ranks that read it."""
    data = recipe.data
    if not isinstance(data, TokenData):
        return []
    if not (path := Path(data.path)).is_file():
        way_out = "give the path from the recipe's folder, or an absolute one"
        return [Problem("data.path", data.path, "must be a file of token ids", way_out)]
    item, wanted, size = _ITEM_BYTES[data.dtype], recipe.model.sequence_length + 1, path.stat().st_size
    if size % item == 0 and size // item >= wanted:
        return []
    rule = f"must hold at least {wanted} ids (model.sequence_length + 1) of {item} bytes (data.dtype {data.dtype})"
    return [Problem("data.path", data.path, f"{rule}, it holds {size} bytes", "give another file or data.dtype")]


def _type_problems(body: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Unknown keys first: they are often the cause of missing ones."""
    errors = [entry for entry in error.errors(include_url=False) if _is_of_chosen_data(body, entry["loc"])]
    absent = {entry["loc"] for entry in errors if entry["type"] == "missing"}
    unknown = {entry["loc"]: entry["input"] for entry in errors if entry["type"] == "unexpected_keyword_argument"}
    renamed = {location: _meant(location, absent) for location in unknown}
    named = set(renamed.values())
    return [
        *(_unknown_key(location, value, renamed[location]) for location, value in unknown.items()),
        *_data_source_problems(body),
        *(_mistyped(entry) for entry in errors if entry["loc"] not in unknown and entry["loc"] not in named),
    ]


def _is_of_chosen_data(body: dict[str, Any], location: expectation.Location) -> bool:
    """pydantic tries both kinds of data; only the errors of the kind that `source` names are of use."""
    if location[:1] != ("data",) or len(location) == 1:
        return True
    data = body["data"]
    return isinstance(data, dict) and location[1] == _SOURCES.get(str(data.get("source")))


def _data_source_problems(body: dict[str, Any]) -> list[Problem]:
    if "data" not in body:
        return []
    data, choices = body["data"], listed([repr(source) for source in _SOURCES])
    if not isinstance(data, dict):
        way_out = "write its keys below it, indented"
        return [Problem("data", data, f"must be a mapping whose key `source` is {choices}", way_out)]
    if str(source := data.get("source", MISSING)) in _SOURCES:
        return []
    return [Problem("data.source", source, f"must be {choices}", "write `source: stream` or `source: tokens`")]


def _meant(location: expectation.Location, absent: set[Any]) -> expectation.Location | None:
    """The missing key of the same section that an unknown one was meant to be, if one is near."""
    section, key = location[:-1], str(location[-1])
    missing = [name for name in expectation.keys(expectation.place(section).hint) if (*section, name) in absent]
    near = difflib.get_close_matches(key, missing, n=1)
    return (*section, near[0]) if near else None


def _unknown_key(location: expectation.Location, value: object, meant: expectation.Location | None) -> Problem:
    section, key = expectation.place(location[:-1]), str(location[-1])
    known = expectation.keys(section.hint)
    if meant:
        guesses = [expectation.place(meant).key]
    elif not (guesses := list(expectation.sections_of(key))):
        prefix = f"{section.key}." if section.key else ""
        guesses = [prefix + near for near in difflib.get_close_matches(key, known, n=1)]
    rule = f"must not be there: unknown key, {section.key or 'a recipe'} has {listed(known, 'and')}"
    way_out = f"did you mean {listed(guesses)}?" if guesses else "delete it"
    return Problem(expectation.place(location).key, value, rule, way_out)


def _mistyped(entry: Any) -> Problem:
    location, value = entry["loc"], entry["input"]
    if entry["type"] == "missing":
        value = MISSING
        if isinstance(location[-1], int):
            location, value = location[:-1], entry["input"]
    place = expectation.place(location)
    return Problem(place.key, value, place.rule(), place.way_out(value))


def _descriptions() -> dict[tuple[str, str], str]:
    """The text below each field of each section; pydantic's own reader costs 0.1 s at every start."""
    found = {}
    for section in (node for module in (sections, surroundings) for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(section, ast.ClassDef):
            for entry, below in zip(section.body, section.body[1:], strict=False):
                if isinstance(entry, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[section.name, ast.unparse(entry.target)] = ast.literal_eval(below.value)
    return found
