"""`samebits plan RECIPE --cluster FILE --sbatch`: the scripts for sbatch, and the ranks' command lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch import allocation, srun
from samebits.launch.slurm import SlurmExecutor
from samebits.launch.srun import Meeting
from samebits.launch.start import Request, Start
from samebits.plan import arms, overhead_runs
from samebits.recipe.cluster import ClusterError, ClusterFile, load
from samebits.spec.sections import Recipe

_LAUNCH = "LAUNCH"
"""Stands for the id that is drawn when a job is submitted."""
_MEETING = Meeting(address="FIRST_NODE", port=0, launch=_LAUNCH)


def text(recipe: Recipe, results: Path, cluster: Path | None) -> str:
    """Raises ClusterError without a cluster file, and what submitting would raise before it asks Slurm."""
    if cluster is None:
        raise ClusterError("--sbatch needs --cluster FILE, for example profiles/slurm/cluster.yaml")
    facts = load(cluster)
    return "\n".join(_script(request, facts) for request in requests(recipe, results.absolute()))


def requests(recipe: Recipe, results: Path) -> Iterator[Request]:
    """The jobs of a recipe's arms and experiments, were all of them to run."""
    yield from _of_arms(recipe, results)
    for experiment in overhead_runs.asked(recipe):
        folder = overhead_runs.folder(results, recipe.name, experiment)
        plans = overhead_runs.plans(recipe, experiment)
        starts = (Start(plan=plan, artifact=Artifact(folder / plan.arm), launch=_LAUNCH) for plan in plans)
        yield Request(starts=tuple(starts))


def _of_arms(recipe: Recipe, results: Path) -> Iterator[Request]:
    starts = tuple(
        Start(plan=plan, artifact=Artifact(arms.artifact_folder(results, recipe.name, plan.arm)), launch=_LAUNCH)
        for plan in arms.plans(recipe, results)
    )
    if starts and recipe.cluster is not None and recipe.cluster.placement == "same-nodes":
        yield Request(starts=starts)
        return
    for start in starts:
        # Which nodes those are is known when the reference has run.
        yield Request(starts=(start,), off=("NODES_OF_REFERENCE",) if arms.avoids_reference(start.plan) else ())


def _script(request: Request, facts: ClusterFile) -> str:
    shown = [start for start in request.starts if start.plan.timing is None or start.plan.timing.block <= 1]
    names = ", ".join(start.plan.arm for start in shown)
    if more := len(request.starts) - len(shown):
        names += f", and {more} runs more, in blocks like the first"
    lines = [f"# ---- {names}", SlurmExecutor(facts).script(request).rstrip()]
    for start in shown:
        stage = allocation.stage(facts, start.plan, start.artifact.folder.parent.parent, request)
        ranks = srun.ranks(stage, start.artifact, start.plan, _MEETING)
        lines += [f"# in it, the ranks of {start.plan.arm}:", f"# {shlex.join(ranks)}"]
    return "\n".join(lines) + "\n"
