"""torch_dist checkpoints: everything that the next step depends on, one folder a step.

`<root>/step-000006/` holds Megatron's sharded model, optimizer and scheduler, one object per rank (random streams and
data position) and `samebits.json`, which says what the checkpoint belongs to. It is written under a temporary name
and renamed when every rank is done, so a folder with the final name is whole.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject

from samebits.run import rng
from samebits.run.model import unwrapped
from samebits.run.watch import Training

LABEL = "samebits.json"
FORMAT = 1

# Optimizer state in the shape of the parameters, under names that do not depend on Megatron's buffers.
_METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "chained_optim_avoid_prefix": True,
    "singleton_local_shards": False,
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or restored."""


def folder_of(root: Path, step: int) -> Path:
    """Folder of the checkpoint of this step."""
    return root / f"step-{step:06d}"


def save(training: Training, root: Path) -> Path:
    """Writes the checkpoint of `training.step` below `root`; all ranks call it together. Returns its folder.

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
        _publish(partial, folder, _label(training))
    dist.barrier()
    return folder


def load(training: Training, folder: Path) -> None:
    """Restores the state saved in `folder` into `training`, and sets its step; all ranks call it together.

    Raises CheckpointError where the folder is missing or not a whole checkpoint, or of another layout.
    """
    step = _check(folder, _label(training))
    state = dist_checkpointing.load(_sharded_state(training, is_loading=True), str(folder))
    for name, chunk in zip(_chunk_names(training), training.chunks, strict=True):
        unwrapped(chunk).load_state_dict(state[name])
    training.optimizer.load_state_dict(state["optimizer"])
    training.scheduler.load_state_dict(state["scheduler"])
    training.sampler.restore(state["rank"]["sampler"])
    training.step = step
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


def _label(training: Training) -> dict[str, Any]:
    recipe = training.plan.recipe
    layout = dataclasses.asdict(recipe.parallel) | {
        "precision": recipe.precision,
        "optimizer.distributed": recipe.optimizer.distributed,
    }
    return {"format": FORMAT, "step": training.step, "layout": layout}


def _publish(partial: Path, folder: Path, label: dict[str, Any]) -> None:
    (partial / LABEL).write_text(json.dumps(label, sort_keys=True, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _check(folder: Path, wanted: dict[str, Any]) -> int:
    """The step of a whole checkpoint of this layout."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint; the arm that writes it must have finished")
    found = _read_label(folder)
    if found["format"] != FORMAT:
        raise CheckpointError(f"{folder}: checkpoint format is {found['format']}, must be {FORMAT}; write it again")
    for key, value in wanted["layout"].items():
        if found["layout"].get(key) != value:
            raise CheckpointError(
                f"{folder}: was written with {key} = {found['layout'].get(key)}, this run has {key} = {value}; "
                "restore it in the layout that wrote it"
            )
    return int(found["step"])


def _read_label(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / LABEL).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder}: not a whole checkpoint ({LABEL}: {error}); write it again") from error
    if not isinstance(found, dict) or not {"format", "step", "layout"} <= found.keys():
        raise CheckpointError(f"{folder}: not a whole checkpoint ({LABEL} lacks format, step or layout)")
    return found
