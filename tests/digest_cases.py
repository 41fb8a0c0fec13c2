"""What the digest must be and see: its definition in plain integers, modifications of bytes, a search for those that it
misses, and digests known to miss some."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Elements = npt.NDArray[Any]  # unsigned little-endian integers as wide as the type they stand for
Case = tuple[Elements, Elements]  # before and after
Family = Callable[[random.Random, Elements], Case]
Hash = Callable[[Elements], object]


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@functools.cache
def weight(seed: int, n: int) -> int:
    return mixed((seed + (n + 1) * 0x9E3779B97F4A7C15) % 2**64) | 1


def reference(data: bytes) -> tuple[int, int]:
    """The definition in Python's integers, sharing nothing with the module."""
    a, b = (len(data) + 1) * 0x9FB21C651E98DF25, (len(data) + 1) * 0xC2B2AE3D27D4EB4F
    for first in range(0, len(data), 8):
        word = data[first : first + 8].ljust(8, b"\0")
        chunk, column = divmod(first // 8, 4096)
        a += weight(0x452821E638D01377, chunk) * weight(0x243F6A8885A308D3, column) * int.from_bytes(word, "little")
        b += weight(0xBE5466CF34E90C6C, chunk) * weight(0x13198A2E03707344, column) * int.from_bytes(word, "big")
    low = mixed((a + mixed(b % 2**64)) % 2**64)
    return low, mixed((b + low) % 2**64)


def sign(x: Elements) -> int:
    return 1 << (8 * x.itemsize - 1)


def changed(x: Elements, where: list[int], value: object) -> Elements:
    y = x.copy()
    y[where] = value
    return y


def some(r: random.Random, x: Elements, count: int) -> list[int]:
    return r.sample(range(len(x)), count)


def span(r: random.Random, x: Elements) -> slice:
    first, last = sorted(r.sample(range(len(x) + 1), 2))
    return slice(first, last)


def flip_bit(r: random.Random, x: Elements) -> Case:
    i = r.randrange(len(x))
    return x, changed(x, [i], int(x[i]) ^ 1 << r.randrange(8 * x.itemsize))


def swap(r: random.Random, x: Elements) -> Case:
    i, j = some(r, x, 2)
    return x, changed(x, [i, j], x[[j, i]])


def permute(r: random.Random, x: Elements) -> Case:
    where = some(r, x, r.randrange(3, 16))
    return x, changed(x, where, x[r.sample(where, len(where))])


def reverse(r: random.Random, x: Elements) -> Case:
    part, y = span(r, x), x.copy()
    y[part] = x[part][::-1]
    return x, y


def rotate(r: random.Random, x: Elements) -> Case:
    part, y = span(r, x), x.copy()
    y[part] = np.roll(x[part], r.randrange(1, len(x)))
    return x, y


def duplicate(r: random.Random, x: Elements) -> Case:
    i, j = some(r, x, 2)
    return x, changed(x, [j], x[i]) if r.random() < 0.5 else np.concatenate((x[: i + 1], x[i:]))


def flip_an_even_number_of_signs(r: random.Random, x: Elements) -> Case:
    where = some(r, x, 2 * r.randrange(1, 5))
    return x, changed(x, where, x[where] ^ x.dtype.type(sign(x)))


def replace_an_equal_pair(r: random.Random, x: Elements) -> Case:
    where = some(r, x, 2)
    one, other = (r.randrange(2 * sign(x)) for _ in range(2))
    return changed(x, where, one), changed(x, where, other)


def add_and_subtract(r: random.Random, x: Elements) -> Case:
    i, j = some(r, x, 2)
    limit = 2 * sign(x)
    delta = r.choice([1, 1 << r.randrange(8 * x.itemsize), r.randrange(1, limit)])
    return x, changed(x, [i, j], [(int(x[i]) + delta) % limit, (int(x[j]) - delta) % limit])


def append_zeros(r: random.Random, x: Elements) -> Case:
    more = np.zeros(r.randrange(1, 40), x.dtype)
    start = r.choice([x, np.zeros(r.randrange(len(x)), x.dtype)])
    return start, np.concatenate((start, more))


def negate_all(r: random.Random, x: Elements) -> Case:
    start = np.roll(x, r.randrange(len(x)))
    return start, start ^ x.dtype.type(sign(x))


def change_nan_payload(r: random.Random, x: Elements) -> Case:
    mantissa = {1: 2, 2: 10, 4: 23, 8: 52}[x.itemsize]  # float8_e5m2, float16, float32, float64
    nan = r.choice([0, sign(x)]) + sign(x) - (1 << mantissa)
    where = some(r, x, r.randrange(1, 5))
    one, other = (nan + r.randrange(1, 1 << mantissa) for _ in range(2))
    return changed(x, where, one), changed(x, where, other)


def negate_zero(r: random.Random, x: Elements) -> Case:
    where = some(r, x, r.randrange(1, 5))
    return changed(x, where, 0), changed(x, where, sign(x))


def swap_between_chunks(words_a_chunk: int) -> Family:
    """Elements of one column in two chunks, in every fourth case the whole chunks."""

    def swap_chunks(r: random.Random, x: Elements) -> Case:
        size = 8 * words_a_chunk // x.itemsize
        i, j = (size * chunk for chunk in r.sample(range(len(x) // size), 2))
        part = slice(0, size) if r.random() < 0.25 else slice(column := r.randrange(size), column + 1)
        y = x.copy()
        y[i:][part], y[j:][part] = x[j:][part], x[i:][part]
        return x, y

    return swap_chunks


def start(r: random.Random, nbytes: int, width: int) -> Elements:
    """Random bits, a ramp, few distinct values, or one constant: training tensors are of all four kinds."""
    count, dtype = nbytes // width, np.dtype(f"<u{width}")
    kind = r.randrange(4)
    if kind == 0:
        return np.frombuffer(r.randbytes(count * width), dtype)
    if kind == 1:
        return np.arange(count, dtype=np.uint64).astype(dtype)
    values = np.frombuffer(r.randbytes(width * (2 if kind == 2 else 1)), dtype)
    return values[np.frombuffer(r.randbytes(count), np.uint8) % len(values)]


def undetected(hash_of: Hash, family: Family, width: int, count: int, sizes: tuple[int, int]) -> list[Case]:
    """Of `count` real modifications of `sizes` bytes in elements of `width` bytes, those with an unchanged hash."""
    r, missed, tried = random.Random(f"{family.__name__} {width} {sizes}"), [], 0
    while tried < count:
        x = start(r, r.randint(*sizes), width)
        known = hash_of(x)
        for _ in range(10):
            before, after = family(r, x)
            if before.shape == after.shape and (before == after).all():
                continue
            tried += 1
            if (known if before is x else hash_of(before)) == hash_of(after):
                missed.append((before, after))
    return missed


def elements_xored(x: Elements) -> object:
    """As torch.hash_tensor: each element widened, all combined by XOR."""
    return int(np.bitwise_xor.reduce(x.astype(np.uint64), initial=0))


def elements_added(x: Elements) -> object:
    return len(x), int(x.astype(np.uint64).sum() % np.uint64(2 * sign(x)))


def words_weighted(x: Elements) -> object:
    """Odd weights alone, modulo 2^64."""
    words = np.concatenate((x.view(np.uint8), np.zeros(-x.nbytes % 8, np.uint8))).view(np.uint64)
    return int(words.dot(np.arange(len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C16) | np.uint64(1)))


def words_folded(x: Elements) -> object:
    """The halves of a word folded before they are weighted."""
    words = np.concatenate((x.view(np.uint8), np.zeros(-x.nbytes % 8, np.uint8))).view(np.uint64)
    return words_weighted(words ^ words >> np.uint64(32) ^ words << np.uint64(32))


def values_rounded(x: Elements) -> object:
    return (x >> x.dtype.type(1)).tobytes()


def values_as_a_set(x: Elements) -> object:
    return np.unique(x).tobytes()


def values_normalised(x: Elements) -> object:
    """One NaN, one zero: a hash of values, not of bits."""
    magnitude = x & x.dtype.type(sign(x) - 1)
    infinity = sign(x) - (1 << {1: 2, 2: 10, 4: 23, 8: 52}[x.itemsize])
    return np.where(magnitude > infinity, infinity + 1, np.where(magnitude == 0, 0, x)).tobytes()


MISSED_BY: dict[Family, Hash] = {
    flip_bit: values_rounded,
    swap: elements_xored,
    permute: elements_xored,
    reverse: elements_xored,
    rotate: elements_xored,
    duplicate: values_as_a_set,
    flip_an_even_number_of_signs: words_weighted,
    replace_an_equal_pair: elements_xored,
    add_and_subtract: elements_added,
    append_zeros: elements_xored,
    negate_all: words_folded,
    change_nan_payload: values_normalised,
    negate_zero: values_normalised,
}
"""Every family, with a digest that fails it: the proof that the family can find something."""
