"""Process group and model-parallel groups of one rank, and its place in them."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from samebits.fingerprint.header import Coordinates
from samebits.spec.sections import Parallel
from samebits.worker.trainer.cpu_backend import device_backend


class LayoutError(ValueError):
    """Ranks that were started otherwise than the recipe splits the model."""


def join(parallel: Parallel) -> Coordinates:
    """Joins the process group named by the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK) and
    splits it as `parallel` says.

    Raises LayoutError where the number of ranks differs, or for context parallelism.
    """
    _check(parallel)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(device_backend())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        # Each expert is whole on its rank: experts split over tensor-parallel ranks gather uneven numbers of tokens,
        # which gloo refuses.
        expert_tensor_parallel_size=1,
    )
    return _coordinates()


def leave() -> None:
    """Ends the groups after all ranks have come here."""
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def device() -> torch.device:
    """Where this rank keeps its tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _check(parallel: Parallel) -> None:
    started = int(os.environ["WORLD_SIZE"])
    if started != parallel.world:
        raise LayoutError(f"parallel.world is {parallel.world}, but {started} ranks were started; start as many")
    if parallel.context != 1:
        raise LayoutError(
            f"parallel.context is {parallel.context}, must be 1: context parallelism needs an attention "
            "of Transformer Engine, which the built-in workload does not use"
        )


def _coordinates() -> Coordinates:
    return Coordinates(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        expert=parallel_state.get_expert_model_parallel_rank(),
        context=parallel_state.get_context_parallel_rank(),
    )
