"""How the ranks of a launch line of one's own are started: which processes, with what, and what is theirs to keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe, Recipe

_ENTRY = ("-m", "samebits.worker.inject.start")
RANK = ("-m", "samebits.worker.main")

Listing = tuple[tuple[str, int, int], ...]
"""(path, bytes, nanoseconds of the last change) of every file."""


def entry(recipe: Recipe) -> tuple[str, ...]:
    """Behind the interpreter: what starts one process of an arm; the artifact's folder is appended."""
    return _ENTRY if isinstance(recipe, CommandRecipe) else RANK


def by_node(recipe: Recipe) -> bool:
    """Whether one process a node starts its ranks."""
    return isinstance(recipe, CommandRecipe) and recipe.command.launcher != "ours"


def listing(plan: Plan) -> Listing:
    """Of the checkpoint that a launch line restores; empty for all others."""
    if plan.restore is None or not isinstance(plan.recipe, CommandRecipe):
        return ()
    files = (Path(folder) / name for folder, _, names in os.walk(plan.restore) for name in names)
    found = ((str(file), file.stat()) for file in sorted(files))
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def settle(artifact: Artifact, plan: Plan, before: Listing) -> str:
    """Once all ranks ended well: what is wrong all the same, or nothing. A line's checkpoints go where nobody restores
    them. before: listing of what it restored, as it was found."""
    if not isinstance(plan.recipe, CommandRecipe):
        return ""
    if not plan.keep_checkpoints:
        shutil.rmtree(artifact.checkpoints, ignore_errors=True)
    if listing(plan) != before:
        return (
            f"arm {plan.arm}: the run wrote into {plan.restore}, the reference's checkpoint, which other arms restore; "
            "let the line save to {save} alone, delete the reference's folder, then start again"
        )
    if plan.keep_checkpoints and not any(artifact.own_checkpoints.iterdir()):
        return (
            f"arm {plan.arm}: the run left no checkpoint in {artifact.own_checkpoints}; let the line save to {{save}} "
            f"every {plan.recipe.checkpoint.every} steps, then start again"
        )
    return ""


UNSEEN = (
    "Capture never attached. Either Python did not read it (the line or a script replaces PYTHONPATH, or starts "
    "`python -I`, `-E` or `-S`), or this rank stepped no optimizer that hooks can see (then name it in the script: "
    "samebits.worker.hooks(model, optimizer))."
)
"""Of a rank of a line that ended well and left no fingerprint file."""


def why_missing(plan: Plan) -> str:
    return UNSEEN if isinstance(plan.recipe, CommandRecipe) else ""
