"""Rung `boundary`: where modules, ranks and the optimizer hand tensors on to each other."""

from __future__ import annotations

from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training
from samebits.worker.trace.collectives import Collectives
from samebits.worker.trace.experts import Experts
from samebits.worker.trace.gradients import LocalGradients
from samebits.worker.trace.messages import Messages
from samebits.worker.trace.module_outputs import ModuleOutputs
from samebits.worker.trace.modules import Scopes
from samebits.worker.trace.optimizer_step import OptimizerStep
from samebits.worker.trace.pending import Landings
from samebits.worker.trace.trace import Trace


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
