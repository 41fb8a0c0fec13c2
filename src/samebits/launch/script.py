"""`samebits plan RECIPE --cluster FILE --sbatch`: the scripts for sbatch, and the ranks' command lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from samebits import arms
from samebits.artifact.folder import Artifact
from samebits.launch import allocation, step
from samebits.launch.cluster import ClusterError, ClusterFile, load
from samebits.launch.slurm_executor import SlurmExecutor
from samebits.launch.start import Request, Start
from samebits.launch.step import Meeting
from samebits.sections import Recipe

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
    """The jobs of a recipe's arms, were all of them to run."""
    starts = tuple(
        Start(plan=plan, artifact=Artifact(arms.artifact_folder(results, recipe.name, plan.arm)), launch=_LAUNCH)
        for plan in arms.plans(recipe, results)
    )
    if recipe.cluster is not None and recipe.cluster.placement == "same-nodes":
        yield Request(starts=starts)
        return
    for start in starts:
        # Which nodes those are is known when the reference has run.
        yield Request(starts=(start,), off=("NODES_OF_REFERENCE",) if arms.avoids_reference(start.plan) else ())


def _script(request: Request, facts: ClusterFile) -> str:
    names = ", ".join(start.plan.arm for start in request.starts)
    lines = [f"# ---- {names}", SlurmExecutor(facts).script(request).rstrip()]
    for start in request.starts:
        stage = allocation.stage(facts, start.plan, start.artifact.folder.parent.parent, request)
        ranks = step.ranks(stage, start.artifact, start.plan, _MEETING)
        lines += [f"# in it, the ranks of {start.plan.arm}:", f"# {shlex.join(ranks)}"]
    return "\n".join(lines) + "\n"
