"""What a recipe says and what one arm is to do: frozen dataclasses that cross into the container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

IN_THE_CONTAINER = ("spec", "fingerprint", "worker")
"""The packages that a rank runs; they import the standard library, numpy, torch and megatron only."""


def rank_sources(package: Path) -> Iterator[Path]:
    """Yield the source files that a rank runs, of the samebits package in the folder `package`."""
    yield package / "__init__.py"
    for name in IN_THE_CONTAINER:
        yield from (package / name).rglob("*.py")
