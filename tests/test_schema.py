from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from samebits import recipe

_ROOT = Path(__file__).parents[1]
_SCHEMA = _ROOT / "workflow" / "schemas" / "recipe.schema.json"
_REGENERATE = "samebits schema > workflow/schemas/recipe.schema.json"


def test_the_schema_file_is_in_step_with_the_sections() -> None:
    assert _SCHEMA.read_text(encoding="utf-8") == recipe.schema_text(), f"run `{_REGENERATE}`"


def test_every_field_is_described() -> None:
    schema = recipe.schema()
    bare = [
        f"{name}.{key}"
        for name, section in [*schema["$defs"].items(), ("Recipe", schema)]
        for key, entry in section["properties"].items()
        if "description" not in entry and "$ref" not in str(entry)
    ]

    assert bare == []


def test_unknown_keys_are_refused_everywhere() -> None:
    schema = recipe.schema()

    assert all(section["additionalProperties"] is False for section in [*schema["$defs"].values(), schema])


@pytest.mark.parametrize("path", sorted((_ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_fits_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # A recipe may write 1e-3, which pyyaml takes for text.
    body = yaml.safe_load(text.replace("1e-", "1.0e-"))

    jsonschema.Draft202012Validator(recipe.schema()).validate(body)

    assert text.startswith(f"# yaml-language-server: $schema=../{_SCHEMA.relative_to(_ROOT).as_posix()}\n")
