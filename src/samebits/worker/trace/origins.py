"""The last known digest of each region of memory, as its last traced writer or reader left it.

A write that no tracer sees is found by this: the digest that is read differs from the one that is known. Memory is
identified by its storage and the byte range inside it, never by its address: an allocator may give the address of a
freed storage to a new one, and does so differently from run to run, so addresses would make equal runs differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.worker.capture.reading import Read

Lattice = tuple[object, ...]


class Place(NamedTuple):
    """Bytes `start` to `stop` (exclusive) of a storage.

    lattice: element size, then (stride, length) of each axis, where the bytes between are not all used or are used more
    than once; empty where the region is dense. Two regions are the same only if their lattices are.
    """

    start: int
    stop: int
    lattice: Lattice = ()


def placed(tensor: torch.Tensor) -> tuple[torch.Tensor, Place]:
    """Return a view of the tensor's elements, each once and in the order of memory, and the region that they occupy.

    A transposed weight becomes the weight itself, in the same region: it is read without a copy.
    """
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor, Place(start, start + tensor.numel() * size)
    return _sorted(tensor.detach(), start, size)


def _sorted(tensor: torch.Tensor, start: int, size: int) -> tuple[torch.Tensor, Place]:
    if not tensor.numel():
        return tensor, Place(start, start)
    # Axes of stride 0 repeat elements (expanded tensors) and axes of length 1 have no extent: both are left out. The
    # rest, by falling stride, walk the memory from its first byte to its last.
    axes = [(stride, length) for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]
    axes = sorted((axis for axis in axes if axis[0]), reverse=True)
    shape, strides = [length for _, length in axes], [stride for stride, _ in axes]
    stop = start + (1 + sum(stride * (length - 1) for stride, length in axes)) * size
    signs = tensor.is_conj(), tensor.is_neg()
    if any(signs):
        # A lazily conjugated or negated view has other values than the bytes in memory: a region of its own.
        return tensor, Place(start, stop, (size, *axes, *signs))
    core = tensor.as_strided(shape, strides)
    return core, Place(start, stop, () if core.is_contiguous() else (size, *axes))


class _Store:
    """The known digests of one storage. blank: allocated and not filled, nor written by a traced operation."""

    __slots__ = ("alive", "blank", "known")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        # Keeps the storage's identity, not its memory: no other one gets this identity while it is held.
        self.alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.blank = False
        self.known: dict[Place, Read] = {}


class Origins:
    """Known digests of the memory that one step touches. Not safe for several threads: the caller holds a lock."""

    def __init__(self) -> None:
        self._stores: dict[int, _Store] = {}

    def known(self, tensor: torch.Tensor, place: Place) -> Read | None:
        """Return the last known digest of a region; None where there is none or a write overlapped a part of it."""
        return self._store(tensor).known.get(place)

    def find(self, tensor: torch.Tensor, place: Place, read: Read) -> None:
        """Remember a digest that a reader found."""
        self._store(tensor).known[place] = read

    def leave(self, tensor: torch.Tensor, place: Place, read: Read | None) -> None:
        """Remember a write and forget all regions that overlap it. read: the new digest; None where it is not known."""
        store = self._store(tensor)
        store.blank = False
        known = store.known
        # Mostly the region itself is all that is known of its storage: then there is nothing to search.
        if len(known) > (place in known):
            for other in [other for other in known if other.start < place.stop and place.start < other.stop]:
                del known[other]
        if read is None:
            known.pop(place, None)
        else:
            known[place] = read

    def make_blank(self, tensor: torch.Tensor) -> None:
        """Mark the whole storage as allocated and not yet filled."""
        store = self._store(tensor)
        store.blank = True
        store.known.clear()

    def is_blank(self, tensor: torch.Tensor) -> bool:
        return self._store(tensor).blank

    def _store(self, tensor: torch.Tensor) -> _Store:
        storage = tensor.untyped_storage()
        # The address of the C++ object. It is unique while `_Store.alive` holds a weak reference to that object.
        identity = storage._cdata
        store = self._stores.get(identity)
        if store is None:
            store = self._stores[identity] = _Store(storage)
        return store
