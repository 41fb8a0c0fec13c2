"""torch_dist checkpoints: everything that the next step depends on, one folder a step.

`<root>/step-000006/` holds Megatron's sharded model, optimizer and scheduler, one object per rank (random streams and
data position) and a label. It is written under a temporary name
and renamed when every rank is done, so a folder with the final name is whole.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject

from samebits.spec.sections import built_in
from samebits.worker.capture import state as rng
from samebits.worker.hooks import Training
from samebits.worker.trainer.label import CheckpointError, Label, read_fitting
from samebits.worker.trainer.model import unwrapped

# Optimizer state in the shape of the parameters, under names that do not depend on Megatron's buffers.
_METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "chained_optim_avoid_prefix": True,
    "singleton_local_shards": False,
}


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of this step."""
    return root / f"step-{step:06d}"


def save(training: Training, root: Path) -> Path:
    """Write the checkpoint of `training.step` below `root`; all ranks call it together. Returns its folder.

    Raises CheckpointError where psutil is missing.
    """
    if importlib.util.find_spec("psutil") is None:
        raise CheckpointError("checkpoint: psutil is not installed, and megatron-core hangs when it saves without it")
    folder = folder_of(root, training.step)
    partial = folder.with_name(f".{folder.name}.partial")
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(_sharded_state(training, is_loading=False), str(partial))
    dist.barrier()
    if dist.get_rank() == 0:
        _publish(partial, folder, Label.of(built_in(training.plan.recipe), training.step))
    dist.barrier()
    return folder


def load(training: Training, folder: Path) -> None:
    """Restore the state saved in `folder` into `training`, and set its step; all ranks call it together.

    Raises CheckpointError where the folder is missing or not a whole checkpoint, or of another layout.
    """
    label = read_fitting(folder, built_in(training.plan.recipe))
    state = dist_checkpointing.load(_sharded_state(training, is_loading=True), str(folder))
    for name, chunk in zip(_chunk_names(training), training.chunks, strict=True):
        unwrapped(chunk).load_state_dict(state[name])
    training.optimizer.load_state_dict(state["optimizer"])
    training.scheduler.load_state_dict(state["scheduler"])
    training.sampler.restore(state["rank"]["sampler"])
    training.step = label.step
    # Last: nothing after it may draw.
    rng.set_rng_states(training, state["rank"]["rng"])


def _sharded_state(training: Training, *, is_loading: bool) -> dict[str, Any]:
    models = {
        name: unwrapped(chunk).sharded_state_dict(metadata=_METADATA)
        for name, chunk in zip(_chunk_names(training), training.chunks, strict=True)
    }
    # Megatron's optimizer takes one chunk bare, and several under the names model0, model1, ...
    described = models if len(models) > 1 else models["model"]
    own = {"rng": rng.rng_states(training), "sampler": training.sampler.state()}
    rank, world = training.coordinates.rank, training.coordinates.world
    return {
        **models,
        "optimizer": training.optimizer.sharded_state_dict(described, is_loading=is_loading, metadata=_METADATA),
        "scheduler": training.scheduler.state_dict(),
        "rank": ShardedObject("rank", own, (world,), (rank,), replica_id=0),
    }


def _chunk_names(training: Training) -> list[str]:
    count = len(training.chunks)
    return ["model"] if count == 1 else [f"model{index}" for index in range(count)]


def _publish(partial: Path, folder: Path, label: Label) -> None:
    label.write(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
