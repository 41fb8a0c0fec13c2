"""What the Snakefile asks: which recipes and arms there are, what an arm needs, and what makes it run again.

The rules hold no logic; they call these with Snakemake's wildcards (`recipe`, `arm`). Only the recipe that a target
belongs to is read. A bad one ends the program with the recipe's own message and nothing else.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from samebits.plan import arms, overhead_runs
from samebits.recipe.load import RecipeError, load
from samebits.spec.sections import Recipe

RECIPES = Path("recipes")
RESULTS = Path("results")

_HELD: list[IO[str]] = []

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Of a recipe and of an arm, in paths."""
EXPERIMENT = "|".join(overhead_runs.EXPERIMENTS)


def recipes() -> list[str]:
    """Names of all recipes, read or not."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def everything(_: Any) -> list[str]:
    """Of every recipe the verdict, and its arms: those that were deleted since are run again."""
    names = recipes()
    stamps = [stamp for name in names for stamp in _collected(name)]
    return [*stamps, *(str(RESULTS / name / "verdict.txt") for name in names)]


def collected(wildcards: Any) -> list[str]:
    """Stamps of a recipe's collected arms, the reference first, and of its experiments."""
    return _collected(wildcards.recipe)


def needs(wildcards: Any) -> list[str]:
    """Stamps of the arms that must be finished before this one starts."""
    plan = _answer(arms.plan, _recipe(wildcards.recipe), wildcards.arm, RESULTS)
    return [_stamp(wildcards.recipe, arm, "ran") for arm in arms.needs(plan)]


def arm_key(wildcards: Any) -> str:
    """While it stays the same, a finished arm is not run again; comments in a recipe do not change it."""
    return arms.key(_answer(arms.plan, _recipe(wildcards.recipe), wildcards.arm, RESULTS))


def experiment_key(wildcards: Any) -> str:
    """While it stays the same, the runs of an experiment stand; it is another one where a finished one lost a run."""
    plans = _answer(overhead_runs.plans, _recipe(wildcards.recipe), wildcards.experiment)
    folder = overhead_runs.folder(RESULTS, wildcards.recipe, wildcards.experiment)
    lost = [plan.arm for plan in plans if not (folder / plan.arm).is_dir()] if (folder / "ran").exists() else []
    return hashlib.blake2b("".join([*map(arms.key, plans), *lost]).encode(), digest_size=16).hexdigest()


def experiment_option(wildcards: Any) -> str:
    """For `samebits overhead`."""
    return " ".join(overhead_runs.option(wildcards.experiment))


def recipe_key(wildcards: Any) -> str:
    """While it stays the same, a recipe's report stands: gates and waivers change it, comments do not."""
    text = json.dumps(asdict(_recipe(wildcards.recipe)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def threads(config: Mapping[str, Any]) -> Callable[[Any], int]:
    """Cores that an arm keeps busy on this machine; Snakemake takes the cores there are where that is more."""

    def busy(wildcards: Any) -> int:
        recipe = _recipe(wildcards.recipe)
        return 1 if config.get("cluster") else recipe.parallel.world * recipe.launch.threads

    return busy


def all_threads(config: Mapping[str, Any], cores: int | None) -> int:
    """What keeps everything else from this machine while time is measured on it. cores: that Snakemake may use."""
    return 1 if config.get("cluster") else max(1, cores or 1)


def cluster_option(config: Mapping[str, Any]) -> str:
    """For `samebits run`: the cluster file of the profile, if it names one."""
    return f"--cluster {shlex.quote(str(config['cluster']))}" if config.get("cluster") else ""


def hold() -> None:
    """Keeps the results to this pipeline while it lives; ends it where another one holds them."""
    RESULTS.mkdir(exist_ok=True)
    stream = (RESULTS / ".pipeline").open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.seek(0)
        raise SystemExit(
            f"{RESULTS}: another pipeline works here ({stream.read().strip()}); wait for it, or end it"
        ) from None
    stream.truncate(0)
    stream.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    stream.flush()
    # Held until the process ends, however it ends.
    _HELD.append(stream)


def priority(wildcards: Any) -> int:
    """An arm's place from the end, so that the reference, which others start from, goes first."""
    names = _arms(wildcards.recipe)
    return len(names) - names.index(wildcards.arm)


def add_to_path() -> None:
    """Lets rules find the `samebits` of the environment that Snakemake itself runs in, activated or not."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def _stamp(recipe: str, arm: str, name: str) -> str:
    return str(arms.artifact_folder(RESULTS, recipe, arm) / name)


def _collected(recipe: str) -> list[str]:
    wanted = _answer(overhead_runs.asked, _recipe(recipe))
    measured = [str(overhead_runs.folder(RESULTS, recipe, experiment) / "collected") for experiment in wanted]
    return [*(_stamp(recipe, arm, "collected") for arm in _arms(recipe)), *measured]


def _arms(recipe: str) -> list[str]:
    return list(_answer(arms.arms, _recipe(recipe)))


@functools.cache
def _recipe(name: str) -> Recipe:
    recipe: Recipe = _answer(load, RECIPES / f"{name}.yaml")
    return recipe


def _answer(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except RecipeError as error:
        # Any other error Snakemake would wrap in its own, with wildcards and a traceback of ours.
        raise SystemExit(str(error)) from None
