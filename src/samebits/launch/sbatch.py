"""What one job asks Slurm for, and how its ranks are started: from the cluster file and the recipe.

`samebits plan RECIPE --cluster FILE --sbatch` shows it as text: the scripts for sbatch, and the ranks' command lines.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samebits.fingerprint.paths import Artifact
from samebits.launch import container, rank_command, srun
from samebits.launch.container import Mount
from samebits.launch.job_state import LaunchError, job_part
from samebits.launch.srun import Meeting, Stage
from samebits.launch.submit import SPARE_MINUTES, JobRequest, Start, batch_script
from samebits.plan import arms, overhead_runs
from samebits.recipe import image
from samebits.recipe.cluster import ClusterError, ClusterFile, load
from samebits.spec.plan import Plan
from samebits.spec.sections import MegatronRecipe, Recipe, TokenData

_WARNED_SECONDS = 60
_LAUNCH = "LAUNCH"
"""Stands for the id that is drawn when a job is submitted."""
_MEETING = Meeting(address="FIRST_NODE", port=0, launch=_LAUNCH)
_BARE = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "PATH")
"""Variables of a person's shell that reach srun and the engine where ranks run inside an image."""


def stage(facts: ClusterFile, plan: Plan, folder: Path, request: JobRequest | None = None) -> Stage:
    """Return how the ranks of the plan's recipe are started. folder: of the recipe's results.

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
    data = recipe.data if isinstance(recipe, MegatronRecipe) else None
    read = [Path(data.path).parent] if isinstance(data, TokenData) else []
    read += map(Path, facts.mounts)
    mounts = [Mount(folder, writable=True), *(Mount(path, writable=False) for path in read)]
    entry = container.enter(facts.engine, pinned, mounts, gpus=facts.gpus, python=python)
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


def job_name(artifact: Artifact, launch: str) -> str:
    """Return a unique name, by which a job is found whose id was not written down. artifact: of its first arm."""
    recipe = artifact.folder.parent.parent.name
    return f"{recipe}-{artifact.folder.name}-{job_part(launch)[:12]}"


def parameters(facts: ClusterFile, request: JobRequest) -> dict[str, Any]:
    """Return the parameters of submitit's Slurm executor: what sbatch is asked for."""
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
        # Options that submitit has no name for. B: to the batch step alone, which tells the ranks itself.
        "additional_parameters": {
            "signal": f"B:USR2@{_WARNED_SECONDS}",
            "requeue" if facts.requeue else "no-requeue": True,
            **({"reservation": slurm.reservation} if slurm.reservation else {}),
            **{name: value or True for name, value in slurm.sbatch.items()},
        },
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
    """Return a way out of sbatch's refusal, by what it says."""
    low = said.lower()
    return next((way for word, way in _ADVICE.items() if word in low), "mend what sbatch names, then start again")


def text(recipe: Recipe, results: Path, cluster: Path | None) -> str:
    """Return the scripts of all jobs of a recipe, and the command lines of their ranks.

    Raises ClusterError without a cluster file, and what submitting would raise before it asks Slurm.
    """
    if cluster is None:
        raise ClusterError("--sbatch needs --cluster FILE, for example profiles/slurm/cluster.yaml")
    facts = load(cluster)
    return "\n".join(_annotated_script(request, facts) for request in requests(recipe, results.absolute()))


def requests(recipe: Recipe, results: Path) -> Iterator[JobRequest]:
    """Yield the jobs of a recipe's arms and experiments, were all of them to run."""
    starts = tuple(
        Start(plan=plan, artifact=Artifact(arms.artifact_folder(results, recipe.name, plan.arm)), launch=_LAUNCH)
        for plan in arms.plans(recipe, results)
    )
    if starts and recipe.cluster is not None and recipe.cluster.placement == "same-nodes":
        yield JobRequest(starts=starts)
    else:
        for start in starts:
            # Which nodes those are is known when the reference has run.
            yield JobRequest(starts=(start,), off=("NODES_OF_REFERENCE",) if arms.avoids_reference(start.plan) else ())
    for experiment in overhead_runs.asked(recipe):
        folder = overhead_runs.folder(results, recipe.name, experiment)
        plans = overhead_runs.plans(recipe, experiment)
        runs = (Start(plan=plan, artifact=Artifact(folder / plan.arm), launch=_LAUNCH) for plan in plans)
        yield JobRequest(starts=tuple(runs))


def script(request: JobRequest, facts: ClusterFile) -> str:
    """Return the text that sbatch is given for a job."""
    return batch_script(request.starts[0].artifact.launch, parameters(facts, request))


def _annotated_script(request: JobRequest, facts: ClusterFile) -> str:
    shown = [start for start in request.starts if start.plan.timing is None or start.plan.timing.block <= 1]
    names = ", ".join(start.plan.arm for start in shown)
    if more := len(request.starts) - len(shown):
        names += f", and {more} runs more, in blocks like the first"
    lines = [f"# ---- {names}", script(request, facts).rstrip()]
    for start in shown:
        staged = stage(facts, start.plan, start.artifact.folder.parent.parent, request)
        ranks = srun.ranks(staged, start.artifact, start.plan, _MEETING)
        lines += [f"# in it, the ranks of {start.plan.arm}:", f"# {shlex.join(ranks)}"]
    return "\n".join(lines) + "\n"
