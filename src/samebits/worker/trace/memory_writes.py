"""Records of operations and calls, each input explained: what no seen operation left there has a record of its own."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

import torch

from samebits.fingerprint.records import OVERWRITTEN, Flag, Form, Kind, Phase, Site
from samebits.fingerprint.stacks import Frame, Stacks
from samebits.worker.capture.digest import digest_bytes
from samebits.worker.capture.reading import Read, Reading, bits, flag_of
from samebits.worker.trace.origins import Origins, Place, placed
from samebits.worker.trace.trace import Sources, Trace, quieten

_MACHINERY = (
    *("torch._ops", "torch.utils._python_dispatch", "torch._library", "torch.nn.modules.module", "torch.autograd"),
    *("torch.utils._contextlib", "torch._dynamo", "torch._compile", "torch._jit_internal", "torch.overrides"),
    *("contextlib", "runpy", "threading"),
    *("samebits.worker.trace", "samebits.worker.capture", "samebits.worker.clock", "samebits.worker.patches"),
    *("samebits.worker.main", "samebits.worker.trainer.train"),
)
"""Modules, with all below them, whose frames say nothing of who computes."""
_DEEPEST = 40


class Ledger:
    """Of one step. Every method may be called from several threads."""

    def __init__(self, trace: Trace, stacks: Stacks) -> None:
        self._trace = trace
        self._stacks = stacks
        self._origins = Origins()
        self.counts: Counter[str] = Counter()
        trace.writers.append(self.wrote)

    def read(self, reader: Site, tensors: Sequence[torch.Tensor], text: str) -> Sources:
        """What the reader is about to read. text: its plain arguments and the forms of all."""
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
        """What was left in the tensor."""
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
        """A result that is a number."""
        self._trace.record(site, value, sources)

    def describe(self, site: Site, view: torch.Tensor, text: str, sources: Sources) -> None:
        """A view, told by a text, its bytes not read."""
        with OWN, self._trace.lock:
            flags = Flag.NONE if view.is_contiguous() else Flag.STRIDED
            self._append(Reading(site, _form(view.dtype, view.shape), _text_digest(text), flags), sources)

    def wrote(self, tensor: torch.Tensor) -> None:
        """See `Trace.wrote`."""
        with OWN, self._trace.lock:
            if is_readable(tensor):
                core, place = placed(tensor)
                skipped = self._trace.reader.skips(tensor)
                self._origins.leave(tensor, place, None if skipped else self._trace.reader.digest(core))

    def make_blank(self, tensor: torch.Tensor) -> None:
        """It was made and not filled."""
        with OWN, self._trace.lock:
            if is_readable(tensor):
                self._origins.make_blank(tensor)

    def is_blank(self, tensor: torch.Tensor) -> bool:
        """Whether it was made without being filled, and nobody seen has written since."""
        with OWN, self._trace.lock:
            return is_readable(tensor) and self._origins.is_blank(tensor)

    def skip(self, reason: str) -> None:
        with self._trace.lock:
            self.counts[reason] += 1

    def place(self, site: Site, like: Site | None = None) -> None:
        """Keeps from where the program came to a site, the first time. like: a site that has the same stack."""
        with self._trace.lock:
            if site in self._stacks:
                return
            if like is not None:
                self._stacks.share(site, like)
            else:
                self._stacks.add(site, _frames(sys._getframe(1)))

    def _look(self, tensor: torch.Tensor, reader: Site) -> Read | None:
        """None where it cannot be read, or is too large."""
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

    def _give(self, tensor: torch.Tensor, place: Place, read: Read, known: Read | None, reader: Site) -> None:
        reading = reading_of(_given(reader, known is not None), tensor, read)
        if known is not None and not tensor.is_cpu:
            # Whether it was left so is known when the digests have come.
            reading = reading._replace(unless=known)
        self._trace.readings.append(reading)
        self._origins.find(tensor, place, read)

    def _append(self, reading: Reading, sources: Sources) -> None:
        self._trace.readings.append(reading.with_sources(sources.reads, sources.tensors, sources.flags))


class _Own:
    """samebits' own work: neither recorded nor dispatched to anybody. Faster than a generator."""

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
    """Whether it has bytes of its own, in this process, as they are counted here."""
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
    return tensor.layout is torch.strided and tensor.is_contiguous()


def reading_of(site: Site, tensor: torch.Tensor, read: Read) -> Reading:
    """Bytes are those in the order of memory: where that is not the tensor's own order, it says so."""
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
    """Of the program, from the innermost outwards."""
    found = 0
    while frame is not None and found < _DEEPEST:
        module = str(frame.f_globals.get("__name__", ""))
        if not is_machinery(module):
            found += 1
            yield Frame(_file(module, frame.f_code.co_filename), frame.f_lineno, _function(frame))
        frame = frame.f_back


@functools.cache
def is_machinery(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in _MACHINERY)


def _file(module: str, path: str) -> str:
    """Relative to the folder that its package lies in: where that folder is, is no part of the program."""
    parts = path.replace("\\", "/").split("/")
    depth = 1 if module == "__main__" else module.count(".") + 1 + (parts[-1] == "__init__.py")
    return "/".join(parts[-depth:])


def _function(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
