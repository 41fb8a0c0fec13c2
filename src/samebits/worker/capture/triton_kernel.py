"""The sums of a digest by one Triton kernel: any number of tensors of one device, read once, in one launch.

A row of the work table is a span of one tensor's chunks; a program takes one block of columns of one row. Since
A = sum over j of KA[j] * (sum over c of RA[c] * w[c, j]), the inner sums stay in registers over all chunks of the span,
and the columns are weighted once, behind them. What a program found is added to the sums of its tensor by atomic
integer additions: exact, so their order does not matter. Nothing else is written.

Only this module imports triton: whoever imports it must be ready for its absence. `digest` has the definition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from samebits.worker.capture import digest
from samebits.worker.capture.digest import CHUNK_BYTES, CHUNK_WORDS

COLUMNS = 1024
"""What one program takes of a chunk's 4096: 8 words a thread."""
ROWS = 1024
LEAST_CHUNKS, MOST_CHUNKS = 4, 64
"""Rows aimed at in a launch, and chunks a row: enough programs to fill a device, beyond that longer rows, whose columns
are weighted once."""
TABLES_BYTES = 4 << 20
"""Device memory for kept work tables; the allocator gives none less than _GRAIN bytes."""
_GRAIN = 512

Span = tuple[int, int]
"""Address and length in bytes."""
NOTHING: Span = (0, 0)

_CHUNK = tl.constexpr(CHUNK_WORDS)
_GAMMA = tl.constexpr(digest.GAMMA)
_RA, _RB = tl.constexpr(digest.R_SEEDS[0]), tl.constexpr(digest.R_SEEDS[1])


@triton.jit
def _chunk_weight(seed: tl.constexpr, chunk: tl.tensor) -> tl.tensor:
    """Weight number `chunk` of the stream at `seed`, as `digest.weights`."""
    z = (chunk + 1).to(tl.uint64) * _GAMMA + seed
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z ^ (z >> 31)) | 1


@triton.jit
def _reversed(word: tl.tensor) -> tl.tensor:
    """uint64 with its 8 bytes reversed, in the form that compilers make a byte permutation of."""
    word = ((word >> 8) & 0x00FF00FF00FF00FF) | ((word & 0x00FF00FF00FF00FF) << 8)
    word = ((word >> 16) & 0x0000FFFF0000FFFF) | ((word & 0x0000FFFF0000FFFF) << 16)
    return (word >> 32) | (word << 32)


@triton.jit
def _words(address: tl.tensor, index: tl.tensor, wanted: tl.tensor) -> tl.tensor:
    """uint64 words of bytes that begin at any address, each shifted together out of the two aligned words it lies in.

    An aligned word that holds none of its bytes is not read: it may lie beyond what is allocated.
    """
    shift = ((address & 7) * 8).to(tl.uint64)
    aligned = (address & -8).to(tl.pointer_type(tl.uint64)) + index
    low = tl.load(aligned, mask=wanted, other=0)
    high = tl.load(aligned + 1, mask=wanted & (shift > 0), other=0)
    return (low >> shift) | ((high << 1) << (63 - shift))


@triton.jit
def _last_word(address: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The uint64 of `count` < 8 bytes, zero-padded."""
    place = tl.arange(0, 8)
    each = tl.load(address.to(tl.pointer_type(tl.uint8)) + place, mask=place < count, other=0)
    return tl.sum(each.to(tl.uint64) << (8 * place).to(tl.uint64), 0)


@triton.jit(do_not_specialize=["first"])
def add_sums(work: tl.tensor, weights: tl.tensor, sums: tl.tensor, first: tl.tensor, columns: tl.constexpr) -> None:
    """Adds A and B of each row of `work` to a row of `sums`, modulo 2^64.

    work: int64[rows, 4]: address, bytes, number of the first chunk, row of `sums`. weights: int64[2, 4096], KA and KB.
    sums: int64[tensors, 2]. first: added to the chunk numbers. columns: a program's. Grid: (rows, 4096 / columns).
    """
    row = work + 4 * tl.program_id(0)
    address, length, chunk = tl.load(row), tl.load(row + 1), tl.load(row + 2) + first
    words, block = length >> 3, tl.program_id(1) * columns
    if (block > 0) & (block >= words):
        return
    column = block + tl.arange(0, columns)
    a, b = tl.zeros((columns,), tl.uint64), tl.zeros((columns,), tl.uint64)
    # Lets 16 bytes be loaded at once; true wherever this loop runs at all.
    aligned = tl.multiple_of(address.to(tl.pointer_type(tl.uint64)), 16)
    whole = tl.where((address & 15) == 0, words // _CHUNK, 0)
    for k in range(whole):
        word = tl.load(aligned + (k * _CHUNK + column))
        a += word * _chunk_weight(_RA, chunk + k)
        b += _reversed(word) * _chunk_weight(_RB, chunk + k)
    for k in range(whole, (words + _CHUNK - 1) // _CHUNK):
        index = k * _CHUNK + column
        word = _words(address, index, index < words)
        a += word * _chunk_weight(_RA, chunk + k)
        b += _reversed(word) * _chunk_weight(_RB, chunk + k)
    sum_a = tl.sum(a * tl.load(weights + column).to(tl.uint64), 0)
    sum_b = tl.sum(b * tl.load(weights + _CHUNK + column).to(tl.uint64), 0)
    if (block == 0) & ((length & 7) > 0):
        last = _last_word(address + 8 * words, length & 7)
        end, weight = chunk + words // _CHUNK, weights + words % _CHUNK
        sum_a += last * _chunk_weight(_RA, end) * tl.load(weight).to(tl.uint64)
        sum_b += _reversed(last) * _chunk_weight(_RB, end) * tl.load(weight + _CHUNK).to(tl.uint64)
    target = sums + 2 * tl.load(row + 3)
    tl.atomic_add(target, sum_a.to(tl.int64), sem="relaxed")
    tl.atomic_add(target + 1, sum_b.to(tl.int64), sem="relaxed")


def work_rows(spans: tuple[Span, ...]) -> npt.NDArray[np.int64]:
    """int64[rows, 4]: address, bytes, number of the first chunk, number of the tensor. A digest does not depend on how
    its tensor is cut."""
    chunks = sum(-(-nbytes // CHUNK_BYTES) for _, nbytes in spans)
    step = CHUNK_BYTES * min(max(chunks // ROWS, LEAST_CHUNKS), MOST_CHUNKS)
    rows = [
        (address + start, min(step, nbytes - start), start // CHUNK_BYTES, number)
        for number, (address, nbytes) in enumerate(spans)
        for start in range(0, nbytes, step)
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


def _span(flat: torch.Tensor) -> Span:
    return flat.data_ptr(), flat.nbytes


class Kernel:
    """Launches on the current stream of one device. Keeps the work tables: while tensors stay where they are, a group
    costs one launch and no transfer, whatever their number."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._weights = digest.device_weights(digest.K_SEEDS, 0, CHUNK_WORDS, device)
        self._tables: OrderedDict[tuple[Span, ...], torch.Tensor] = OrderedDict()
        self._kept = 0

    def add(self, tensors: Sequence[torch.Tensor], sums: torch.Tensor) -> None:
        """Adds (A, B) of each tensor to its row of `sums`, int64[tensors, 2] on the device; waits for nothing.

        Those whose bytes do not lie in order in memory cost launches of their own, for each piece that is copied.
        Raises what `digest.detached` raises.
        """
        plain = [digest.detached(tensor) for tensor in tensors]
        self._launch(tuple(_span(tensor) if digest.is_flat(tensor) else NOTHING for tensor in plain), sums)
        for number, tensor in enumerate(plain):
            if not digest.is_flat(tensor):
                self._add_copied(tensor, sums[number : number + 1])

    def _add_copied(self, tensor: torch.Tensor, sums: torch.Tensor) -> None:
        """The next piece overwrites this one; its copy stands behind this launch on the stream."""
        first = 0
        for piece in digest.copies(tensor):
            self._launch((_span(piece),), sums, first)
            first += piece.nbytes // CHUNK_BYTES

    def _launch(self, spans: tuple[Span, ...], sums: torch.Tensor, first: int = 0) -> None:
        work = self._table(spans)
        if len(work):
            with torch.accelerator.device_index(self._device.index):
                add_sums[len(work), CHUNK_WORDS // COLUMNS](work, self._weights, sums, first, COLUMNS)

    def _table(self, spans: tuple[Span, ...]) -> torch.Tensor:
        """Kept, the latest used the longest. The copy does not wait: it is taken out of pageable memory at once."""
        table = self._tables.pop(spans, None)
        if table is None:
            table = torch.from_numpy(work_rows(spans)).to(self._device, non_blocking=True)
            self._kept += max(table.nbytes, _GRAIN)
        self._tables[spans] = table
        while self._kept > TABLES_BYTES:
            _, oldest = self._tables.popitem(last=False)
            self._kept -= max(oldest.nbytes, _GRAIN)
        return table
