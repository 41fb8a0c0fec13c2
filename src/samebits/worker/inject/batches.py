"""A batch of any shape as named tensors: keys of mappings and fields, places in sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_DEEPEST = 8


def named(batch: Any, *, copied: bool = False) -> dict[str, torch.Tensor]:
    """copied: the caller keeps them beyond the moment at which the loop gets its own. What is no tensor is left out."""
    return {name: tensor.detach().clone() if copied else tensor for name, tensor in _tensors(batch, "", _DEEPEST)}


def _tensors(value: Any, name: str, deep: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name or "batch", value
    elif deep:
        for key, inner in _parts(value):
            yield from _tensors(inner, f"{name}.{key}" if name else key, deep - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((str(index), inner) for index, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
