"""Gradients of parameters as this rank computed them, before they are reduced.

Of Megatron's DDP: `main_grad` as the first synchronisation of its bucket begins, before it is scaled. Of all other
parameters: `grad` each time it was accumulated, which is before torch's DDP copies it into its bucket.

The optimizer's step as a whole: from gradients and parameters as they enter to parameters as it leaves them.

One record: which parameter came out otherwise stands in the state that is recorded behind it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.capture.state import gradient_items, modules, parameter_items
from samebits.worker.hooks import Training
from samebits.worker.patches import Patches
from samebits.worker.trace.trace import Sources, Trace, is_quiet

_BUCKETS = "megatron.core.distributed.param_and_grad_buffer"


class LocalGradients:
    """A tracer. What Megatron does to finish gradients counts as backward, wherever it is called from."""

    def __init__(self, training: Training) -> None:
        self._parameters = {
            Site(Phase.BACKWARD, Kind.LOCAL_GRADIENT, name, scope): parameter
            for scope, module in modules(training)
            for name, parameter in module.named_parameters()
        }
        self._sites = {id(parameter): site for site, parameter in self._parameters.items()}
        configs = {id(config): config for config in (getattr(chunk, "config", None) for chunk in training.chunks)}
        self._configs: list[Any] = [one for one in configs.values() if getattr(one, "finalize_model_grads_func", None)]
        self._patches = Patches()
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self._trace: Trace

    def start(self, trace: Trace) -> None:
        self._trace = trace
        self._seen.clear()
        if buckets := getattr(sys.modules.get(_BUCKETS), "_ParamAndGradBucketGroup", None):
            self._patches.replace(buckets, "start_grad_sync", self._starting(buckets.start_grad_sync))
            self._patches.replace(buckets, "finish_grad_sync", self._finishing(buckets.finish_grad_sync))
        for config in self._configs:
            finish = self._finishing(config.finalize_model_grads_func)
            self._patches.replace(config, "finalize_model_grads_func", finish)
        for site, parameter in self._parameters.items():
            if parameter.requires_grad and getattr(parameter, "main_grad", None) is None:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated(site)))

    def stop(self) -> None:
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _starting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start_grad_sync(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_quiet() and id(group) not in self._seen:
                self._seen.add(id(group))
                self._record(group)
            with self._backward():
                return original(group, *args, **kwargs)

        return start_grad_sync

    def _record(self, group: Any) -> None:
        for parameter in (parameter for bucket in group.buckets for parameter in bucket.params_list):
            if site := self._sites.get(id(parameter)):
                self._trace.record(site, parameter.main_grad)

    def _finishing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finish(*args: Any, **kwargs: Any) -> Any:
            with self._backward():
                return original(*args, **kwargs)

        return finish

    @contextlib.contextmanager
    def _backward(self) -> Iterator[None]:
        before, self._trace.stage = self._trace.stage, Phase.BACKWARD
        try:
            yield
        finally:
            self._trace.stage = before

    def _accumulated(self, site: Site) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if not is_quiet() and parameter.grad is not None:
                self._trace.record(site, parameter.grad)

        return hook


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
