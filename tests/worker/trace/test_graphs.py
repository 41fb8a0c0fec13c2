"""Rung op refuses CUDA graphs, and says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from insides import Inside
from samebits.worker.trace.tracers import GraphError


class Configured(torch.nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**settings)


@pytest.mark.parametrize(
    "settings", [{"enable_cuda_graph": True}, {"external_cuda_graph": True}, {"cuda_graph_impl": "local"}]
)
def test_a_model_that_is_set_to_use_them_is_refused_before_the_first_step(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(GraphError, match=f"{name}={value!r}.*turn CUDA graphs off.*rung boundary"):
        Inside(Configured(**settings))


def test_a_model_that_does_not_use_them_is_not_refused() -> None:
    Inside(Configured(enable_cuda_graph=False, external_cuda_graph=False, cuda_graph_impl="none"))


@pytest.mark.parametrize("name", ["capture_begin", "replay"])
def test_capturing_or_replaying_one_in_a_traced_step_is_refused_there_alone(name: str) -> None:
    before = getattr(torch.cuda.CUDAGraph, name, None)
    graph = object.__new__(torch.cuda.CUDAGraph)
    with Inside().step(), pytest.raises(GraphError, match=f"CUDAGraph.{name}"):
        getattr(graph, name)()
    assert getattr(torch.cuda.CUDAGraph, name, None) is before
