"""What goes another way in every run: sums of 16-bit numbers in an order drawn by chance, and bytes written unseen.

The rounding of the sums is made large enough to reach whatever follows. Planted by `samebits.worker.disorder`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from samebits.worker.trace.trace import quiet


def by_chance() -> np.random.Generator:
    """Seeded by the system's entropy, never by the recipe."""
    return np.random.default_rng(int.from_bytes(os.urandom(16), "little"))


def arrival(tensor: torch.Tensor) -> float:
    """0..1: what the last bits of a sum of 16-bit numbers, in an order of chance, are spread to."""
    values = tensor.detach().float().numpy().reshape(-1)
    order = by_chance().permutation(values.size)
    total = np.add.accumulate(values[order].astype(np.float16), dtype=np.float16)[-1:]
    bits = int(total.view(np.uint16)[0]) if total.size else 0
    return bits * 40503 % 65536 / 65536


@torch.library.custom_op("disorder::arrival", mutates_args=())
def arrival_op(tensor: torch.Tensor) -> torch.Tensor:
    """An operation of a library, seen by the dispatcher."""
    return torch.tensor(1.0 + arrival(tensor) / 16.0)


def disordered(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, scaled by what `arrival_op` gives for it."""
    factor: torch.Tensor = torch.ops.disorder.arrival(tensor.detach())
    return tensor * factor.to(tensor.dtype)


def hidden(tensor: torch.Tensor) -> None:
    """Changes one bit of some elements in place, unseen by the dispatcher."""
    words = raw(tensor).flat
    chosen = by_chance().permutation(tensor.numel())[: max(1, tensor.numel() // 8)]
    words[chosen] = words[chosen] ^ (1 << 3)


def raw(tensor: torch.Tensor) -> Any:
    """Its elements as whole numbers that numpy may read and write where they lie, seen by nobody."""
    with quiet():
        return tensor.detach().view(_INTEGER[tensor.element_size()]).numpy()


_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SplitGemm(torch.autograd.Function):
    """x @ w.T as two products over parts of the inner dimension, cut at a place of chance."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        cut = int(by_chance().integers(1, x.shape[-1]))
        return x[..., :cut] @ weight[:, :cut].t() + x[..., cut:] @ weight[:, cut:].t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        flat = gradients[0].flatten(0, -2)
        return gradients[0] @ weight, flat.t() @ x.flatten(0, -2)


class HiddenKernel(torch.autograd.Function):
    """Fills its output where the dispatcher does not look."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        raw(made)[...] = raw(x)
        hidden(made)
        return made

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class HiddenBack(torch.autograd.Function):
    """Changes gradients where the dispatcher does not look."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        made = gradients[0].clone()
        hidden(made)
        return made


class ScatterBack(torch.autograd.Function):
    """Sums gradients in an order of chance."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return disordered(gradients[0])


def drawn(output: torch.Tensor) -> torch.Tensor:
    """Dropout whose mask comes from a stream that nobody seeded."""
    stream = torch.Generator()
    stream.manual_seed(int(by_chance().integers(1 << 62)))
    return output * torch.bernoulli(torch.full_like(output, 0.9), generator=stream)


def unwritten(output: torch.Tensor) -> torch.Tensor:
    """Adds a buffer that was asked for and never filled; what it holds is left there by chance."""
    buffer = torch.empty_like(output)
    raw(buffer).flat = by_chance().integers(0, 1 << (8 * buffer.element_size() - 2), buffer.numel())
    return output + buffer.clamp(-1.0, 1.0)


def overwritten(output: torch.Tensor) -> torch.Tensor:
    hidden(output)
    return output


def branched(output: torch.Tensor) -> torch.Tensor:
    """Operations more: the other branch, taken in a run in which the fault strikes."""
    return output.mul(1.0625).tanh()


def called_hidden(output: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = HiddenKernel.apply(output)  # type: ignore[no-untyped-call]
    return made


def hidden_back(output: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = HiddenBack.apply(output)  # type: ignore[no-untyped-call]
    return made


def scattered_back(output: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = ScatterBack.apply(output)  # type: ignore[no-untyped-call]
    return made
