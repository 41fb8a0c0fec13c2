"""Digests of device tensors, computed on the device and fetched together: one transfer per device and block.

Fetching each digest by itself would make the host wait for the device once per tensor. So `take` launches the kernel
that adds a tensor's two sums into a row of a buffer on its device and returns a placeholder; `fetch` copies all rows at
the end of the block. A tensor may be changed or freed as soon as it was taken: whatever does so is queued behind the
kernel on the same stream, and the allocator hands out freed memory in the order of that stream.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from samebits.worker.capture.digest import CHUNK_BYTES, digest, finish, only_word, torch_sums

Adding = Callable[[Sequence[torch.Tensor], torch.Tensor], None]
"""Adds the sums of tensors of one device to the rows of an int64[tensors, 2] there, without waiting."""

SLOTS = 1024
"""Tensors a block that the first buffer holds; it grows."""


@dataclass(frozen=True)
class Staged:
    """Placeholder of a digest whose sums lie in row `slot` of its device's buffer."""

    device: torch.device
    slot: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Fetched:
    """Fetched sums of all staged tensors: [A, B] by device and slot."""

    sums: dict[torch.device, list[list[int]]]

    def digest(self, staged: Staged) -> tuple[int, int]:
        """Return the digest, equal to `digest.digest` of the tensor."""
        a, b = self.sums[staged.device][staged.slot]
        return finish(a, b, torch.Size(staged.shape).numel() * staged.dtype.itemsize)

    def tensor(self, staged: Staged) -> torch.Tensor:
        """Return the tensor itself on the CPU, for one element of at most 8 bytes: its sum A can be inverted."""
        word = only_word(self.sums[staged.device][staged.slot][0])
        data = bytearray(word.to_bytes(8, "little")[: staged.dtype.itemsize])
        return torch.frombuffer(data, dtype=torch.uint8).view(staged.dtype).reshape(staged.shape)


class Staging:
    """The buffers of sums of all devices. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._lanes: dict[torch.device, _Lane] = {}

    def take(self, tensors: Sequence[torch.Tensor]) -> list[Staged]:
        """Launch the digests, one group per device, without waiting. Raises what `digest.digest` raises."""
        found: dict[int, Staged] = {}
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            numbers = [number for number, tensor in enumerate(tensors) if tensor.device == device]
            group = [tensors[number] for number in numbers]
            slots = self._lane(device).take(group)
            for number, tensor, slot in zip(numbers, group, slots, strict=True):
                found[number] = Staged(device, slot, tensor.dtype, tuple(tensor.shape))
        return [found[number] for number in range(len(tensors))]

    def fetch(self) -> Fetched:
        """Wait for the sums of all tensors taken since the last call and return them; their slots become free."""
        return Fetched({device: lane.fetch() for device, lane in self._lanes.items()})

    def drop(self) -> None:
        """Forget what was taken, without waiting."""
        for lane in self._lanes.values():
            lane.used = 0

    def _lane(self, device: torch.device) -> _Lane:
        if device not in self._lanes:
            self._lanes[device] = _Lane(device)
        return self._lanes[device]


class _Lane:
    """The sums of one device, in one buffer."""

    def __init__(self, device: torch.device) -> None:
        self._add = adding(device)
        self._sums = torch.zeros(SLOTS, 2, dtype=torch.int64, device=device)
        self.used = 0

    def take(self, tensors: Sequence[torch.Tensor]) -> range:
        slots = range(self.used, self.used + len(tensors))
        if slots.stop > len(self._sums):
            grown = self._sums.new_zeros(2 * slots.stop, 2)
            grown[: self.used] = self._sums[: self.used]
            self._sums = grown
        self._add(tensors, self._sums[slots.start : slots.stop].zero_())
        self.used = slots.stop
        return slots

    def fetch(self) -> list[list[int]]:
        used, self.used = self.used, 0
        found: list[list[int]] = self._sums[:used].tolist() if used else []
        return found


def by_torch(tensors: Sequence[torch.Tensor], sums: torch.Tensor) -> None:
    """Add the sums by torch operations alone: several launches for each tensor."""
    for number, tensor in enumerate(tensors):
        sums[number] += torch_sums(tensor)


@functools.cache
def adding(device: torch.device) -> Adding:
    """Return the Triton kernel on a CUDA device where it can be compiled, torch operations elsewhere.

    Raises RuntimeError where the kernel gives other bits than the CPU: no digest could be trusted.
    """
    if device.type != "cuda":
        return by_torch
    try:
        from samebits.worker.capture.triton_kernel import Kernel

        add = Kernel(device).add
        wrong = disagreement(add, device)
    except Exception as error:
        # Of any kind: Triton, a compiler for its launcher, a folder for its cache, or the driver is missing.
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"digests on {device} go by torch operations, not by Triton: {reason}", stacklevel=2)
        return by_torch
    if wrong is not None:
        raise RuntimeError(wrong)
    return add


def disagreement(add: Adding, device: torch.device) -> str | None:
    """Return what is wrong with a device's digests of known bytes, compared with the CPU's; None where they agree."""
    known = (torch.arange(5 * CHUNK_BYTES + 13) * 37 % 251).to(torch.uint8)
    there = known.to(device)
    sums = torch.zeros(3, 2, dtype=torch.int64, device=device)
    add([there, there[3:], there[:5]], sums)
    for (a, b), data in zip(sums.tolist(), (known, known[3:], known[:5]), strict=True):
        found, expected = finish(a, b, data.numel()), digest(data)
        if found != expected:
            return (
                f"{device}: the digest of {data.numel()} known bytes is {found[0]:016x}{found[1]:016x}, must be "
                f"{expected[0]:016x}{expected[1]:016x}: the device or its Triton is faulty, use another node or image"
            )
    return None
