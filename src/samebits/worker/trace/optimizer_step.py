"""The optimizer's step as a whole: from gradients and parameters as they enter to parameters as it leaves them.

One record: which parameter came out otherwise stands in the state that is recorded behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.capture.state import gradient_items, parameter_items
from samebits.worker.hooks import Training
from samebits.worker.patches import Patches
from samebits.worker.trace.trace import Sources, Trace, is_quiet

SITE = Site(Phase.UPDATE, Kind.CALL, "optimizer.step")


class OptimizerStep:
    """A tracer. Of a torch optimizer by its hooks, of Megatron's by its method."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._patches = Patches()
        self._handles: list[Any] = []
        self._entered: Sources | None = None
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        self._entered = None
        optimizer = self._training.optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            self._handles = [
                optimizer.register_step_pre_hook(lambda *_: self._enter()),
                optimizer.register_step_post_hook(lambda *_: self._leave()),
            ]
        else:
            self._patches.replace(optimizer, "step", self._stepping(optimizer.step))

    def stop(self) -> None:
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self._enter()
            result = original(*args, **kwargs)
            self._leave()
            return result

        return step

    def _enter(self) -> None:
        if not is_quiet():
            given = [*gradient_items(self._training), *parameter_items(self._training)]
            self._entered = self._trace.sources([tensor for _, tensor in given])

    def _leave(self) -> None:
        if not is_quiet() and self._entered is not None:
            after = [tensor for _, tensor in parameter_items(self._training)]
            self._trace.record_all(SITE, after, self._entered)
            self._entered = None
