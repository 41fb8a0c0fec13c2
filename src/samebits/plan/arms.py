"""The arms of a recipe: which training runs its gates need, and what makes one have to run again. Host only."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import samebits
from samebits.fingerprint.paths import Artifact
from samebits.plan.flat import entries
from samebits.recipe.evidence_rules import EVERY_RANK, RESTORE_FAULTS
from samebits.recipe.load import RecipeError
from samebits.spec import rank_sources
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.spec.sections import CommandRecipe, Recipe

REFERENCE = "reference"
RESUMED = "resumed"
BARE = "bare"

_SOFTWARE = ("torch", "numpy", "megatron-core", "transformer-engine")

_STARTING = (
    "recipe/determinism.py",
    *(f"launch/{name}.py" for name in ("rank_command", "srun", "container")),
)
"""What decides how a rank is started."""

_WITHOUT_EFFECT = (
    "recipe.gates",
    "recipe.controls",
    "recipe.twins",
    "recipe.waivers",
    "recipe.overhead",
    "recipe.launch.time_minutes",
    "recipe.launch.hang_minutes",
    *("recipe.cluster.slurm.account", "recipe.cluster.slurm.qos", "recipe.cluster.slurm.sbatch"),
    "recipe.data.path",
    "recipe.command.folder",
    "restore",
)
"""Entries of a plan that do not change what its arm computes and records. `data.sha256` stands for the path's content,
`first_step` for the checkpoint."""


def plans(recipe: Recipe, results: Path) -> list[Plan]:
    """Every arm that the recipe's gates need, the reference first.

    results: folder of all results; a restored arm's checkpoint is given as an absolute path below it.
    """
    return [_plan(recipe, arm, results) for arm in arms(recipe)]


def plan(recipe: Recipe, arm: str, results: Path) -> Plan:
    """One of `plans`. Raises RecipeError for an arm that the recipe does not have."""
    known = arms(recipe)
    if arm not in known:
        use = f"use {', '.join(known)}" if known else "it only measures time: `samebits overhead`"
        raise RecipeError(f"{recipe.name}: arm is {arm!r}, must be an arm of this recipe; {use}")
    return _plan(recipe, arm, results)


def arms(recipe: Recipe) -> list[str]:
    """Names of all arms that are compared, in the order in which they are best run; runs that measure time are those
    of `experiments`."""
    wanted = [REFERENCE] if any(gate != "overhead" for gate in recipe.gates) else []
    if "repeatability" in recipe.gates:
        wanted += [f"twin-{number}" for number in range(1, recipe.twins + 1)]
    if "resume" in recipe.gates:
        wanted.append(RESUMED)
    if "control" in recipe.gates:
        wanted += [f"control-{control.name}" for control in recipe.controls]
    if "observer" in recipe.gates:
        wanted.append(BARE)
    return wanted


def artifact_folder(results: Path, recipe_name: str, arm: str) -> Path:
    return results / recipe_name / "arms" / arm


def needs(plan: Plan) -> tuple[str, ...]:
    """Arms that must be finished before this one starts: for their checkpoint, or since their nodes are avoided."""
    return (REFERENCE,) if plan.restore or avoids_reference(plan) else ()


def avoids_reference(plan: Plan) -> bool:
    """Whether the arm is to run on none of the reference's nodes."""
    cluster = plan.recipe.cluster
    return cluster is not None and cluster.placement == "other-nodes" and plan.arm.startswith("twin-")


def key(plan: Plan) -> str:
    """Hex digest of all that makes an arm's run: its plan, the software here and samebits' own sources in a rank.

    While it stays the same, a finished arm stands. Software is what this host has, unless the recipe names an image:
    then the image, which the plan holds, is what counts.
    """
    counting = dict(entries(plan, _WITHOUT_EFFECT))
    surroundings = {"sources": sources_digest()} if plan.recipe.container else _surroundings()
    text = json.dumps({"plan": counting, **surroundings}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def explain_change(old_plan: Plan, new_plan: Plan) -> list[str]:
    """Why a finished arm must run again: a line for each entry that differs, of those that count."""
    old, new = dict(entries(old_plan, _WITHOUT_EFFECT)), dict(entries(new_plan, _WITHOUT_EFFECT))
    return [
        f"{name.removeprefix('recipe.')}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def checkpoint(recipe: Recipe, artifact: Artifact, step: int | None = None) -> Path:
    """What an arm that restores starts from: the checkpoint of `step` (None: `checkpoint.resume_from`), or the folder
    of all of them where a launch line of one's own has written them."""
    if isinstance(recipe, CommandRecipe):
        return artifact.own_checkpoints
    return artifact.checkpoint(recipe.checkpoint.resume_from if step is None else step)


def _plan(recipe: Recipe, arm: str, results: Path) -> Plan:
    faults = tuple(placed(recipe, control.fault) for control in recipe.controls if f"control-{control.name}" == arm)
    restored = arm == RESUMED or any(fault.kind in RESTORE_FAULTS for fault in faults)
    step = recipe.checkpoint.resume_from
    reference = Artifact(artifact_folder(results.resolve(), recipe.name, REFERENCE))
    return Plan(
        arm=arm,
        recipe=recipe,
        first_step=step + 1 if restored else 1,
        last_step=recipe.steps,
        restore=str(checkpoint(recipe, reference)) if restored else None,
        capture=arm != BARE,
        keep_checkpoints=arm == REFERENCE,
        faults=faults,
    )


def placed(recipe: Recipe, fault: Fault) -> Fault:
    """The fault with its rank and step filled in, where it has one."""
    rank, step = fault.rank, fault.step
    if rank is None and fault.kind not in EVERY_RANK:
        rank = recipe.parallel.world - 1
    if step is None and fault.kind not in RESTORE_FAULTS:
        step = min(recipe.checkpoint.resume_from + 1, recipe.steps)
    return dataclasses.replace(fault, rank=rank, step=step)


@functools.cache
def _surroundings() -> dict[str, Any]:
    software = {name: _version(name) for name in _SOFTWARE}
    return {"python": platform.python_version(), "software": software, "sources": sources_digest()}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def sources_digest() -> str:
    """Hex digest of samebits' sources that a rank runs, or is started by: names and bytes."""
    package = Path(samebits.__file__).parent
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*rank_sources(package), *(package / name for name in _STARTING)]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
