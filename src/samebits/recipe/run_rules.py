"""Rules on batches, schedule, checkpoints, seeds, data and environment."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samebits.recipe import determinism
from samebits.recipe.problem import Problem, listed
from samebits.spec.sections import MegatronRecipe, Recipe, StreamData, TokenData

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
