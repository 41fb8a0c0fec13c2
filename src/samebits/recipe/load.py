"""A recipe as a person writes it: YAML, read strictly. Host only.

    recipe = load(Path("recipes/smoke.yaml"))

Types and bounds are those of `samebits.spec.sections`, rules across fields those of `samebits.recipe.rules`. This
module does not look at the machine: that a recipe loads does not show that its software is installed.

JSON schemas of the files that people write, for editors: a recipe, a cluster file.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from samebits.recipe import rules, typed
from samebits.recipe import yaml as document
from samebits.recipe.problem import MISSING, Problem, listed
from samebits.spec.sections import CommandRecipe, MegatronRecipe, Recipe, TokenData

_WORKLOADS = ("megatron-core", "command")
_SOURCES = {"stream": "StreamData", "tokens": "TokenData"}
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "int32": 4}


class RecipeError(ValueError):
    """A recipe that cannot be used. One line per problem: file, key, value, rule, way out."""


def load(path: Path) -> Recipe:
    """The recipe in `path`, its token file, or the folder of its command, as an absolute path.

    Raises RecipeError with all problems of the file; rules across fields are checked once every field is well typed.
    """
    try:
        body = document.read(path)
    except document.DocumentError as error:
        raise RecipeError(str(error)) from error
    kind = Recipe.kind_of(body.get("workload"))
    try:
        # JSON, in which lists are what tuples come as; strict mode refuses a Python list for a tuple.
        recipe = TypeAdapter(kind).validate_json(json.dumps(body))
    except ValidationError as error:
        raise _refusal(path, _type_problems(kind, body, error)) from error
    recipe = _with_absolute_paths(path, recipe)
    if found := [
        *_name_problems(path, recipe),
        *rules.problems(recipe),
        *_data_problems(recipe),
        *_input_problems(recipe),
    ]:
        raise _refusal(path, found)
    return recipe


def _refusal(path: Path, problems: Iterable[Problem]) -> RecipeError:
    return RecipeError("\n".join(f"{path}: {problem}" for problem in problems))


def _with_absolute_paths(path: Path, recipe: Recipe) -> Recipe:
    if isinstance(recipe, CommandRecipe):
        folder = (path.parent / recipe.command.folder).resolve()
        return dataclasses.replace(recipe, command=dataclasses.replace(recipe.command, folder=str(folder)))
    if isinstance(recipe, MegatronRecipe) and isinstance(recipe.data, TokenData):
        absolute = (path.parent / recipe.data.path).resolve()
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, path=str(absolute)))
    return recipe


def _name_problems(path: Path, recipe: Recipe) -> list[Problem]:
    if recipe.name == path.stem:
        return []
    rule = f"must be the file's name without its ending ({path.stem}), which names its results"
    return [Problem("name", recipe.name, rule, f"write `name: {path.stem}`, or rename the file to {recipe.name}.yaml")]


def _data_problems(recipe: Recipe) -> list[Problem]:
    """Whether the token file can give one sample; its digest is checked by the ranks that read it."""
    if not isinstance(recipe, MegatronRecipe) or not isinstance(data := recipe.data, TokenData):
        return []
    if not (path := Path(data.path)).is_file():
        way_out = "give the path from the recipe's folder, or an absolute one"
        return [Problem("data.path", data.path, "must be a file of token ids", way_out)]
    item, wanted, size = _ITEM_BYTES[data.dtype], recipe.model.sequence_length + 1, path.stat().st_size
    if size % item == 0 and size // item >= wanted:
        return []
    rule = f"must hold at least {wanted} ids (model.sequence_length + 1) of {item} bytes (data.dtype {data.dtype})"
    return [Problem("data.path", data.path, f"{rule}, it holds {size} bytes", "give another file or data.dtype")]


def _input_problems(recipe: Recipe) -> list[Problem]:
    """Whether the files are there; inside an image only its ranks can tell. They check the digests, too."""
    if not isinstance(recipe, CommandRecipe) or recipe.container:
        return []
    command, found = recipe.command, []
    if not Path(command.folder).is_dir():
        way_out = "give it from the recipe's folder, or absolute"
        return [Problem("command.folder", command.folder, "must be a folder", way_out)]
    for path in command.inputs:
        if not (Path(command.folder) / path).is_file():
            way_out = "give the path from command.folder, or an absolute one"
            found.append(Problem(f"command.inputs.{path}", path, "must be a file", way_out))
    return found


def _type_problems(kind: type[Recipe], body: dict[str, Any], error: ValidationError) -> list[Problem]:
    errors = [entry for entry in error.errors(include_url=False) if _is_of_chosen_data(body, entry["loc"])]
    if body.get("workload") not in _WORKLOADS:
        errors = [entry for entry in errors if entry["loc"][0] == "workload"]
        return typed.problems(Recipe, errors)
    return [*(_data_source_problems(body) if kind is MegatronRecipe else []), *typed.problems(kind, errors)]


def _is_of_chosen_data(body: dict[str, Any], location: typed.Location) -> bool:
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


RECIPE = Annotated[MegatronRecipe | CommandRecipe, Field(discriminator="workload")]
"""Either kind."""


def schema(kind: Any) -> dict[str, Any]:
    """JSON schema of a dataclass of sections, with the descriptions that stand below their fields."""
    body = TypeAdapter(RECIPE if kind is Recipe else kind).json_schema()
    described = _descriptions(kind)
    for name, section in [*body.get("$defs", {}).items(), (kind.__name__, body)]:
        for key, entry in section.get("properties", {}).items():
            entry.pop("title", None)
            if text := described.get((name, key)):
                entry["description"] = text
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


def schema_text(kind: Any) -> str:
    """The text of the files below `workflow/schemas`."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def _descriptions(kind: Any) -> dict[tuple[str, str], str]:
    """The text below each field of each section; pydantic's own reader costs 0.1 s at every start."""
    parts = ("samebits.spec.questions", "samebits.spec.surroundings", "samebits.spec.overhead", "samebits.spec.command")
    modules = [sys.modules[name] for name in (kind.__module__, *parts)]
    found: dict[tuple[str, str], str] = {}
    for section in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(section, ast.ClassDef):
            for entry, below in zip(section.body, section.body[1:], strict=False):
                if isinstance(entry, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[section.name, ast.unparse(entry.target)] = ast.literal_eval(below.value)
    inherited = {key: text for (section, key), text in found.items() if section == "Recipe"}
    kinds = (MegatronRecipe.__name__, CommandRecipe.__name__)
    return {**{(own, key): text for own in kinds for key, text in inherited.items()}, **found}
