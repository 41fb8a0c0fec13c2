"""Records of operations and calls, and detection of memory that was written where no tracer could see it.

Before a traced operation reads a tensor, its bytes are digested and compared with the digest that the last traced
writer or reader of the same memory left. Where the two differ, something that no tracer sees (a kernel called past the
dispatcher, another thread, a fault) wrote in between, and a record of kind GIVEN is made before the reader's own. The
first reader after a hidden write is thus told apart from an operation that computed something else by itself.

The last known digest of each region of memory, as its last traced writer or reader left it.

A write that no tracer sees is found by this: the digest that is read differs from the one that is known. Memory is
identified by its storage and the byte range inside it, never by its address: an allocator may give the address of a
freed storage to a new one, and does so differently from run to run, so addresses would make equal runs differ.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from samebits.fingerprint.records import OVERWRITTEN, Flag, Form, Kind, Phase, Site
from samebits.fingerprint.stacks import Frame, Stacks
from samebits.worker.capture.digest import digest_bytes
from samebits.worker.capture.reading import Read, Reading, bits, flag_of
from samebits.worker.trace.trace import Sources, Trace, quieten

Lattice = tuple[object, ...]


class MemoryRegion(NamedTuple):
    """Bytes `start` to `stop` (exclusive) of a storage.

    lattice: element size, then (stride, length) of each axis, where the bytes between are not all used or are used more
    than once; empty where the region is dense. Two regions are the same only if their lattices are.
    """

    start: int
    stop: int
    lattice: Lattice = ()


def placed(tensor: torch.Tensor) -> tuple[torch.Tensor, MemoryRegion]:
    """Return a view of the tensor's elements, each once and in the order of memory, and the region that they occupy.

    A transposed weight becomes the weight itself, in the same region: it is read without a copy.
    """
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor, MemoryRegion(start, start + tensor.numel() * size)
    return _sorted(tensor.detach(), start, size)


def _sorted(tensor: torch.Tensor, start: int, size: int) -> tuple[torch.Tensor, MemoryRegion]:
    if not tensor.numel():
        return tensor, MemoryRegion(start, start)
    # Axes of stride 0 repeat elements (expanded tensors) and axes of length 1 have no extent: both are left out. The
    # rest, by falling stride, walk the memory from its first byte to its last.
    axes = [(stride, length) for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]
    axes = sorted((axis for axis in axes if axis[0]), reverse=True)
    shape, strides = [length for _, length in axes], [stride for stride, _ in axes]
    stop = start + (1 + sum(stride * (length - 1) for stride, length in axes)) * size
    signs = tensor.is_conj(), tensor.is_neg()
    if any(signs):
        # A lazily conjugated or negated view has other values than the bytes in memory: a region of its own.
        return tensor, MemoryRegion(start, stop, (size, *axes, *signs))
    core = tensor.as_strided(shape, strides)
    return core, MemoryRegion(start, stop, () if core.is_contiguous() else (size, *axes))


class _Store:
    """The known digests of one storage. blank: allocated and not filled, nor written by a traced operation."""

    __slots__ = ("alive", "blank", "known")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        # Keeps the storage's identity, not its memory: no other one gets this identity while it is held.
        self.alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.blank = False
        self.known: dict[MemoryRegion, Read] = {}


class Origins:
    """Known digests of the memory that one step touches. Not safe for several threads: the caller holds a lock."""

    def __init__(self) -> None:
        self._stores: dict[int, _Store] = {}

    def known(self, tensor: torch.Tensor, place: MemoryRegion) -> Read | None:
        """Return the last known digest of a region; None where there is none or a write overlapped a part of it."""
        return self._store(tensor).known.get(place)

    def find(self, tensor: torch.Tensor, place: MemoryRegion, read: Read) -> None:
        """Remember a digest that a reader found."""
        self._store(tensor).known[place] = read

    def leave(self, tensor: torch.Tensor, place: MemoryRegion, read: Read | None) -> None:
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


_MACHINERY = (
    *("torch._ops", "torch.utils._python_dispatch", "torch._library", "torch.nn.modules.module", "torch.autograd"),
    *("torch.utils._contextlib", "torch._dynamo", "torch._compile", "torch._jit_internal", "torch.overrides"),
    *("contextlib", "runpy", "threading"),
    *("samebits.worker.trace", "samebits.worker.capture", "samebits.worker.clock", "samebits.worker.patches"),
    *("samebits.worker.main", "samebits.worker.trainer.train"),
)
"""Prefixes of modules that are left out of recorded call stacks: they call the program, and are no part of it."""
_DEEPEST = 40
"""Frames of the program that a call stack keeps, the innermost first."""


class Ledger:
    """The inputs and outputs of the operations of one step. Every method may be called from several threads.

    `Trace.lock` is held from the digest to the update of what is known of the memory, so that another thread's write
    never falls between the two.
    """

    def __init__(self, trace: Trace, stacks: Stacks) -> None:
        self._trace = trace
        self._stacks = stacks
        self._origins = Origins()
        self.counts: Counter[str] = Counter()
        trace.writers.append(self.wrote)

    def read(self, reader: Site, tensors: Sequence[torch.Tensor], text: str) -> Sources:
        """Digest the inputs of an operation before it runs, since it may overwrite them.

        reader: site of the operation. tensors: its inputs, in order. text: its plain arguments, and dtype, shape and
        strides of all tensors. Inputs that cannot be read or are too large are left out and flagged as PARTIAL.
        """
        flags = Flag.NONE
        reads: list[Read] = []
        with OWN, self._trace.lock:
            for tensor in tensors:
                found = self._look(tensor, reader)
                if found is None:
                    flags |= Flag.PARTIAL
                else:
                    reads.append(found)
                if not is_flat(tensor):
                    flags |= Flag.STRIDED
        return Sources((*reads, _text_digest(text)), len(reads), flags)

    def write(self, site: Site, tensor: torch.Tensor, sources: Sources) -> None:
        """Record an output tensor, and remember its digest as the content of its memory."""
        with OWN, self._trace.lock:
            if not is_readable(tensor):
                self.counts["unreadable"] += 1
                return
            core, place = placed(tensor)
            if self._trace.reader.skips(tensor):
                self._origins.leave(tensor, place, None)
                self._append(Reading(site, _form(tensor.dtype, tensor.shape), (0, 0), Flag.SKIPPED), sources)
                return
            read = self._trace.reader.digest(core)
            self._origins.leave(tensor, place, read)
            self._append(reading_of(site, tensor, read), sources)

    def say(self, site: Site, value: bool | int | float, sources: Sources) -> None:
        """Record a result that is a number, not a tensor."""
        self._trace.record(site, value, sources)

    def describe(self, site: Site, view: torch.Tensor, text: str, sources: Sources) -> None:
        """Record a view by a text that says which part of its base it shows; its bytes are not read."""
        with OWN, self._trace.lock:
            flags = Flag.NONE if view.is_contiguous() else Flag.STRIDED
            self._append(Reading(site, _form(view.dtype, view.shape), _text_digest(text), flags), sources)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Remember the tensor's present bytes as written by a call that is traced elsewhere (see `Trace.wrote`)."""
        with OWN, self._trace.lock:
            if is_readable(tensor):
                core, place = placed(tensor)
                skipped = self._trace.reader.skips(tensor)
                self._origins.leave(tensor, place, None if skipped else self._trace.reader.digest(core))

    def make_blank(self, tensor: torch.Tensor) -> None:
        """Mark the tensor's memory as allocated and not yet filled."""
        with OWN, self._trace.lock:
            if is_readable(tensor):
                self._origins.make_blank(tensor)

    def is_blank(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory was allocated without being filled and no traced operation wrote to it since."""
        with OWN, self._trace.lock:
            return is_readable(tensor) and self._origins.is_blank(tensor)

    def skip(self, reason: str) -> None:
        """Count an operation that is not recorded, by reason."""
        with self._trace.lock:
            self.counts[reason] += 1

    def place(self, site: Site, like: Site | None = None) -> None:
        """Keep the call stack of a site the first time it is met. like: a site whose stack is to be shared, if any."""
        with self._trace.lock:
            if site in self._stacks:
                return
            if like is not None:
                self._stacks.share(site, like)
            else:
                self._stacks.add(site, _frames(sys._getframe(1)))

    def _look(self, tensor: torch.Tensor, reader: Site) -> Read | None:
        """Return the tensor's digest and report a hidden write; None where it cannot be read or is too large."""
        if not is_readable(tensor):
            self.counts["unreadable"] += 1
            return None
        if self._trace.reader.skips(tensor):
            return None
        core, place = placed(tensor)
        read = self._trace.reader.digest(core)
        known = self._origins.known(tensor, place)
        if read != known and place.stop > place.start:
            self._give(tensor, place, read, known, reader)
        return read

    def _give(self, tensor: torch.Tensor, place: MemoryRegion, read: Read, known: Read | None, reader: Site) -> None:
        reading = reading_of(_given(reader, known is not None), tensor, read)
        if known is not None and not tensor.is_cpu:
            # Digests on a device are fetched at the end of the block, so the two cannot be compared yet. The record is
            # made in any case, and dropped then if its digest equals `known`: asking now would wait for the device.
            reading = reading._replace(unless=known)
        self._trace.readings.append(reading)
        self._origins.find(tensor, place, read)

    def _append(self, reading: Reading, sources: Sources) -> None:
        self._trace.readings.append(reading.with_sources(sources.reads, sources.tensors, sources.flags))


class _Own:
    """Context of samebits' own tensor operations: they are neither recorded nor seen by any dispatch mode.

    A class with a stack per thread: it is entered for every record, and a generator-based context is slower.
    """

    def __init__(self) -> None:
        self._inside = threading.local()

    def __enter__(self) -> None:
        guard = torch._C._DisableTorchDispatch()
        guard.__enter__()  # type: ignore[no-untyped-call]
        stack = self._inside.__dict__.setdefault("stack", [])
        stack.append((guard, quieten(True)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, before = self._inside.stack.pop()
        quieten(before)
        guard.__exit__(kind, error, trace)


OWN = _Own()

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's bytes can be read: a plain strided tensor whose storage is allocated.

    Subclasses, meta, quantized and nested tensors and those wrapped by functorch have no bytes of their own.
    """
    kind = type(tensor)
    if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if (
        tensor.is_meta
        or tensor.is_quantized
        or tensor.is_nested
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return False
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes())


def is_flat(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is strided and contiguous in memory."""
    return tensor.layout is torch.strided and tensor.is_contiguous()


def reading_of(site: Site, tensor: torch.Tensor, read: Read) -> Reading:
    """Return the record of a tensor whose digest was taken in the order of memory.

    Flag.STRIDED is set where that is not the tensor's logical (row-major) order. A single floating-point number is
    recorded by its value.
    """
    flags = flag_of(tensor)
    if flags is Flag.VALUE and isinstance(read, tuple):
        read = bits(float(tensor.detach())), read[0]
    if not tensor.is_contiguous():
        flags |= Flag.STRIDED
    return Reading(site, _form(tensor.dtype, tensor.shape), read, flags)


@functools.lru_cache(maxsize=1 << 16)
def _form(dtype: torch.dtype, shape: torch.Size) -> Form:
    return Form(str(dtype).removeprefix("torch."), tuple(shape))


@functools.lru_cache(maxsize=1 << 16)
def _text_digest(text: str) -> tuple[int, int]:
    return digest_bytes(text.encode())


@functools.lru_cache(maxsize=1 << 16)
def _given(reader: Site, is_overwritten: bool) -> Site:
    return Site(reader.phase, Kind.GIVEN, f"{OVERWRITTEN * is_overwritten}before {reader.name}", reader.scope)


@functools.lru_cache(maxsize=1 << 16)
def site_of(phase: Phase, kind: Kind, name: str, scope: str) -> Site:
    return Site(phase, kind, name, scope)


def _frames(frame: FrameType | None) -> Iterator[Frame]:
    """Yield the frames of the program's own code, from the innermost outwards, at most _DEEPEST."""
    found = 0
    while frame is not None and found < _DEEPEST:
        module = str(frame.f_globals.get("__name__", ""))
        if not is_machinery(module):
            found += 1
            yield Frame(_file(module, frame.f_code.co_filename), frame.f_lineno, _function(frame))
        frame = frame.f_back


@functools.cache
def is_machinery(module: str) -> bool:
    """Return whether a module, or a package above it, is listed in _MACHINERY."""
    return any(module == one or module.startswith(f"{one}.") for one in _MACHINERY)


def _file(module: str, path: str) -> str:
    """Return a file's path relative to the folder that holds its package: where that folder lies must not matter."""
    parts = path.replace("\\", "/").split("/")
    depth = 1 if module == "__main__" else module.count(".") + 1 + (parts[-1] == "__init__.py")
    return "/".join(parts[-depth:])


def _function(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
