"""What is traced at which rung: the tracers of one rank, started and stopped with each step that is to be traced.

Computation that nobody can look into: CUDA graphs are refused, compiled regions are left alone and named.

Rung `op`: what happens inside the modules. Operations, functions of autograd, and calls beneath the dispatcher.

Rung `boundary`: where modules, ranks and the optimizer hand tensors on to each other.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from samebits.fingerprint.records import RUNGS
from samebits.fingerprint.stacks import Stacks
from samebits.worker.capture.reading import Reader
from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training
from samebits.worker.patches import Patches
from samebits.worker.trace.autograd import Calls
from samebits.worker.trace.autograd_nodes import Nodes
from samebits.worker.trace.collectives import Collectives, Experts, Landings, Messages
from samebits.worker.trace.dispatch import Operations
from samebits.worker.trace.gradients import LocalGradients, OptimizerStep
from samebits.worker.trace.library_calls import Probes
from samebits.worker.trace.memory_writes import Ledger
from samebits.worker.trace.modules import ModuleOutputs, Scopes
from samebits.worker.trace.trace import Trace

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


class Insides:
    """A tracer. Its stacks are those of one file. Raises GraphError where operations cannot be seen."""

    def __init__(self, training: Training, scopes: Scopes) -> None:
        self._training = training
        self._scopes = scopes
        self._stacks = Stacks()
        self._graphs = Graphs(modules(training))
        self._parameters = dict(_parameters(training))
        self._parts: tuple[Graphs | Probes | Calls | Operations, ...] = ()
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        self._ledger = Ledger(trace, self._stacks)
        nodes = Nodes(self._parameters)
        operations = Operations(trace, self._scopes, self._ledger, nodes, updater(self._training))
        calls = Calls(operations, self._ledger, nodes, self._scopes)
        self._parts = self._graphs, Probes(operations, self._ledger), calls, operations
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self._trace.notes += [*_skipped(self._ledger.counts), *self._graphs.notes(), *self._stacks.notes()]


def updater(training: Training) -> str:
    """Class of what updates the parameters."""
    optimizer = training.optimizer
    inner = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    return type(inner[0]).__name__


def _parameters(training: Training) -> Iterator[tuple[int, str]]:
    """Of each parameter its id and the scope of its module."""
    for scope, model in modules(training):
        for name, parameter in model.named_parameters():
            yield id(parameter), ".".join(filter(None, (scope, name.rpartition(".")[0])))


def _skipped(counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Operations and tensors of this step that have no record, by reason."""
    if counts:
        yield {"type": "skipped", "counts": dict(sorted(counts.items()))}


class Boundary:
    """A tracer. scopes: call back where modules return."""

    def __init__(self, training: Training, scopes: Scopes) -> None:
        returned = ModuleOutputs(modules(training))
        scopes.add(returned.returned)
        self._landings = Landings()
        self._tracers = (
            returned,
            Collectives(self._landings),
            Messages(self._landings),
            LocalGradients(training),
            Experts(scopes),
            OptimizerStep(training),
        )
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        self._landings.start()
        for tracer in self._tracers:
            tracer.start(trace)

    def stop(self) -> None:
        for tracer in reversed(self._tracers):
            tracer.stop()
        for name, count in sorted(self._landings.stop().items()):
            self._trace.notes.append({"type": "in-flight", "name": name, "count": count})


class Tracer(Protocol):
    """Writes what it sees into the trace between start and stop. Adds no collective, changes no tensor."""

    def start(self, trace: Trace) -> None: ...

    def stop(self) -> None: ...


def is_traced(rung: str) -> bool:
    return RUNGS.index(rung) >= RUNGS.index("boundary")


class Tracing:
    """One step after the other."""

    def __init__(self, training: Training, rung: str, reader: Reader) -> None:
        self._reader = reader
        self._scopes = Scopes(modules(training))
        self._boundary = Boundary(training, self._scopes)
        self._insides = Insides(training, self._scopes) if rung == "op" else None
        self._tracers: list[Tracer] = []

    def start(self, rung: str) -> Trace:
        """rung: of the step at hand."""
        trace = Trace(self._reader)
        self._scopes.start()
        inner: list[Tracer] = [self._insides] if self._insides is not None and rung == "op" else []
        self._tracers = [self._boundary, *inner]
        for tracer in self._tracers:
            tracer.start(trace)
        return trace

    def stop(self) -> None:
        for tracer in reversed(self._tracers):
            tracer.stop()
        self._scopes.stop()
