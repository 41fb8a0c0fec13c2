"""What decides how a rank is started: its command, its environment, its order, and a copy of its sources.

The environment of a rank holds nothing that somebody's shell happens to hold, and all that the recipe asks for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import samebits
from samebits.fingerprint.paths import Artifact
from samebits.recipe import determinism
from samebits.spec import rank_sources
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe, Recipe

STRESS = "stress"
"""Folder of stress runs, beside `arms`."""
HOST_FILE = "SLURM_HOSTFILE"
"""Variable of srun: names a file with a node for each task, for `--distribution=arbitrary`."""
_NODE_ORDER = "node-order"

_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    # Some machines need these two for right results of old OpenBLAS builds; every rank records the first.
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
)
"""Variables that find software, files and devices: passed on from whoever starts the arm. All else is left behind."""

_FROM_SETUP = ("PATH", "LD_LIBRARY_PATH")
"""Taken from a job's batch step, where the cluster file's `setup` may have added a module's folders."""

Listing = tuple[tuple[str, int, int], ...]
"""(path, bytes, nanoseconds of the last change) of every file."""


def entry(recipe: Recipe) -> tuple[str, str]:
    """Return the interpreter's arguments that start one process of an arm; the artifact's folder is appended."""
    return ("-m", "samebits.worker.inject.launch_line" if isinstance(recipe, CommandRecipe) else "samebits.worker.main")


def one_process_per_node(recipe: Recipe) -> bool:
    """Return whether one process a node starts the ranks of that node (torchrun, or a launcher of the user's own)."""
    return isinstance(recipe, CommandRecipe) and recipe.command.launcher != "ours"


def copy_sources(target: Path) -> None:
    """Copy the part of the package that runs inside a rank to `target`/samebits, for PYTHONPATH=`target`.

    So a job that waits for hours runs what was there when it was submitted, and an image sees the sources through the
    results folder, without a mount of its own.
    """
    package = Path(samebits.__file__).parent
    for path in rank_sources(package):
        copy = target / "samebits" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a rank takes over from the environment of whoever starts the arm."""
    return {name: environment[name] for name in _INHERITED if name in environment}


def rank_environment(plan: Plan) -> dict[str, str]:
    """Return what every rank of an arm is started with; the recipe's own variables win."""
    threads = str(plan.recipe.launch.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # Hashes of text, and with them the order of sets, are otherwise drawn anew in every process.
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        **determinism.environment(plan.recipe.determinism, plan.relaxed),
    }


def removed_variables(plan: Plan) -> list[str]:
    """Return the variables of determinism that no rank of the arm may see, since their cost is measured."""
    return [name for name in determinism.environment(plan.recipe.determinism) if name in plan.relaxed]


def srun_environment(environment: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun, and so of every task outside an image: the job's own variables and `outside`.

    Options of srun that come from somebody's shell (SRUN_*, and SLURM_* that a step reads) stay, as Slurm itself sets
    most of them.
    """
    own = {name: value for name, value in environment.items() if name.startswith(("SLURM", "SRUN_"))}
    return {**own, **outside, **{name: environment[name] for name in _FROM_SETUP if name in environment}}


def local_rank_environment(rank: int, world: int, port: int, launch: str) -> dict[str, str]:
    """Return what torch.distributed and samebits.worker.main expect where all ranks are on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "SAMEBITS_LAUNCH": launch,
    }


def perturbation(plan: Plan, artifact: Path, python: str) -> list[str]:
    """Return the words before a rank's command that vary how it runs; none where the plan asks for no stress."""
    return [python, "-m", "samebits.worker.perturb", str(artifact)] if plan.stress else []


def starting_order(plan: Plan) -> Sequence[int]:
    """Return the ranks in the order in which one machine starts them."""
    ranks = range(plan.world)
    return ranks[::-1] if _NODE_ORDER in plan.stress else ranks


def nodes_reversed(plan: Plan, nodes: int) -> bool:
    """Return whether the first ranks run on the last node; a launcher of the user's own orders its ranks itself."""
    return _NODE_ORDER in plan.stress and nodes > 1 and not one_process_per_node(plan.recipe)


def host_file(nodes: Sequence[str], each: int) -> str:
    """Return a line for each task, the last node first, in blocks. each: tasks of a node."""
    return "".join(f"{node}\n" * each for node in reversed(nodes))


def list_restored(plan: Plan) -> Listing:
    """Return the files of the checkpoint that a user's own launch line restores; nothing for built-in training."""
    if plan.restore is None or not isinstance(plan.recipe, CommandRecipe):
        return ()
    files = (Path(folder) / name for folder, _, names in os.walk(plan.restore) for name in names)
    found = ((str(file), file.stat()) for file in sorted(files))
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def settle(artifact: Artifact, plan: Plan, before: Listing) -> str:
    """Check what a user's launch line left once all its ranks ended well; return what is wrong, or an empty text.

    Its checkpoints are removed where no arm restores them. before: `list_restored` at the start.
    """
    if not isinstance(plan.recipe, CommandRecipe):
        return ""
    if not plan.keep_checkpoints:
        shutil.rmtree(artifact.checkpoints, ignore_errors=True)
    if list_restored(plan) != before:
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


def why_missing(plan: Plan) -> str:
    """Return the likely causes where a rank of a user's launch line ended well and left no fingerprint file."""
    if not isinstance(plan.recipe, CommandRecipe):
        return ""
    return (
        "Capture never attached. Either Python did not read it (the line or a script replaces PYTHONPATH, or starts "
        "`python -I`, `-E` or `-S`), or this rank stepped no optimizer that hooks can see (then name it in the script: "
        "samebits.watch(model, optimizer))."
    )
