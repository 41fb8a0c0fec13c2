"""A 128-bit digest of a tensor's bytes and their order: exact integer arithmetic, the same bits on every device.

A screen against accidents, not against adversaries: whoever knows the weights can construct two tensors that agree.
The dtype and the shape are not part of it: bytes only; a record carries both beside the digest.

Definition of `sb1-128`, all arithmetic modulo 2^64:

    w[i]      the bytes in logical (row-major) order, zero-padded to 8, as little-endian 64-bit words
    s[i]      w[i] with its 8 bytes reversed
    c, j      divmod(i, 4096): the chunk and the column of word i
    A         sum over i of RA[c] * KA[j] * w[i]
    B         sum over i of RB[c] * KB[j] * s[i]
    X[n]      weight n of a stream X out of KA, KB, RA, RB: mix(seed(X) + (n + 1) * GAMMA) | 1  (splitmix64, made odd)
    a, b      A + (bytes + 1) * LENGTH_A, B + (bytes + 1) * LENGTH_B
    lo, hi    lo = mix(a + mix(b)), hi = mix(b + lo)

Why it holds: an odd weight makes a single changed word visible always. Where several words change, let v be the lowest
bit that differs in any of them: over random weights they cancel in A with probability 2^-(63-v). That is weak for a
high v (an even number of flipped float64 signs always cancels), but reversing the bytes turns a high v into a low one:
the two exponents add to 56 or more. Two different byte strings, chosen without looking at the weights, thus agree with
probability below 2^-56 if they differ in one chunk, 2^-45 if in several; near 2^-120 where both v are low. The last
step is a bijection that lets each of lo and hi depend on both sums.

A sum of integers modulo 2^64 does not depend on its order: threads, pieces, devices and launches cannot change it.
Scratch stays under 8 MiB whatever the tensor's size. Threads share nothing but constants.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

DIGEST_ID = "sb1-128"
CHUNK_WORDS = 4096
CHUNK_BYTES = 8 * CHUNK_WORDS
GAMMA = 0x9E3779B97F4A7C15
K_SEEDS = 0x243F6A8885A308D3, 0x13198A2E03707344  # KA, KB: digits of pi
R_SEEDS = 0x452821E638D01377, 0xBE5466CF34E90C6C  # RA, RB
LENGTH_A, LENGTH_B = 0x9FB21C651E98DF25, 0xC2B2AE3D27D4EB4F

_MASK = 2**64 - 1
_GROUP = 8  # chunks that numpy takes at once: 256 KiB, so the reversed copy stays in the second-level cache
_PIECE = 32 * CHUNK_BYTES  # 1 MiB: what torch takes at once, and what a tensor that is not contiguous is copied by
_BLOCK = 4096  # chunk weights made at once: a multiple of the chunks in a piece, so that no piece needs two blocks
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes an element: a type to copy bits by

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


def digest(tensor: torch.Tensor) -> tuple[int, int]:
    """The digest of `tensor` as two unsigned 64-bit words (lo, hi); any dtype, shape and strides, any device.

    Tensors with the same bytes in row-major order agree, whatever their strides, dtype or device.
    Raises TypeError for subclasses and for meta, quantized, nested and sparse tensors, ValueError for freed storage.
    """
    plain = detached(tensor)
    if not plain.is_cpu:
        return torch_digest(plain)
    a = b = chunk = 0
    for piece in _pieces(plain):
        data = _bytes_of(piece)
        more_a, more_b = _sums(data, chunk)
        a, b, chunk = a + more_a, b + more_b, chunk + data.size // CHUNK_BYTES
    return finish(a, b, plain.numel() * plain.element_size())


def digest_bytes(data: bytes | memoryview | npt.NDArray[Any]) -> tuple[int, int]:
    """The digest of raw bytes, equal to `digest` of a tensor that holds them. A strided array is copied first."""
    if isinstance(data, np.ndarray):
        raw: Bytes = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    else:
        raw = np.frombuffer(data, np.uint8)
    return finish(*_sums(raw, 0), raw.size)


def torch_digest(tensor: torch.Tensor) -> tuple[int, int]:
    """The same digest by torch operations alone, on the tensor's own device; one transfer, at the end."""
    a, b = torch_sums(tensor).tolist()
    return finish(a, b, tensor.numel() * tensor.element_size())


def torch_sums(tensor: torch.Tensor) -> torch.Tensor:
    """The sums (A, B) as int64[2] on the tensor's device, not waited for; `finish` makes the digest of them."""
    plain = detached(tensor)
    misaligned = (plain.data_ptr() | int(plain.storage_offset()) * plain.element_size()) % 8
    sums = torch.zeros(2, dtype=torch.int64, device=plain.device)
    chunk = 0
    for piece in copies(plain) if misaligned else _pieces(plain):
        data = piece.as_strided((piece.numel(),), (1,)).view(torch.uint8)
        for start in range(0, data.numel(), _PIECE):
            sums += _torch_part(data[start : start + _PIECE], chunk + start // CHUNK_BYTES)
        chunk += data.numel() // CHUNK_BYTES
    return sums


def only_word(a: int) -> int:
    """The word of a tensor of at most 8 bytes, from its sum A: odd weights have inverses modulo 2^64."""
    return a * _FIRST_INVERSE & _MASK


def finish(a: int, b: int, nbytes: int) -> tuple[int, int]:
    """(lo, hi) from the sums A and B, signed or not, reduced or not, and the tensor's length in bytes."""
    a = (a + (nbytes + 1) * LENGTH_A) & _MASK
    b = (b + (nbytes + 1) * LENGTH_B) & _MASK
    low = _mix((a + _mix(b)) & _MASK)
    return low, _mix((b + low) & _MASK)


@overload
def _mix(z: int) -> int: ...
@overload
def _mix(z: Words) -> Words: ...
def _mix(z: Any) -> Any:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64 bits."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def weights(seed: int, first: int, count: int) -> Words:
    """Weights `first` to `first + count - 1` of the stream that starts at `seed`: uint64[count], all odd."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return _mix(steps * np.uint64(GAMMA) + np.uint64(seed)) | np.uint64(1)


_KA, _KB = (weights(seed, 0, CHUNK_WORDS) for seed in K_SEEDS)
_FIRST_INVERSE = pow(int(weights(R_SEEDS[0], 0, 1)[0]) * int(_KA[0]), -1, 2**64)


@functools.lru_cache(maxsize=8)
def _chunk_weights(block: int) -> Words:
    """RA and RB of the chunks of one block: uint64[2, _BLOCK]."""
    return np.stack([weights(seed, block * _BLOCK, _BLOCK) for seed in R_SEEDS])


def _sums(data: Bytes, first: int) -> tuple[int, int]:
    """A and B, not reduced, of contiguous bytes that begin with chunk `first`, a multiple of _GROUP."""
    whole = data.size // CHUNK_BYTES
    a, b = _whole_chunks(data[: whole * CHUNK_BYTES].reshape(whole, CHUNK_BYTES), first) if whole else (0, 0)
    if data.size % CHUNK_BYTES:
        block, row = divmod(first + whole, _BLOCK)
        ra, rb = _chunk_weights(block)[:, row].tolist()
        tail_a, tail_b = _tail(data[whole * CHUNK_BYTES :])
        a, b = a + tail_a * ra, b + tail_b * rb
    return a, b


def _whole_chunks(data: Bytes, first: int) -> tuple[int, int]:
    """A and B of uint8[chunks, CHUNK_BYTES]; the byte orders are written out, so a big-endian host agrees."""
    words, reversed_words = data.view("<u8"), data.view(">u8")
    scratch: Words = np.empty((min(len(data), _GROUP), CHUNK_WORDS), np.uint64)
    a = b = 0
    for start in range(0, len(data), _GROUP):
        group = words[start : start + _GROUP]
        reversed_group = scratch[: len(group)]
        np.copyto(reversed_group, reversed_words[start : start + _GROUP])
        block, row = divmod(first + start, _BLOCK)
        ra, rb = _chunk_weights(block)[:, row : row + len(group)]
        a += int(np.einsum("ci,i->c", group, _KA).dot(ra))
        b += int(np.einsum("ci,i->c", reversed_group, _KB).dot(rb))
    return a, b


def _tail(data: Bytes) -> tuple[int, int]:
    """A and B, without the chunk's weights, of less than one chunk."""
    if data.size % 8:
        data = np.concatenate((data, np.zeros(-data.size % 8, np.uint8)))
    words, reversed_words = data.view("<u8"), data.view(">u8").astype(np.uint64)
    return int(words.dot(_KA[: words.size])), int(reversed_words.dot(_KB[: words.size]))


@functools.lru_cache(maxsize=8)
def device_weights(seeds: tuple[int, int], first: int, count: int, device: torch.device) -> torch.Tensor:
    """The weights of two streams as int64[2, count] on a device."""
    pair = np.stack([weights(seed, first, count) for seed in seeds])
    return torch.from_numpy(pair.view(np.int64)).to(device, non_blocking=True)


def _torch_part(data: torch.Tensor, first: int) -> torch.Tensor:
    """The sums int64[2] of at most _PIECE contiguous bytes that begin with chunk `first`."""
    whole = data.numel() // CHUNK_BYTES
    tail = data[whole * CHUNK_BYTES :]
    if not tail.numel():
        return _torch_rows(data.view(whole, CHUNK_BYTES), first)
    padded = torch.nn.functional.pad(tail, (0, -tail.numel() % 8)).view(1, -1)
    sums = _torch_rows(padded, first + whole)
    return sums + _torch_rows(data[: whole * CHUNK_BYTES].view(whole, CHUNK_BYTES), first) if whole else sums


def _torch_rows(rows: torch.Tensor, first: int) -> torch.Tensor:
    """The sums int64[2] of uint8[chunks, bytes]; torch's int64 product and sum wrap modulo 2^64."""
    chunks, nbytes = rows.shape
    block, row = divmod(first, _BLOCK)
    ka, kb = device_weights(K_SEEDS, 0, CHUNK_WORDS, rows.device)[:, : nbytes // 8]
    chunk_weights = device_weights(R_SEEDS, block * _BLOCK, _BLOCK, rows.device)[:, row : row + chunks]
    reversed_rows = rows.view(chunks, nbytes // 8, 8).flip(-1).view(chunks, nbytes)
    a = (rows.view(torch.int64) * ka).sum(1)
    b = (reversed_rows.view(torch.int64) * kb).sum(1)
    return (torch.stack((a, b)) * chunk_weights).sum(1)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its autograd history; TypeError or ValueError where its bytes cannot be taken."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise TypeError(
            f"cannot digest a {type(tensor).__name__}, only a plain torch.Tensor: digest the tensors inside it"
        )
    if tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        raise TypeError(
            f"cannot digest a tensor of layout {tensor.layout} and dtype {tensor.dtype} on {tensor.device}: it must be "
            "strided and neither meta, quantized nor nested; digest the tensors that hold its data"
        )
    plain = tensor.detach()
    if plain.numel() and not plain.data_ptr():
        raise ValueError(f"cannot digest a tensor of shape {tuple(plain.shape)}: its storage was freed")
    return plain


def is_flat(plain: torch.Tensor) -> bool:
    """Return whether the tensor's bytes lie in memory in the order in which they are digested."""
    return plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()


def _pieces(plain: torch.Tensor) -> Iterator[torch.Tensor]:
    """Contiguous integer tensors that hold the bytes in order: the tensor itself, or copies where it is a view."""
    if is_flat(plain):
        yield _integers(plain)
    else:
        yield from copies(plain)


def copies(plain: torch.Tensor) -> Iterator[torch.Tensor]:
    """Copies of _PIECE bytes each, in one buffer: a piece is overwritten once the next one is asked for."""
    width = min(plain.element_size(), 8)
    ready, fill = _PIECE // width, 0
    stage = torch.empty(2 * ready, dtype=_INTEGERS[width], device=plain.device)
    for block in _blocks(plain, _PIECE // plain.element_size()):
        source = _integers(block.resolve_conj().resolve_neg())
        end = fill + source.numel()
        stage[fill:end].view(source.shape).copy_(source)
        if end >= ready:
            yield stage[:ready]
            stage[: end - ready] = stage[ready:end]
            end -= ready
        fill = end
    yield stage[:fill]


def _blocks(tensor: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Slices of the tensor in row-major order, each of at most `limit` elements."""
    if tensor.numel() <= limit:
        yield tensor
        return
    rows = limit // tensor[0].numel()
    for start in range(0, tensor.shape[0], max(rows, 1)):
        if rows:
            yield tensor[start : start + rows]
        else:
            yield from _blocks(tensor[start], limit)


class _Memory:
    """Lends a contiguous tensor's memory to numpy, and keeps it alive as long as it is lent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        length = tensor.numel() * tensor.element_size()
        where = tensor.data_ptr(), True
        self.__array_interface__ = {"shape": (length,), "typestr": "|u1", "data": where, "version": 3}


def _bytes_of(piece: torch.Tensor) -> Bytes:
    """Not by `Tensor.numpy`: that forbids ever to resize the storage, and training may do so to free memory."""
    return np.asarray(_Memory(piece)) if piece.numel() else np.empty(0, np.uint8)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same size; two for each complex128."""
    real = torch.view_as_real(tensor) if tensor.dtype is torch.complex128 else tensor
    return real.view(_INTEGERS[real.element_size()])
