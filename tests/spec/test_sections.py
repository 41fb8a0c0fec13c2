from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from pydantic import TypeAdapter

from samebits.spec import sections
from samebits.spec.strict import Bounds, Section

_SECTIONS = [kind for kind in vars(sections).values() if isinstance(kind, type) and issubclass(kind, Section)]


@pytest.mark.parametrize("section", [kind for kind in _SECTIONS if kind is not Section])
def test_a_section_is_frozen_and_given_by_keyword_only(section: type[Section]) -> None:
    assert dataclasses.is_dataclass(section)
    assert section.__dataclass_params__.frozen
    assert all(entry.kw_only for entry in dataclasses.fields(section))


def test_every_section_of_a_recipe_is_strict() -> None:
    declared = [kind for kind in vars(sections).values() if dataclasses.is_dataclass(kind)]

    assert declared
    assert all(issubclass(kind, Section) for kind in declared if isinstance(kind, type))


def test_sections_are_read_without_pydantic() -> None:
    code = "import sys, samebits.spec.plan; sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_bounds_reach_the_schema() -> None:
    section = TypeAdapter(sections.Optimizer).json_schema()["properties"]

    assert section["lr"]["exclusiveMinimum"] == 0
    assert section["min_lr"]["minimum"] == 0
    assert section["beta1"]["maximum"] == 1


def test_bounds_are_all_open_unless_given() -> None:
    assert Bounds() == Bounds(low=None, high=None, above=None)
