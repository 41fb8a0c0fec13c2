"""Rules on batches, schedule, checkpoints, seeds, data and environment.

Rules on the image, and on where arms run: the sections container and cluster.

`reserved_options` is for the cluster file too, which has a section `slurm` of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from samebits.recipe import determinism
from samebits.recipe.image import ImageError, parse
from samebits.recipe.problem import Problem, listed
from samebits.spec.sections import MegatronRecipe, Recipe, StreamData, TokenData
from samebits.spec.surroundings import Slurm

_SEED_LIMIT = 2**32
_DATA_SEED_LIMIT = 2**64


def global_batch(recipe: MegatronRecipe) -> Iterator[Problem]:
    data, replicas = recipe.data, recipe.parallel.data
    once = data.micro_batch * replicas
    if data.global_batch % once:
        rule = f"must be a multiple of data.micro_batch x parallel.data ({data.micro_batch} x {replicas} = {once})"
        below = data.global_batch // once * once
        use = listed([str(batch) for batch in (below, below + once) if batch])
        yield Problem("data.global_batch", data.global_batch, rule, f"use {use}")


def interleaved_batch(recipe: MegatronRecipe) -> Iterator[Problem]:
    """The interleaved schedule: M % PP == 0, else "it introduces dependency bubbles" and raises."""
    data, split = recipe.data, recipe.parallel
    once = data.micro_batch * split.data
    number = data.global_batch // once
    if split.virtual_pipeline and data.global_batch % once == 0 and number % split.pipeline:
        rule = (
            f"must be a multiple of data.micro_batch x parallel.data x pipeline "
            f"({data.micro_batch} x {split.data} x {split.pipeline}) with virtual_pipeline"
        )
        use = (number // split.pipeline + 1) * split.pipeline * once
        yield Problem("data.global_batch", data.global_batch, rule, f"use {use}")


def learning_rate(recipe: MegatronRecipe) -> Iterator[Problem]:
    """OptimizerParamScheduler: max_lr >= min_lr."""
    optimizer = recipe.optimizer
    if optimizer.min_lr > optimizer.lr:
        rule = f"must be at most optimizer.lr ({optimizer.lr})"
        yield Problem("optimizer.min_lr", optimizer.min_lr, rule, "use 0.0, for example")


def warm_up(recipe: MegatronRecipe) -> Iterator[Problem]:
    """Otherwise optimizer.lr is never reached (OptimizerParamScheduler: lr_warmup_steps < lr_decay_steps)."""
    steps = recipe.optimizer.lr_warmup_steps
    if steps >= recipe.steps:
        yield Problem(
            "optimizer.lr_warmup_steps", steps, f"must be below steps ({recipe.steps})", "use 0 for no warm-up"
        )


def betas(recipe: MegatronRecipe) -> Iterator[Problem]:
    """torch.optim.AdamW: 0 <= beta < 1."""
    for key, beta in (("beta1", recipe.optimizer.beta1), ("beta2", recipe.optimizer.beta2)):
        if beta >= 1:
            yield Problem(f"optimizer.{key}", beta, "must be below 1", "use 0.9, for example")


def resume_step(recipe: Recipe) -> Iterator[Problem]:
    """The arm `resumed`, and faults that strike at a restore, start here and need a step to follow."""
    step, every = recipe.checkpoint.resume_from, recipe.checkpoint.every
    saved = range(every, recipe.steps, every)
    if step in saved:
        return
    rule = f"must be a multiple of checkpoint.every ({every}) below steps ({recipe.steps})"
    use = listed([str(step) for step in saved[:8]])
    yield Problem("checkpoint.resume_from", step, rule, f"use {use}" if use else "use a smaller checkpoint.every")


def seeds(recipe: MegatronRecipe) -> Iterator[Problem]:
    """numpy's global generator takes 32 bits of the seed, Philox 64."""
    found = {"seed": (recipe.seed, _SEED_LIMIT)}
    match recipe.data:
        case StreamData(stream_seed=seed):
            found["data.stream_seed"] = (seed, _DATA_SEED_LIMIT)
        case TokenData(shuffle_seed=seed):
            found["data.shuffle_seed"] = (seed, _DATA_SEED_LIMIT)
    for key, (seed, limit) in found.items():
        if seed >= limit:
            yield Problem(key, seed, f"must be below {limit}", "use 1234, for example")


def token_digest(recipe: MegatronRecipe) -> Iterator[Problem]:
    if isinstance(recipe.data, TokenData) and not re.fullmatch(r"[0-9a-f]{64}", recipe.data.sha256):
        way_out = f"paste what `sha256sum {recipe.data.path}` prints"
        yield Problem("data.sha256", recipe.data.sha256, "must be 64 hexadecimal digits in lower case", way_out)


def environment(recipe: Recipe) -> Iterator[Problem]:
    yield from determinism.problems(recipe.determinism.environment)


def threads(recipe: Recipe) -> Iterator[Problem]:
    """The launcher sets OMP_NUM_THREADS from launch.threads."""
    value = recipe.determinism.environment.get("OMP_NUM_THREADS")
    if value and value != str(recipe.launch.threads):
        rule = f"must be launch.threads ({recipe.launch.threads})"
        yield Problem("determinism.environment.OMP_NUM_THREADS", value, rule, "delete it: launch.threads sets it")


_LAYOUT = "cluster.nodes and ranks_per_node set it"
_WHERE = "samebits chooses nodes, by cluster.placement"
_OURS = "samebits sets it"
_LOGS = "logs are where samebits looks for them"
_ONE_JOB = "an arm is one job, which samebits waits for"

SBATCH: dict[str, str] = {
    "nodes": _LAYOUT,
    "ntasks": _LAYOUT,
    **{f"ntasks-per-{unit}": _LAYOUT for unit in ("node", "core", "socket", "gpu")},
    "tasks-per-node": _LAYOUT,
    "cpus-per-task": "the cluster file's cpus_per_rank sets it",
    "time": "launch.time_minutes sets it",
    "time-min": "launch.time_minutes sets it",
    "output": _LOGS,
    "error": _LOGS,
    "input": _OURS,
    "open-mode": _LOGS,
    "job-name": "samebits finds its jobs by it",
    "signal": "samebits asks to be told before the time limit",
    "requeue": "the cluster file's requeue sets it",
    "no-requeue": "the cluster file's requeue sets it",
    "nodelist": _WHERE,
    "nodefile": _WHERE,
    "exclude": _WHERE,
    "array": _ONE_JOB,
    "wait": _ONE_JOB,
    "test-only": _ONE_JOB,
    "clusters": _ONE_JOB,
    "wrap": _OURS,
    "chdir": _OURS,
    "export": "the recipe and samebits say what ranks see",
    "export-file": "the recipe and samebits say what ranks see",
    "get-user-env": "the recipe and samebits say what ranks see",
    "parsable": "samebits reads what sbatch prints",
    "quiet": "samebits reads what sbatch prints",
    "help": _ONE_JOB,
    "usage": _ONE_JOB,
    "version": _ONE_JOB,
    **{name: f"slurm.{name} sets it" for name in ("account", "partition", "qos", "constraint", "reservation")},
}
"""Options of sbatch that are not the recipe's to give, and why."""

SRUN: dict[str, str] = {
    **SBATCH,
    "label": "samebits writes a log per rank",
    "unbuffered": _LOGS,
    "pty": _LOGS,
    "kill-on-bad-exit": "samebits lets the other ranks say what they saw",
    "wait": "samebits lets the other ranks say what they saw",
    "no-kill": "a step without all its ranks proves nothing",
    "distribution": "ranks lie in blocks: rank r on node r // ranks_per_node",
    "relative": _WHERE,
    "jobid": _OURS,
    "het-group": _OURS,
    "multi-prog": _OURS,
    "task-prolog": "the recipe and samebits say what ranks see",
    "task-epilog": _OURS,
    "prolog": _OURS,
    "epilog": _OURS,
    "preserve-env": "the recipe and samebits say what ranks see",
    "immediate": "the step waits for the one before it",
}
"""The same of srun."""

_NAME = re.compile(r"[a-z][a-z0-9]+(?:-[a-z0-9]+)*")


def container_image(recipe: Recipe) -> Iterator[Problem]:
    if recipe.container is None:
        return
    try:
        parse(recipe.container.image, Path("/"))
    except ImageError as error:
        yield error.problem


def container_python(recipe: Recipe) -> Iterator[Problem]:
    if recipe.container is None:
        return
    python = recipe.container.python
    if not python or python.startswith("-") or any(letter.isspace() for letter in python):
        rule = "must be one word: the name or the absolute path of an interpreter inside the image"
        yield Problem("container.python", python, rule, "use python3, for example")


def cluster_world(recipe: Recipe) -> Iterator[Problem]:
    if (cluster := recipe.cluster) is None:
        return
    places, world = cluster.nodes * cluster.ranks_per_node, recipe.parallel.world
    if world != places:
        rule = f"must be cluster.nodes x ranks_per_node ({cluster.nodes} x {cluster.ranks_per_node} = {places})"
        way_out = f"use {places}, or change cluster"
        if world % cluster.ranks_per_node == 0:
            way_out = f"use cluster.nodes of {world // cluster.ranks_per_node}, for example"
        yield Problem("parallel.world", world, rule, way_out)


def cluster_placement(recipe: Recipe) -> Iterator[Problem]:
    """Twins alone run on other nodes."""
    if recipe.cluster and recipe.cluster.placement == "other-nodes" and "repeatability" not in recipe.gates:
        rule = "must not be other-nodes without the gate repeatability: only its twins run on other nodes"
        yield Problem("cluster.placement", "other-nodes", rule, "add repeatability to gates, or use any")


def cluster_slurm(recipe: Recipe) -> Iterator[Problem]:
    if recipe.cluster and recipe.cluster.slurm:
        yield from reserved_options(recipe.cluster.slurm, "cluster.slurm")


def reserved_options(slurm: Slurm, key: str) -> Iterator[Problem]:
    """What a section `slurm` must not ask for. key: dotted, of the section in its file."""
    for name in ("account", "partition", "qos", "constraint", "reservation"):
        value = getattr(slurm, name)
        if value is not None and (not value.strip() or "\n" in value):
            yield Problem(f"{key}.{name}", value, "must be one line, not empty", "delete it to get the default")
    for name, value in slurm.sbatch.items():
        yield from _sbatch_problems(f"{key}.sbatch.{name}", name, value)
    for index, word in enumerate(slurm.srun):
        yield from _srun_problems(f"{key}.srun[{index}]", word)


def _sbatch_problems(key: str, name: str, value: str) -> Iterator[Problem]:
    if not _NAME.fullmatch(name):
        rule = "must be the long name of an option of sbatch, without dashes before it"
        yield Problem(key, value, rule, f"write {name.lstrip('-') or 'a name'} if that is one, such as mem or gres")
    elif why := _reserved(name, SBATCH):
        yield Problem(key, value, f"must be left out: {why}", "delete it")
    elif "\n" in value:
        yield Problem(key, value, "must be one line", "write one entry per option")


def _srun_problems(key: str, word: str) -> Iterator[Problem]:
    name = word.removeprefix("--").partition("=")[0]
    if not word.startswith("--") or not _NAME.fullmatch(name):
        rule = "must be a long option of srun in one word, --NAME or --NAME=VALUE: another word would be the command"
        yield Problem(key, word, rule, "write --mpi=pmix, for example")
    elif why := _reserved(name, SRUN):
        yield Problem(key, word, f"must be left out: {why}", "delete it")


def _reserved(name: str, reserved: Mapping[str, str]) -> str | None:
    """Why a name is not free; getopt takes the beginning of a name for the whole, so that is not free either."""
    if name.startswith("container"):
        return "the recipe's section container and the cluster file's engine set it"
    if name in reserved:
        return reserved[name]
    whole = next((other for other in reserved if other.startswith(name)), None)
    return None if whole is None else f"it is short for {whole}, and {reserved[whole]}"
