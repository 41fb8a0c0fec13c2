"""Makes megatron.core run where torch has no GPU: its device is the CPU, its collectives are gloo's.

`install` must run before the first import of megatron, because megatron binds names of `torch.cuda` at import. It
replaces entry points of torch in this process and never undoes that, so it belongs into rank processes only. With a
GPU present it does nothing, and the training code is the same.

What it does not do: imitate a GPU's numerics, its streams' concurrency, or its memory statistics.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import typing
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")

_FACTORIES = (
    *("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "scalar_tensor", "tensor"),
    *("tril_indices", "triu_indices", "zeros", "zeros_like"),
)


class _Stream:
    """Stand-in for every CUDA stream: on the CPU all work is done when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class _Event:
    """Stand-in for every CUDA event: it has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def device_backend() -> str:
    """Return the name of the collective backend that fits this machine: `nccl` or `gloo`."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def install() -> None:
    """Replace what megatron.core asks of CUDA; do nothing on a machine with a GPU, or when called again."""
    if torch.cuda.is_available() or getattr(torch.cuda, "_samebits_cpu_backend", False):
        return
    _place_tensors_on_cpu()
    _name_types_as_on_cuda()
    _share_cpu_generator()
    _make_streams_idle()
    _leave_functions_uncompiled()
    _complete_typing()
    torch.cuda._samebits_cpu_backend = True  # type: ignore[attr-defined]


def _place_tensors_on_cpu() -> None:
    """megatron asks for `device="cuda"`, `.cuda()` and the current device by name, in many places."""
    _replace(torch.cuda, current_device=lambda: CPU, set_device=_idle(), device_count=lambda: 1)
    for name in _FACTORIES:
        setattr(torch, name, _placed_on_cpu(getattr(torch, name)))
    _replace(torch.Tensor, cuda=_identity(), to=_moved_to_cpu(torch.Tensor.to), record_stream=_idle())
    _replace(torch.nn.Module, cuda=_identity())


def _name_types_as_on_cuda() -> None:
    """megatron's optimizers and gradient clipping compare `tensor.type()` with `torch.cuda.FloatTensor` and refuse
    all other names."""
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return original(self, *args, **kwargs)
        return str(original(self)).replace("torch.", "torch.cuda.", 1)

    _replace(torch.Tensor, type=type_name)


def _share_cpu_generator() -> None:
    """Dropout on the CPU draws from the CPU's default generator, so megatron's tracker must save, seed and restore
    that one where it would use the GPU's."""

    for owner in (torch.cuda, torch.cuda.random):
        _replace(owner, get_rng_state=lambda *_, **__: torch.get_rng_state())
        _replace(owner, set_rng_state=lambda state, *_, **__: torch.set_rng_state(state))
        # Not torch.manual_seed, which calls these again.
        _replace(owner, manual_seed=torch.default_generator.manual_seed)
        _replace(owner, manual_seed_all=torch.default_generator.manual_seed)
    # megatron sets states through these two, where torch would wait for a CUDA initialisation that never comes.
    _replace(torch.cuda, _lazy_call=lambda callback, **_: callback(), default_generators={CPU: torch.default_generator})
    # The tracker warns whenever the CPU generator moves inside a fork; here that is the purpose.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)


def _make_streams_idle() -> None:
    """megatron synchronises streams and reads memory statistics even where it does not overlap anything."""
    stream = _Stream()
    _replace(torch.cuda, Stream=_Stream, Event=_Event, stream=lambda _: contextlib.nullcontext())
    _replace(torch.cuda, current_stream=lambda *_: stream, default_stream=lambda *_: stream)
    _replace(torch.cuda, synchronize=_idle(), empty_cache=_idle(), is_current_stream_capturing=lambda: False)
    _replace(torch.cuda.nvtx, range_push=_idle(), range_pop=_idle())
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: 0)


def _leave_functions_uncompiled() -> None:
    """megatron decorates functions with torch.compile at import; on the CPU that asks for a C++ compiler at run time
    and for seconds of imports in every rank."""
    _replace(torch, compile=_identity())


def _complete_typing() -> None:
    """megatron-core 0.17 and later import `typing.override`, which Python 3.11 lacks; typing_extensions (a dependency
    of torch) has it."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined, unused-ignore]


def _replace(owner: Any, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(owner, name, function)


def _idle() -> Callable[..., None]:
    """Return a new function that does nothing: torch._dynamo refuses to see one function under two names."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    return nothing


def _identity() -> Callable[..., Any]:
    def itself(self: Any, *_: Any, **__: Any) -> Any:
        return self

    return itself


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


def _placed_on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def build(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return build


def _moved_to_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and _is_cuda(args[0]):
            args = (CPU, *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return original(self, *args, **kwargs)

    return to
