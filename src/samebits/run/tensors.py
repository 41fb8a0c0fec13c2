"""The tensors inside what a function takes or returns, in one order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Of tuples, lists, mappings (by insertion) and dataclasses, nested; anything else holds none."""
    return list(_found(value))


def _found(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _found(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _found(entry)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _found(getattr(value, field.name, None))


def numbered(name: str, tensors: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """`name`, `name#1`, `name#2` and so on."""
    for number, tensor in enumerate(tensors):
        yield (f"{name}#{number}" if number else name), tensor
