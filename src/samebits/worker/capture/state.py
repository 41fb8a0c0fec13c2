"""All state of one rank by identity, in causal order: optimizer, master, parameters, buffers, schedule, data, RNG.

Values are live tensors, Python scalars (`bool`, `int`, `float`) or bytes. Names come from the model's own parameter
names, so they are the same in every arm of a recipe.

Every random stream that a rank draws from, by name.

`python`, `numpy` (its global generator), `torch` (the CPU's default generator), `cuda` (the current device's default
generator; absent without a GPU) and `megatron/NAME` for each state of Megatron's tracker. Without a GPU the tracker's
states are states of the CPU generator.

Parameters that must hold the same bits on several ranks, as the model marks them: for `samebits check`.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from samebits.fingerprint.records import Kind, Phase, Site
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


Value = torch.Tensor | bool | int | float | bytes
Item = tuple[Site, Value]


def state_items(training: Training) -> Iterator[Item]:
    """Every item of state that the next step may read, each once."""
    for scope, inner, names in _optimizers(training):
        yield from _optimizer_items(scope, inner, names)
        yield from _master_items(scope, inner, names, training)
    yield from parameter_items(training)
    for scope, module in modules(training):
        for name, buffer in module.named_buffers():
            yield _site(Kind.BUFFER, name, scope), own_part(buffer)
    if training.scheduler is not None:
        yield from _scalars(Kind.SCHEDULER, training.scheduler.state_dict(), "", "")
    if training.sampler is not None:
        yield from _scalars(Kind.POSITION, dict(training.sampler.state()), "", "")
    for name, state in rng_states(training).items():
        yield _site(Kind.RNG, name, ""), state


def parameter_items(training: Training) -> Iterator[tuple[Site, torch.Tensor]]:
    """Parameters as used at run time."""
    for scope, module in modules(training):
        for name, parameter in module.named_parameters():
            yield _site(Kind.PARAMETER, name, scope), own_part(parameter)


def gradient_items(training: Training) -> Iterator[tuple[Site, torch.Tensor]]:
    """The buffer each parameter's gradient was reduced into (`main_grad`), or its `grad`; none where it has neither."""
    for scope, module in modules(training):
        for name, parameter in module.named_parameters():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                yield Site(Phase.BACKWARD, Kind.GRADIENT, name, scope), own_part(gradient)


def own_part(value: Any) -> Any:
    """Return this rank's shard of a tensor that is spread over ranks (FSDP's DTensor), and any other value as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


def _site(kind: Kind, name: str, scope: str) -> Site:
    return Site(Phase.STATE, kind, name, scope)


def modules(training: Training) -> Iterator[tuple[str, Any]]:
    """(scope, model without its wrappers) of each chunk; the scope is empty where there is one chunk."""
    for index, chunk in enumerate(training.chunks):
        module = chunk
        while _only_wraps(module):
            module = module.module
        yield (f"chunk{index}" if len(training.chunks) > 1 else ""), module


def _only_wraps(module: Any) -> bool:
    """Return whether a module is only a wrapper: all it holds is in its `module`, not beside a part of that name."""
    inner = getattr(module, "module", None)
    if not isinstance(inner, torch.nn.Module):
        return False
    return all(
        len({id(one) for one in held(module)}) == len({id(one) for one in held(inner)})
        for held in (torch.nn.Module.parameters, torch.nn.Module.buffers)
    )


def inner_optimizer(optimizer: Any) -> Any:
    """torch's own, below Megatron's or bare; None where a Megatron optimizer holds none."""
    return getattr(optimizer, "optimizer", optimizer)


def _optimizers(training: Training) -> Iterator[tuple[str, Any, dict[int, str]]]:
    """(scope, Megatron optimizer, id of an optimized tensor -> parameter name) of each optimizer in a chain."""
    named = {
        id(parameter): f"{scope}.{name}" if scope else name
        for scope, module in modules(training)
        for name, parameter in module.named_parameters()
    }
    chain = getattr(training.optimizer, "chained_optimizers", [training.optimizer])
    for index, optimizer in enumerate(chain):
        yield (f"optimizer{index}" if len(chain) > 1 else ""), optimizer, _names(optimizer, training, named)


def _names(optimizer: Any, training: Training, named: dict[int, str]) -> dict[int, str]:
    """The optimized tensor is the parameter itself, its full-precision copy, or this rank's shard of either."""
    names = dict(named)
    for _, module in modules(training):
        for _, parameter in module.named_parameters():
            main = getattr(parameter, "main_param", None)
            if main is not None:
                names[id(main)] = named[id(parameter)]
    shards = getattr(optimizer, "model_param_group_index_map", {})
    for parameter, (group, order) in shards.items():
        names[id(inner_optimizer(optimizer).param_groups[group]["params"][order])] = named[id(parameter)]
    return names


def _optimized(optimizer: Any, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    inner = inner_optimizer(optimizer)
    for index, group in enumerate(inner.param_groups if inner is not None else []):
        for order, tensor in enumerate(group["params"]):
            yield names.get(id(tensor), f"group{index}.{order}"), tensor


def _optimizer_items(scope: str, optimizer: Any, names: dict[int, str]) -> Iterator[Item]:
    """Scalars of every parameter first (`step`), then moments: a wrong scalar is the cause of what follows it."""
    inner = inner_optimizer(optimizer)
    if inner is None:
        return
    entries = [
        (f"{name}.{key}", value)
        for name, tensor in _optimized(optimizer, names)
        for key, value in sorted(inner.state.get(tensor, {}).items())
    ]
    for index, group in enumerate(inner.param_groups):
        yield from _scalars(Kind.OPTIMIZER, {k: v for k, v in group.items() if k != "params"}, f"group{index}.", scope)
    scaler = getattr(optimizer, "grad_scaler", None)
    if scaler is not None:
        yield from _scalars(Kind.OPTIMIZER, scaler.state_dict(), "grad_scaler.", scope)
    for name, value in sorted(entries, key=lambda entry: isinstance(entry[1], torch.Tensor) and entry[1].numel() > 1):
        yield from _scalars(Kind.OPTIMIZER, {name: value}, "", scope)


def _master_items(scope: str, optimizer: Any, names: dict[int, str], training: Training) -> Iterator[Item]:
    """Optimized tensors that are storage of their own. One that views a run-time parameter is that parameter."""
    storages = {
        parameter.untyped_storage().data_ptr() for _, module in modules(training) for parameter in module.parameters()
    }
    for name, tensor in _optimized(optimizer, names):
        if tensor.untyped_storage().data_ptr() not in storages:
            yield _site(Kind.MASTER, name, scope), own_part(tensor)


def _scalars(kind: Kind, values: dict[str, Any], prefix: str, scope: str) -> Iterator[Item]:
    """Each entry as a tensor, an exact scalar or, for anything else built of plain values, the bytes of its repr."""
    for key, value in values.items():
        site = _site(kind, prefix + str(key), scope)
        if isinstance(value, torch.Tensor | bool | int | float | bytes):
            yield site, own_part(value)
        elif isinstance(value, dict):
            yield from _scalars(kind, value, f"{prefix}{key}.", scope)
        else:
            yield site, plain_bytes(value, site)


def plain_bytes(value: Any, site: Site) -> bytes:
    """Exact text of None, strings, numbers and sequences of them.

    Raises TypeError for anything else: its repr could hold a memory address, and leaving it out would be silent.
    """
    if isinstance(value, list | tuple):
        return b"[" + b",".join(plain_bytes(entry, site) for entry in value) + b"]"
    if value is None or isinstance(value, bool | int | str):
        return repr(value).encode()
    if isinstance(value, float):
        return value.hex().encode()
    raise TypeError(f"{site}: is {type(value).__name__}; state must be tensors or plain values to be fingerprinted")


NOTE = "parameters"


def note(training: Training) -> dict[str, Any]:
    """experts: of one expert-parallel rank alone (Megatron sets `allreduce` to False). whole: not split over
    tensor-parallel ranks, so that each of them has all of it. tied: an embedding that another pipeline stage has too.
    Names start with the chunk's, where there are several."""
    named = list(_named(training))
    expert = {name for name, parameter in named if not getattr(parameter, "allreduce", True)}
    return {
        "type": NOTE,
        "rank": training.coordinates.rank,
        "experts": sorted(expert),
        "whole": sorted(name for name, parameter in named if name not in expert and not _is_split(parameter)),
        "tied": sorted(name for name, parameter in named if getattr(parameter, "shared_embedding", False)),
    }


def _named(training: Training) -> Iterator[tuple[str, Any]]:
    for scope, module in modules(training):
        for name, parameter in module.named_parameters():
            yield (f"{scope}.{name}" if scope else name), parameter


def _is_split(parameter: Any) -> bool:
    """Marked by Megatron's layers; one rank of tensor parallel marks its parameters as well."""
    return bool(getattr(parameter, "tensor_model_parallel", False))
