"""Which tokens a rank sees, when: a position in a fixed global order of samples.

A sample is `sequence_length + 1` token ids; tokens are all but the last, labels all but the first. A global batch of
G samples begins at `position`; it is split over the D data-parallel ranks first and over a rank's micro-batches of M
samples next: sample i of micro-batch m on data rank d is number `position + d * (G / D) + m * M + i`. Ranks that
differ only in tensor, pipeline or expert coordinates draw the same samples.

Orders depend on raw words of numpy's counter-based Philox generator only, which numpy keeps stable over versions.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from samebits.spec.sections import Data, StreamData, TokenData

Ids = npt.NDArray[np.int64]


class DataError(ValueError):
    """Data that does not fit the recipe, or a position that does not fit the data."""


class SampleSource(Protocol):
    """A fixed order of samples.

    epoch_samples: samples until the order is drawn anew; 0: the source never ends.
    """

    epoch_samples: int

    def sample(self, number: int) -> Ids:
        """Token ids of the sample at this place of the order, int64 (sequence_length + 1,)."""


@dataclass(frozen=True)
class Shape:
    """What the model asks of a sample."""

    sequence_length: int
    vocabulary: int


class SyntheticSamples:
    """Sample i is drawn from a generator keyed by (seed, i): equal on every machine, no epoch, no file."""

    epoch_samples = 0

    def __init__(self, seed: int, shape: Shape) -> None:
        self._seed = seed
        self._shape = shape

    def sample(self, number: int) -> Ids:
        words = _philox_words(self._seed, number, self._shape.sequence_length + 1)
        # The upper half scaled to [0, vocabulary): without a division and without numpy's unstable distributions.
        return ((words >> np.uint64(32)) * np.uint64(self._shape.vocabulary) >> np.uint64(32)).astype(np.int64)


class TokenFile:
    """Non-overlapping windows of a file of token ids, in an order shuffled for each epoch from (seed, epoch)."""

    def __init__(self, data: TokenData, shape: Shape) -> None:
        self._path = Path(data.path)
        self._shape = shape
        self._seed = data.shuffle_seed
        self._tokens = _map_tokens(self._path, np.dtype(data.dtype))
        self._window = shape.sequence_length + 1
        self.epoch_samples = len(self._tokens) // self._window
        if self.epoch_samples == 0:
            raise DataError(
                f"{self._path}: holds {len(self._tokens)} tokens, must hold at least {self._window} "
                "(model.sequence_length + 1) for one sample"
            )
        self._drawn: tuple[int, npt.NDArray[np.intp]] = (-1, np.empty(0, dtype=np.intp))

    def sample(self, number: int) -> Ids:
        """Raises DataError where the sample holds an id outside the vocabulary."""
        epoch, place = divmod(number, self.epoch_samples)
        start = int(self.order(epoch)[place]) * self._window
        ids = np.asarray(self._tokens[start : start + self._window], dtype=np.int64)
        if ids.min() < 0 or ids.max() >= self._shape.vocabulary:
            raise DataError(
                f"{self._path}: tokens {start} to {start + self._window - 1} hold id {ids.max()} (smallest "
                f"{ids.min()}), must be below model.vocabulary ({self._shape.vocabulary}) and not negative"
            )
        return ids

    def order(self, epoch: int) -> npt.NDArray[np.intp]:
        """Window numbers in the order of this epoch: a permutation of 0 ... epoch_samples - 1. Any thread may ask."""
        known, order = self._drawn
        if epoch != known:
            order = np.argsort(_philox_words(self._seed, epoch, self.epoch_samples), kind="stable")
            self._drawn = (epoch, order)
        return order


class Ahead:
    """The samples of another source, drawn by threads before they are wanted."""

    def __init__(self, source: SampleSource, threads: int) -> None:
        self.epoch_samples = source.epoch_samples
        self._source = source
        self._ahead = 4 * threads
        self._pool = ThreadPoolExecutor(threads)
        self._drawn: dict[int, Future[Ids]] = {}

    def sample(self, number: int) -> Ids:
        for wanted in range(number, number + self._ahead):
            if wanted not in self._drawn:
                self._drawn[wanted] = self._pool.submit(self._source.sample, wanted)
        for passed in [drawn for drawn in self._drawn if drawn < number]:
            del self._drawn[passed]
        return self._drawn.pop(number).result()


class Sampler:
    """Draws this rank's micro-batches.

    position: samples consumed by whole global batches, over all data-parallel ranks; any whole number.
    micro_batch: micro-batches already drawn of the global batch that begins at `position`.
    """

    def __init__(self, data: Data, shape: Shape, rank: int, ranks: int, device: torch.device) -> None:
        """rank, ranks: data-parallel. Raises DataError for data that does not fit."""
        if data.global_batch % (data.micro_batch * ranks):
            raise DataError(
                f"data.global_batch is {data.global_batch}, must be divisible by data.micro_batch x parallel.data "
                f"({data.micro_batch} x {ranks})"
            )
        self._source: SampleSource = open_source(data, shape)
        self._shape = shape
        self._micro = data.micro_batch
        self._global = data.global_batch
        self._first = rank * (data.global_batch // ranks)
        self._device = device
        self.micro_batches = data.global_batch // (data.micro_batch * ranks)
        self.position = 0
        self.micro_batch = 0

    def draw_ahead(self, threads: int) -> None:
        """From now on threads draw the samples; which ones, and in which order, stays the same."""
        self._source = Ahead(self._source, threads)

    def state(self) -> dict[str, int]:
        """`position`, `micro_batch`, `epoch` (of `position`; 0 for a stream) and `epoch_samples`."""
        length = self._source.epoch_samples
        epoch = self.position // length if length else 0
        return {
            "position": self.position,
            "micro_batch": self.micro_batch,
            "epoch": epoch,
            "epoch_samples": length,
        }

    def restore(self, state: dict[str, int]) -> None:
        """Goes on where `state` was taken. Raises DataError where that was over other data."""
        if state["epoch_samples"] != self._source.epoch_samples:
            raise DataError(
                f"data position: was saved over {state['epoch_samples']} samples an epoch, the data here has "
                f"{self._source.epoch_samples}; restore with the data that the checkpoint was made with"
            )
        self.position = state["position"]
        self.micro_batch = state["micro_batch"]

    def numbers(self) -> range:
        """Sample numbers of the next micro-batch of this rank."""
        first = self.position + self._first + self.micro_batch * self._micro
        return range(first, first + self._micro)

    def next_micro_batch(self) -> dict[str, torch.Tensor]:
        """tokens, labels: int64 (micro_batch, sequence); loss_mask: float32 ones, position_ids: int64, same shape."""
        ids = np.stack([self._source.sample(number) for number in self.numbers()])
        self._advance()
        window = torch.from_numpy(ids).to(self._device)
        shape = (self._micro, self._shape.sequence_length)
        places = torch.arange(self._shape.sequence_length, dtype=torch.int64, device=self._device)
        return {
            "tokens": window[:, :-1].contiguous(),
            "labels": window[:, 1:].contiguous(),
            "loss_mask": torch.ones(shape, dtype=torch.float32, device=self._device),
            "position_ids": places.expand(shape).contiguous(),
        }

    def _advance(self) -> None:
        self.micro_batch += 1
        if self.micro_batch == self.micro_batches:
            self.position += self._global
            self.micro_batch = 0


def open_source(data: Data, shape: Shape) -> SampleSource:
    """The order of samples that a recipe's `data` section describes."""
    if isinstance(data, StreamData):
        return SyntheticSamples(data.stream_seed, shape)
    return TokenFile(data, shape)


def file_digest(path: Path) -> str:
    """sha256 of a file as hex, read piece by piece."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _map_tokens(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Little-endian ids, memory-mapped. Raises DataError for a file that is missing or not whole."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; data.path must name a file of token ids")
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DataError(f"{path}: {size} bytes, must be a multiple of {dtype.itemsize} (data.dtype {dtype})")
    if size == 0:
        raise DataError(f"{path}: is empty; data.path must name a file of token ids")
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="r")


def _philox_words(seed: int, counter: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` raw words of Philox keyed by (seed, counter)."""
    if not 0 <= seed < 2**64:
        raise DataError(f"data seed is {seed}, must be at least 0 and below 2^64")
    key = np.array([seed, counter], dtype=np.uint64)
    words: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(count)
    return words
