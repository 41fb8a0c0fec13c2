"""Digests of what a rank runs and reads: Python sources as they lie here, edits included, and data."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import samebits
from samebits.spec import rank_sources
from samebits.spec.sections import CommandRecipe, Recipe, TokenData, built_in
from samebits.worker.trainer.data import file_digest


def code() -> dict[str, str]:
    """Of samebits, and of Megatron Core where this process has imported it."""
    own = Path(samebits.__file__).parent
    found = {"samebits": tree(own, rank_sources(own))}
    if megatron := sys.modules.get("megatron.core"):
        theirs = Path(str(megatron.__file__)).parent
        found["megatron-core"] = tree(theirs, theirs.glob("**/*.py"))
    return found


def data(recipe: Recipe) -> dict[str, str]:
    """What is trained on; of a command its inputs, scripts among them. Raises OSError where a file is missing."""
    if isinstance(recipe, CommandRecipe):
        folder = Path(recipe.command.folder)
        return {path: file_digest(folder / path) for path in recipe.command.inputs}
    tokens = built_in(recipe).data
    if isinstance(tokens, TokenData):
        return {Path(tokens.path).name: file_digest(Path(tokens.path))}
    return {"stream": f"seed {tokens.stream_seed}, numpy {np.__version__.split('.')[0]}"}


def tree(root: Path, files: Iterable[Path]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(files):
        state.update(f"{path.relative_to(root)} {hashlib.blake2b(path.read_bytes()).hexdigest()}\n".encode())
    return state.hexdigest()
