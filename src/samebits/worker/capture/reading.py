"""From a value to the row of a record: digests at once what the host holds, stages what a device holds."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import torch

from samebits.fingerprint.records import INPUTS_SHIFT, MOST_INPUTS, Flag, Form, Site
from samebits.worker.capture.digest import digest, digest_bytes
from samebits.worker.capture.staging import Fetched, Staged, Staging
from samebits.worker.capture.state import Item, Value

Output = tuple[int, int]


@dataclass(frozen=True)
class Folded:
    """Stands for several tensors in their order, as one."""

    reads: tuple[Read, ...]


Read = Output | Staged | Folded
"""A digest, or what stands for it until the block ends."""


class Row(NamedTuple):
    """A record as `Recorder.record` takes it. source: 64-bit input digest, valid with Flag.INPUT."""

    site: Site
    form: Form
    output: Output
    flags: int
    source: int = 0


class Reading(NamedTuple):
    """A record whose digests may still be on the device.

    sources: digests that its input digest is made of. unless: the record is dropped if its output equals this digest.
    """

    site: Site
    form: Form
    output: Read
    flags: int
    sources: tuple[Read, ...] = ()
    unless: Read | None = None

    def with_sources(self, sources: Sequence[Read], tensors: int, flags: Flag = Flag.NONE) -> Reading:
        """tensors: how many of them are of tensors; the rest are of plain arguments."""
        count = min(tensors, MOST_INPUTS) << INPUTS_SHIFT
        return self._replace(flags=self.flags | flags | Flag.INPUT | count, sources=tuple(sources))


class Reader:
    """Not for several threads at once. limit: bytes; of a larger tensor dtype and shape are kept; None: no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._staging = Staging()

    def read(self, items: Iterable[Item]) -> list[Reading]:
        """Stages all that lies on a device, in one go, and digests the rest at once."""
        listed = list(items)
        staged = iter(self._staging.take([value for _, value in listed if self._is_remote(value)]))
        return [
            Reading(site, form_of(value), next(staged), flag_of(value))
            if self._is_remote(value)
            else self._here(site, value)
            for site, value in listed
        ]

    def digest(self, tensor: torch.Tensor) -> Read:
        """Return the digest, or its placeholder, of a tensor that is not skipped."""
        return digest(tensor) if tensor.is_cpu else self._staging.take([tensor])[0]

    def skips(self, tensor: torch.Tensor) -> bool:
        return self._limit is not None and tensor.nbytes > self._limit

    def drop(self) -> None:
        """Forgets what was staged."""
        self._staging.drop()

    def rows(self, readings: Iterable[Reading]) -> list[Row]:
        """Waits once for all that was staged since the last time."""
        fetched = self._staging.fetch()
        return [
            _arrived(reading, fetched)
            for reading in readings
            if reading.unless is None or _digest(reading.unless, fetched) != _digest(reading.output, fetched)
        ]

    def _is_remote(self, value: Value) -> TypeGuard[torch.Tensor]:
        return isinstance(value, torch.Tensor) and not value.is_cpu and not self.skips(value)

    def _here(self, site: Site, value: Value) -> Reading:
        if not isinstance(value, torch.Tensor):
            return Reading(*plain_row(site, value)[:4])
        if self.skips(value):
            return Reading(site, form_of(value), (0, 0), Flag.SKIPPED)
        if flag_of(value) is Flag.VALUE:
            return Reading(site, form_of(value), (bits(float(value.detach())), digest(value)[0]), Flag.VALUE)
        return Reading(site, form_of(value), digest(value), Flag.NONE)


def form_of(tensor: torch.Tensor) -> Form:
    return Form(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def flag_of(tensor: torch.Tensor) -> Flag:
    """Of one floating-point number the record holds the value itself; below 2 bytes torch cannot convert every type."""
    exact = tensor.numel() == 1 and tensor.is_floating_point() and tensor.element_size() >= 2
    return Flag.VALUE if exact else Flag.NONE


def _arrived(reading: Reading, fetched: Fetched) -> Row:
    site, form, output, flags, sources, _ = reading
    source = fold([_digest(one, fetched) for one in sources]) if flags & Flag.INPUT else 0
    if isinstance(output, Staged) and flags & Flag.VALUE:
        return Row(site, form, (bits(float(fetched.tensor(output))), fetched.digest(output)[0]), flags, source)
    return Row(site, form, _digest(output, fetched), flags, source)


def _digest(read: Read, fetched: Fetched) -> Output:
    if isinstance(read, Folded):
        return digest_bytes(b"".join([_WORDS(*_digest(one, fetched)) for one in read.reads]))
    return fetched.digest(read) if isinstance(read, Staged) else read


_WORDS = struct.Struct("<QQ").pack


def fold(digests: Sequence[Output]) -> int:
    """64 bits of digests and their order: blake2b over their words."""
    data = b"".join([_WORDS(*one) for one in digests])
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def plain_row(site: Site, value: bool | int | float | bytes) -> Row:
    """Record of a Python value: exact, with its type as dtype. bytes and whole numbers beyond 2^53 by digest only."""
    if isinstance(value, bytes):
        return Row(site, Form("bytes", (len(value),)), digest_bytes(value), Flag.NONE)
    if isinstance(value, float):
        return Row(site, Form("float", ()), (bits(value), bits(value)), Flag.VALUE)
    form = Form(type(value).__name__, ())
    word = digest_bytes(repr(int(value)).encode())[0]
    if abs(value) <= 1 << 53:
        return Row(site, form, (bits(float(value)), word), Flag.VALUE)
    return Row(site, form, digest_bytes(repr(value).encode()), Flag.NONE)


def bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def number(word: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", word))[0])
