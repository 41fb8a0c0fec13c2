"""Rung `boundary`: where modules, ranks and the optimizer hand tensors on to each other."""

from __future__ import annotations

from samebits.run.collectives import Collectives
from samebits.run.experts import Experts
from samebits.run.landing import Landings
from samebits.run.local_gradients import LocalGradients
from samebits.run.messages import Messages
from samebits.run.module_outputs import ModuleOutputs
from samebits.run.optimizer_step import OptimizerStep
from samebits.run.scopes import Scopes
from samebits.run.state import modules
from samebits.run.trace import Trace
from samebits.run.watch import Training


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
