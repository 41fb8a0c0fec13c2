"""The module that computes now: its path of names in the model, kept by torch's global module hooks.

What modules return, and the gradients of that. A module that computes inside a backward pass computes again.

A forward hook of the module's own runs behind torch's global ones: what it changes shows in the module around it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as hooks

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.trace.tensors import numbered, tensors_of
from samebits.worker.trace.trace import Trace, in_backward, is_quiet

Returned = Callable[[str, torch.nn.Module, Any], None]
"""(name, module, what it returned)."""


class Scopes:
    """Names of modules as the model itself has them (`decoder.layers.0.mlp.linear_fc1`), prefixed by their chunk where
    there are several. A module of none of the models goes by its class. returned: called behind each call."""

    def __init__(self, models: Iterable[tuple[str, torch.nn.Module]], returned: Iterable[Returned] = ()) -> None:
        self._names = {
            id(module): ".".join(filter(None, (scope, name)))
            for scope, model in models
            for name, module in model.named_modules()
        }
        self._returned = list(returned)
        self._inside = threading.local()
        self._handles: list[Any] = []

    def add(self, returned: Returned) -> None:
        self._returned.append(returned)

    def start(self) -> None:
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack.clear()

    @property
    def scope(self) -> str:
        """The path of the innermost module that computes on this thread; empty outside all modules."""
        return self._stack[-1][0] if self._stack else ""

    @property
    def holds(self) -> bool:
        """Whether the scope was entered in the backward node that this thread still runs (or outside of any)."""
        return bool(self._stack) and self._stack[-1][1] == node_number()

    def push(self, name: str, below: str | None = None) -> None:
        """Enter a scope that is no module, below the current or given one: `decoder.layers.0.mlp/Function.forward`."""
        outer = self.scope if below is None else below
        self._stack.append((f"{outer}/{name}" if outer else name, node_number()))

    def pop(self) -> None:
        if self._stack:
            self._stack.pop()

    @property
    def _stack(self) -> list[tuple[str, int]]:
        """Names, with the node of the backward pass that each was entered in."""
        if not hasattr(self._inside, "stack"):
            self._inside.stack = []
        stack: list[tuple[str, int]] = self._inside.stack
        return stack

    def _enter(self, module: torch.nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():
            # What torch.compile makes of a module is to be what it makes of it without us.
            return
        self._stack.append((self._names.get(id(module), type(module).__name__), node_number()))

    def _leave(self, module: torch.nn.Module, _arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        name = self.scope
        try:
            # Where the call failed there is no output, and the error goes on.
            for returned in self._returned if output is not None else ():
                returned(name, module, output)
        finally:
            self.pop()


def node_number() -> int:
    """Return the sequence number of the backward node that this thread runs; -1 where it runs none."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


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
