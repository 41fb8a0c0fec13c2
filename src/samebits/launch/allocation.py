"""What one job asks Slurm for, and how its ranks are started: from the cluster file and the recipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samebits.fingerprint.paths import Artifact
from samebits.launch import container, rank_command
from samebits.launch.container import Mount
from samebits.launch.job_state import LaunchError
from samebits.launch.srun import Stage
from samebits.launch.start import SPARE_MINUTES, Request, base
from samebits.recipe import image
from samebits.recipe.cluster import ClusterFile
from samebits.spec.plan import Plan
from samebits.spec.sections import MegatronRecipe, TokenData

WARNED_SECONDS = 60
_BARE = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "PATH")
"""Of what a person's shell holds, these reach srun and the engine where ranks run inside an image."""


def stage(facts: ClusterFile, plan: Plan, folder: Path, request: Request | None = None) -> Stage:
    """How the ranks of the plan's recipe are started. folder: of the recipe's results.

    Raises ClusterError, ImageError or LaunchError for a recipe that does not fit the cluster.
    """
    recipe = plan.recipe
    nodes, ranks = facts.layout(recipe)
    if nodes * ranks != plan.world:
        raise LaunchError(
            f"{recipe.name}: parallel.world is {plan.world}, must be nodes x ranks_per_node ({nodes} x {ranks})"
        )
    pinned = image.parse(recipe.container.image, Path(facts.images)) if recipe.container else None
    python = recipe.container.python if recipe.container else sys.executable
    entry = container.enter(facts.engine, pinned, _mounts(facts, plan, folder), gpus=facts.gpus, python=python)
    inherited = request.inherited if request else {}
    outside = {name: value for name, value in inherited.items() if pinned is None or name in _BARE}
    return Stage(
        nodes=nodes,
        ranks_per_node=ranks,
        cpus_per_rank=facts.cpus_per_rank,
        options=(*facts.slurm_of(recipe).srun, *entry.srun),
        prefix=entry.command,
        command=(request.command if request and request.command else (python, *rank_command.entry(recipe))),
        outside={**entry.environment, **outside},
        path=inherited.get("PYTHONPATH", "") if pinned is None else "",
        interface=facts.interface,
        image=pinned,
        verify=facts.verify_image,
        python=python,
    )


def _mounts(facts: ClusterFile, plan: Plan, folder: Path) -> list[Mount]:
    recipe = plan.recipe
    read: list[Path] = []
    if isinstance(recipe, MegatronRecipe) and isinstance(recipe.data, TokenData):
        read = [Path(recipe.data.path).parent]
    return [Mount(folder, writable=True), *(Mount(path, writable=False) for path in (*read, *map(Path, facts.mounts)))]


def job_name(artifact: Artifact, launch: str) -> str:
    """Unique, so that a job is found whose id was not written down. artifact: of the job's first arm."""
    recipe = artifact.folder.parent.parent.name
    return f"{recipe}-{artifact.folder.name}-{base(launch)[:12]}"


def parameters(facts: ClusterFile, request: Request) -> dict[str, Any]:
    """Of submitit's Slurm executor."""
    lead = request.starts[0]
    recipe = lead.plan.recipe
    nodes, ranks = facts.layout(recipe)
    slurm = facts.slurm_of(recipe)
    return {
        "job_name": job_name(lead.artifact, lead.launch),
        "time": len(request.starts) * recipe.launch.time_minutes + SPARE_MINUTES,
        "nodes": nodes,
        "ntasks_per_node": ranks,
        "cpus_per_task": facts.cpus_per_rank,
        "gpus_per_node": ranks if facts.gpus else None,
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "nodelist": ",".join(request.on) or None,
        "exclude": ",".join(request.off) or None,
        # The ranks are started by srun from within; one process of ours on the first node watches them.
        "use_srun": False,
        "stderr_to_stdout": True,
        "setup": list(facts.setup) or None,
        "additional_parameters": _further(facts, slurm.reservation, slurm.sbatch),
    }


def _further(facts: ClusterFile, reservation: str | None, given: Mapping[str, str]) -> dict[str, Any]:
    """Options that submitit has no name for. B: to the batch step alone, which tells the ranks itself."""
    return {
        "signal": f"B:USR2@{WARNED_SECONDS}",
        "requeue" if facts.requeue else "no-requeue": True,
        **({"reservation": reservation} if reservation else {}),
        **{name: value or True for name, value in given.items()},
    }


_ADVICE = {
    "timed out": "start again: the controller is slow, or away (`scontrol ping`)",
    "account": "give `account` (and `partition`, `qos`) in the cluster file's section slurm or the recipe's "
    "cluster.slurm; `sacctmgr show associations user=$USER` lists yours",
    "partition": "give `partition` in the cluster file's section slurm or the recipe's cluster.slurm; `sinfo -s` lists "
    "them",
    "qos": "give `qos` in the cluster file's section slurm or the recipe's cluster.slurm",
    "node": "ask for fewer or other nodes (recipe: cluster.nodes, ranks_per_node), fewer cpus_per_rank, or another "
    "partition; `sinfo -o '%P %D %c %m %G'` shows what there is",
    "time": "lower launch.time_minutes, or use another partition or qos",
    "configuration source": "start on a host that is configured for Slurm (`scontrol ping`)",
    "contact": "start again when the controller answers (`scontrol ping`)",
}


def advice(said: str) -> str:
    """A way out of sbatch's refusal, by what it says."""
    low = said.lower()
    return next((way for word, way in _ADVICE.items() if word in low), "mend what sbatch names, then start again")
