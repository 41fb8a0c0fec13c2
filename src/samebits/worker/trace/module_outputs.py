"""What modules return, and the gradients of that. A module that computes inside a backward pass computes again.

A forward hook of the module's own runs behind torch's global ones: what it changes shows in the module around it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Trace, in_backward, is_quiet


@dataclass
class _Hooked:
    """A tensor with a hook. names: of the modules that returned it; a gradient arrives once for all of them. version:
    behind an operation in place the tensor is another one, with another gradient."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    names: list[str] = field(default_factory=list)


class ModuleOutputs:
    """A tracer. models: as for `Scopes`, which calls `returned`."""

    def __init__(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        self._known = {id(module) for _, model in models for module in model.modules()}
        self._trace: Trace | None = None
        self._hooked: dict[int, _Hooked] = {}
        self._handles: list[Any] = []

    def start(self, trace: Trace) -> None:
        self._trace = trace

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._trace = None
        self._handles.clear()
        self._hooked.clear()

    def returned(self, name: str, module: torch.nn.Module, output: Any) -> None:
        trace = self._trace
        if trace is None or is_quiet() or id(module) not in self._known:
            return
        kind = Kind.RECOMPUTE if in_backward() else Kind.MODULE
        for own, tensor in numbered(name or type(module).__name__, tensors_of(output)):
            trace.record(Site(trace.phase, kind, own), tensor)
            if tensor.requires_grad:
                self._await_gradient(trace, own, tensor)

    def _await_gradient(self, trace: Trace, name: str, tensor: torch.Tensor) -> None:
        hooked = self._hooked.get(id(tensor))
        if hooked is None or hooked.tensor() is not tensor or hooked.version != tensor._version:
            hooked = self._hooked[id(tensor)] = _Hooked(weakref.ref(tensor), tensor._version)
            self._handles.append(tensor.register_hook(self._arrived(trace, hooked.names)))  # type: ignore[no-untyped-call]
        hooked.names.append(name)

    def _arrived(self, trace: Trace, names: list[str]) -> Callable[[torch.Tensor | None], None]:
        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is None or is_quiet() or self._trace is not trace:
                return
            sites = [Site(Phase.BACKWARD, Kind.OUTPUT_GRADIENT, name) for name in reversed(names)]
            reading = trace.record(sites[0], gradient)
            trace.repeat(reading, sites[1:])

        return hook
