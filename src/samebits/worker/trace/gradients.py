"""Gradients of parameters as this rank computed them, before they are reduced.

Of Megatron's DDP: `main_grad` as the first synchronisation of its bucket begins, before it is scaled. Of all other
parameters: `grad` each time it was accumulated, which is before torch's DDP copies it into its bucket.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.worker.capture.state import modules
from samebits.worker.hooks import Training
from samebits.worker.patches import Patches
from samebits.worker.trace.trace import Trace, is_quiet

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
