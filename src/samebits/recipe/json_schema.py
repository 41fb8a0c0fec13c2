"""JSON schemas of the files that people write, for editors: a recipe, a cluster file."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from samebits.spec.sections import CommandRecipe, MegatronRecipe, Recipe

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
