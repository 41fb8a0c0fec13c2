"""PyTorch's own DebugMode with `hash_tensor` digests of every dispatched operation's outputs.

Its record stays in memory: rendering it as text (`debug_string`) is not timed, only its size is given.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode, _get_call_name, hash_tensor_fn
from torch.utils._pytree import tree_leaves

from peers.recording import Recorded
from samebits.worker.hooks import Training


class DebugModePeer:
    """`with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn="hash_tensor")`, over one step."""

    def __init__(self) -> None:
        self.version = f"torch {torch.__version__}"
        self._stack = contextlib.ExitStack()
        self._mode: DebugMode

    def prepare(self) -> None:
        pass

    def begin(self, training: Training) -> None:
        self._mode = self._stack.enter_context(DebugMode())
        self._stack.enter_context(DebugMode.log_tensor_hashes(hash_fn="hash_tensor"))

    def end(self) -> None:
        self._stack.close()

    def recorded(self) -> Recorded:
        digests: list[tuple[str, Any]] = []
        records = 0
        for number, call in enumerate(self._mode.operators):
            hashes = [leaf for leaf in tree_leaves((call.log or {}).get("hash")) if isinstance(leaf, int)]
            records += bool(hashes)
            digests += [(f"{number} {_get_call_name(call)} {index}", leaf) for index, leaf in enumerate(hashes)]
        size = len(self._mode.debug_string().encode())
        self._mode.reset()
        return Recorded(records, digests, size)

    def digest(self, tensor: torch.Tensor) -> Any:
        return hash_tensor_fn(tensor.detach(), use_scalar=True)
