"""Where a rank of a foreign loop stands, as far as the process tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from samebits.fingerprint.header import Coordinates


def coordinates() -> Coordinates:
    """Of Megatron's groups where they were made; else rank and world alone, all other ranks taken for replicas."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return Coordinates(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            tensor=state.get_tensor_model_parallel_rank(),
            pipeline=state.get_pipeline_model_parallel_rank(),
            data=state.get_data_parallel_rank(),
            expert=state.get_expert_model_parallel_rank(),
            context=state.get_context_parallel_rank(),
        )
    started = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if started else int(os.environ.get("RANK", "0"))
    world = dist.get_world_size() if started else int(os.environ.get("WORLD_SIZE", "1"))
    return Coordinates(rank=rank, world=world, tensor=0, pipeline=0, data=rank, expert=0, context=0)


def device(chunks: Sequence[Any]) -> torch.device:
    """Where the model lies."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            found: torch.device = parameter.device
            return found
    return torch.device("cpu")
