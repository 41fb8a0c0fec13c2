"""Who left which bytes: the digest that the last writer, or the last reader, knew of each stretch of memory.

A hidden writer, one that no tracer sees, shows by this: what is read is not what was left there. Memory goes by its
storage and the place inside it, never by its address: a storage that is freed is never taken for the next one at the
same address, so that two equal runs ask and answer the same whatever their allocators do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.worker.capture.reading import Read

Lattice = tuple[object, ...]


class Place(NamedTuple):
    """Bytes `start` to `stop` of a storage. lattice: how they lie where there are gaps or repetitions between them."""

    start: int
    stop: int
    lattice: Lattice = ()


def placed(tensor: torch.Tensor) -> tuple[torch.Tensor, Place]:
    """A tensor with the same elements, each once, in the order of memory, and where they lie.

    A transposed weight is the weight itself, at the same place: it is read at the speed of memory.
    """
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor, Place(start, start + tensor.numel() * size)
    return _sorted(tensor.detach(), start, size)


def _sorted(tensor: torch.Tensor, start: int, size: int) -> tuple[torch.Tensor, Place]:
    if not tensor.numel():
        return tensor, Place(start, start)
    axes = [(stride, length) for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]
    axes = sorted((axis for axis in axes if axis[0]), reverse=True)
    shape, strides = [length for _, length in axes], [stride for stride, _ in axes]
    stop = start + (1 + sum(stride * (length - 1) for stride, length in axes)) * size
    signs = tensor.is_conj(), tensor.is_neg()
    if any(signs):
        return tensor, Place(start, stop, (size, *axes, *signs))
    core = tensor.as_strided(shape, strides)
    return core, Place(start, stop, () if core.is_contiguous() else (size, *axes))


class _Store:
    """What is known of one storage. blank: it was made without being filled, and nobody seen has written since."""

    __slots__ = ("alive", "blank", "known")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        # Keeps the storage's identity, not its memory: no other one gets this identity while it is held.
        self.alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.blank = False
        self.known: dict[Place, Read] = {}


class Origins:
    """Of one step. Not for several threads at once."""

    def __init__(self) -> None:
        self._stores: dict[int, _Store] = {}

    def known(self, tensor: torch.Tensor, place: Place) -> Read | None:
        """What was last left or found there; None where nobody did, or part of it was written in another shape."""
        return self._store(tensor).known.get(place)

    def find(self, tensor: torch.Tensor, place: Place, read: Read) -> None:
        """It was read."""
        self._store(tensor).known[place] = read

    def leave(self, tensor: torch.Tensor, place: Place, read: Read | None) -> None:
        """It was written; read is None where its digest is not known."""
        store = self._store(tensor)
        store.blank = False
        known = store.known
        if len(known) > (place in known):
            for other in [other for other in known if other.start < place.stop and place.start < other.stop]:
                del known[other]
        if read is None:
            known.pop(place, None)
        else:
            known[place] = read

    def make_blank(self, tensor: torch.Tensor) -> None:
        store = self._store(tensor)
        store.blank = True
        store.known.clear()

    def is_blank(self, tensor: torch.Tensor) -> bool:
        return self._store(tensor).blank

    def _store(self, tensor: torch.Tensor) -> _Store:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        store = self._stores.get(identity)
        if store is None:
            store = self._stores[identity] = _Store(storage)
        return store
