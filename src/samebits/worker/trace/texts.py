"""Exact texts of arguments, equal in equal runs: no address, no name of a place in memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from samebits.worker.capture.digest import digest_bytes


def form_text(tensor: torch.Tensor) -> str:
    """dtype, shape and device kind; strides where it does not lie in its own order."""
    if tensor.layout is not torch.strided:
        return f"{tensor.dtype}{tuple(tensor.shape)}{tensor.layout}"
    return _form_text(tensor.dtype, tensor.shape, None if tensor.is_contiguous() else tensor.stride())


@functools.lru_cache(maxsize=1 << 16)
def _form_text(dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...] | None) -> str:
    return f"{dtype}{tuple(shape)}" + ("" if strides is None else f"/{strides}")


def plain_text(value: Any) -> str:
    """Return the text of a plain argument, or of a sequence or mapping of them; anything else is named by its type."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(plain_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{plain_text(key)}:{plain_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return _array_text(value)
    return form_text(value) if isinstance(value, torch.Tensor) else _single_text(value)


def _array_text(value: np.ndarray[Any, Any]) -> str:
    """Return the text of an array; arrays of objects by dtype and shape alone, since their bytes are addresses."""
    known = f"{value.dtype}{value.shape}"
    return known if value.dtype.hasobject else f"{known}{digest_bytes(value)}"


def _single_text(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return f"{value.real.hex()}+{value.imag.hex()}j"
    return repr(value) if value is None or isinstance(value, _EXACT) else type(value).__name__


_EXACT = (bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
