"""The tensors inside what a function takes or returns, in one order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Of tuples, lists, mappings (by insertion) and dataclasses, nested; anything else holds none. A subclass counts as
    the tensors inside it. Left out: what has no bytes that can be read, as a freed storage or a sparse tensor."""
    return list(_found(value))


def _found(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield from _plain(value)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _found(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _found(entry)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _found(getattr(value, field.name, None))


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        odd = tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided
        if not odd and (tensor.numel() == 0 or tensor.untyped_storage().nbytes()):
            yield tensor
    elif flatten := getattr(tensor, "__tensor_flatten__", None):
        names, _ = flatten()
        for name in names:
            yield from _found(getattr(tensor, name))


def numbered(name: str, tensors: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """`name`, `name#1`, `name#2` and so on."""
    for number, tensor in enumerate(tensors):
        yield (f"{name}#{number}" if number else name), tensor
