from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from samebits.recipe.cluster import ClusterFile
from samebits.recipe.load import schema, schema_text
from samebits.spec.sections import Recipe

_ROOT = Path(__file__).parents[2]
_SCHEMA = _ROOT / "workflow" / "schemas" / "recipe.schema.json"
_CLUSTER = _SCHEMA.with_name("cluster.schema.json")

each_kind = pytest.mark.parametrize("kind", [Recipe, ClusterFile])


def test_the_schema_files_are_in_step_with_the_sections() -> None:
    assert _SCHEMA.read_text(encoding="utf-8") == schema_text(Recipe), f"run `samebits schema > {_SCHEMA.name}`"
    assert _CLUSTER.read_text(encoding="utf-8") == schema_text(ClusterFile), "run `samebits schema --cluster`"


@each_kind
def test_every_field_is_described(kind: type) -> None:
    body = schema(kind)
    bare = [
        f"{name}.{key}"
        for name, section in [*body["$defs"].items(), (kind.__name__, body)]
        for key, entry in section.get("properties", {}).items()
        if "description" not in entry and "$ref" not in str(entry)
    ]

    assert bare == []


@each_kind
def test_unknown_keys_are_refused_everywhere(kind: type) -> None:
    body = schema(kind)

    sections = [section for section in [*body["$defs"].values(), body] if "properties" in section]
    assert all(section["additionalProperties"] is False for section in sections)


@pytest.mark.parametrize("path", sorted((_ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_fits_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # A recipe may write 1e-3, which pyyaml takes for text.
    body = yaml.safe_load(text.replace("1e-", "1.0e-"))

    jsonschema.Draft202012Validator(schema(Recipe)).validate(body)

    assert text.startswith(f"# yaml-language-server: $schema=../{_SCHEMA.relative_to(_ROOT).as_posix()}\n")
