"""Computation that nobody can look into: CUDA graphs are refused, compiled regions are left alone and named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from samebits.worker.patches import Patches

_OFF = (None, False, "none")
_SETTINGS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
"""Of Megatron Core's TransformerConfig, in any version."""


class GraphError(RuntimeError):
    """A CUDA graph replays operations that nobody dispatches."""


class Graphs:
    """modules: (scope, model)."""

    def __init__(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        listed = list(models)
        for _, model in listed:
            _refuse_settings(getattr(model, "config", None))
        self._compiled = sorted({name for scope, model in listed for name in _compiled(scope, model)})
        self._patches = Patches()

    def start(self) -> None:
        """Raises GraphError where one is being captured."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise _refusal("a step begins inside the capture of one")
        for name in ("capture_begin", "replay"):
            self._patches.replace(torch.cuda.CUDAGraph, name, _refusing(name))

    def stop(self) -> None:
        self._patches.restore()

    def notes(self) -> list[dict[str, Any]]:
        """What was compiled: modules by name, else functions."""
        names = sorted({*self._compiled, *_compiled_functions()})
        return [{"type": "left-alone", "reason": "torch.compile", "names": names}] if names else []


def _refuse_settings(config: Any) -> None:
    for name in _SETTINGS:
        value = getattr(config, name, None)
        if value not in _OFF:
            raise _refusal(f"the model's configuration has {name}={value!r}")


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise _refusal(f"torch.cuda.CUDAGraph.{name} was called in a step of that rung")

    return refuse


def _refusal(why: str) -> GraphError:
    return GraphError(
        f"rung op cannot look into CUDA graphs, and {why}: their operations are replayed without being dispatched; "
        "turn CUDA graphs off in the recipe or launch line of this arm, or record at rung boundary"
    )


def _compiled(scope: str, model: torch.nn.Module) -> Iterable[str]:
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            yield ".".join(filter(None, (scope, name))) or type(module).__name__


def _compiled_functions() -> Iterable[str]:
    """What torch.compile has compiled so far in this process; it is not imported for that."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    for reference in getattr(getattr(frames, "output_codes", None), "seen", ()):
        code = reference()
        if code is not None:
            yield f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {code.co_name}"
