"""What is traced at which rung: the tracers of one rank, started and stopped with each step that is to be traced."""

from __future__ import annotations

from typing import Protocol

from samebits.fingerprint.records import RUNGS
from samebits.worker.capture.reading import Reader
from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training
from samebits.worker.trace.boundary import Boundary
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.operations import Insides
from samebits.worker.trace.trace import Trace


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
