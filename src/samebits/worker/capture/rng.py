"""Every random stream that a rank draws from, by name.

`python`, `numpy` (its global generator), `torch` (the CPU's default generator), `cuda` (the current device's default
generator; absent without a GPU) and `megatron/NAME` for each state of Megatron's tracker. Without a GPU the tracker's
states are states of the CPU generator.
"""

from __future__ import annotations

import ast
import random
import sys
from typing import Any

import numpy as np
import torch

from samebits.worker.hooks import Training

TRACKER = "megatron/"

State = torch.Tensor | bytes


def seed_all(seed: int, pipeline: int) -> None:
    """Seeds all streams before the model is built; pipeline stages get different ones, data-parallel replicas equal
    ones. Numpy takes 32 bits of the seed."""
    own = seed + 100 * pipeline
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)
    _random_module().model_parallel_cuda_manual_seed(own)


def rng_states(training: Training) -> dict[str, State]:
    """State of each stream: bytes for `python` and `numpy`, a uint8 tensor on the CPU (a copy) for the others."""
    states: dict[str, State] = {
        "python": repr(random.getstate()).encode(),
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
    }
    if training.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    tracked = _tracker().get_states() if _tracker() else {}
    states.update({TRACKER + name: tracked[name].clone() for name in sorted(tracked)})
    return states


def set_rng_states(training: Training, states: dict[str, State]) -> None:
    """Puts every stream back to what `rng_states` gave.

    Raises ValueError where `states` names other streams than this rank has.
    """
    found, wanted = sorted(states), sorted(rng_states(training))
    if found != wanted:
        raise ValueError(f"RNG streams are {', '.join(found)}, must be {', '.join(wanted)}")
    random.setstate(ast.literal_eval(_text(states["python"])))
    np.random.set_state(ast.literal_eval(_text(states["numpy"])))
    torch.set_rng_state(_tensor(states["torch"]))
    if "cuda" in states:
        torch.cuda.set_rng_state(_tensor(states["cuda"]))
    tracked = {name.removeprefix(TRACKER): _tensor(state) for name, state in states.items() if name.startswith(TRACKER)}
    if tracked:
        _tracker().set_states(tracked)


def _numpy_state() -> bytes:
    name, key, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return repr((name, np.asarray(key).tolist(), position, has_gauss, gauss)).encode()


def _text(state: State) -> str:
    if not isinstance(state, bytes):
        raise ValueError(f"RNG state is {type(state).__name__}, must be bytes")
    return state.decode()


def _tensor(state: State) -> torch.Tensor:
    if not isinstance(state, torch.Tensor):
        raise ValueError(f"RNG state is {type(state).__name__}, must be a tensor")
    return state.clone()


def _tracker() -> Any:
    """Megatron's; None where this process has not imported it."""
    loaded = sys.modules.get("megatron.core.tensor_parallel.random")
    return loaded.get_cuda_rng_tracker() if loaded else None


def _random_module() -> Any:
    # Not at the top: capture and faults import this module before the CPU backend is installed.
    from megatron.core.tensor_parallel import random as tracked_random

    return tracked_random
