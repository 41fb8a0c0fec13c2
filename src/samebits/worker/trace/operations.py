"""Rung `op`: what happens inside the modules. Operations, functions of autograd, and calls beneath the dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from samebits.fingerprint.stacks import Stacks
from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training
from samebits.worker.trace.autograd import Calls
from samebits.worker.trace.autograd_nodes import Nodes
from samebits.worker.trace.dispatch import Operations
from samebits.worker.trace.graphs import Graphs
from samebits.worker.trace.library_calls import Probes
from samebits.worker.trace.memory_writes import Ledger
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.trace import Trace


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
