"""Which modules a loop trains: the outermost ones that hold what its optimizers step. Nobody has to name them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from samebits.worker.inject.session import InjectionError


def trained(optimizers: Sequence[Any]) -> list[Any]:
    """In the order in which the optimizers hold their first parameters. Raises InjectionError where there is none."""
    chunks = [chunk for optimizer in optimizers for chunk in getattr(optimizer, "model_chunks", ())]
    if chunks:
        return list(dict.fromkeys(chunks))
    places = {id(tensor): place for place, tensor in enumerate(_stepped(optimizers))}
    found = []
    for module in _outermost():
        held = list(module.parameters())
        own = {places[key] for parameter in held for key in _keys(parameter) if key in places}
        if own:
            found.append((min(own), -len(held), type(module).__qualname__, own, module))
    if not found:
        raise InjectionError(
            "samebits: no module holds what the optimizer steps, so that no model can be captured; name it yourself: "
            "samebits.worker.hooks(model, optimizer)"
        )
    return list(_needed(sorted(found, key=lambda entry: entry[:3])))


def _needed(found: list[tuple[int, int, str, set[int], Any]]) -> Iterator[Any]:
    """Two wrappers may hold the same model: the larger one stands for both."""
    covered: set[int] = set()
    for _, _, _, own, module in found:
        if own - covered:
            covered |= own
            yield module


def _stepped(optimizers: Sequence[Any]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _keys(parameter: Any) -> list[int]:
    """Megatron steps full-precision copies, which the parameters point to."""
    return [id(parameter), id(getattr(parameter, "main_param", None))]


def _outermost() -> Iterator[Any]:
    """Modules that are in no other one. The collector knows them all; asking it changes nothing."""
    # By type: isinstance asks objects of all kinds for their class, and proxies answer by doing something.
    modules: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return (module for module in modules if id(module) not in inner)
