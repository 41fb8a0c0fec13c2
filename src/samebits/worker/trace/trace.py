"""The records of one step as it computes, in the order in which things happen on this rank.

Several sources write into one trace: modules and collectives (rung `boundary`), operations (rung `op`). Safe in the
threads of autograd. samebits' own work, and whatever stands inside `quiet()`, is not recorded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits.fingerprint.records import Flag, Form, Phase, Site
from samebits.worker.capture.digest import digest_bytes
from samebits.worker.capture.reading import Folded, Read, Reader, Reading, form_of
from samebits.worker.capture.state import Value

_HERE = threading.local()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Record nothing of what this thread does inside the context."""
    before = is_quiet()
    _HERE.quiet = True
    try:
        yield
    finally:
        _HERE.quiet = before


def quieten(now: bool) -> bool:
    """Set whether this thread is left unrecorded, and return the former value for the caller to restore."""
    before = is_quiet()
    _HERE.quiet = now
    return before


def is_quiet() -> bool:
    return getattr(_HERE, "quiet", False)


@dataclass(frozen=True)
class Sources:
    """The inputs of a record, read before they could be overwritten.

    reads: digests. tensors: how many of the digests are of tensors. flags: STRIDED, PARTIAL.
    """

    reads: tuple[Read, ...]
    tensors: int
    flags: Flag


class Trace:
    """stage: phase of what runs outside a backward pass. lock: of readings and reader. notes: remarks on this step."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lock = threading.RLock()
        self.stage = Phase.FORWARD
        self.readings: list[Reading] = []
        self.writers: list[Callable[[torch.Tensor], None]] = []
        self.notes: list[dict[str, Any]] = []

    @property
    def phase(self) -> Phase:
        return Phase.BACKWARD if in_backward() else self.stage

    def wrote(self, tensor: torch.Tensor) -> None:
        """Announce bytes that something other than an operation wrote, such as a collective, once they have arrived."""
        for writer in self.writers:
            writer(tensor)

    def sources(self, tensors: Sequence[torch.Tensor], arguments: Sequence[bytes] = ()) -> Sources:
        """Digest inputs now. arguments: exact text of plain arguments, which follow the tensors."""
        flags = Flag.NONE
        reads: list[Read] = []
        with quiet(), self.lock:
            for tensor in tensors:
                if self.reader.skips(tensor):
                    flags |= Flag.PARTIAL
                    reads.append(digest_bytes(form_of(tensor).hash()))
                else:
                    reads.append(self.reader.digest(tensor))
                if not tensor.is_contiguous():
                    flags |= Flag.STRIDED
        return Sources((*reads, *map(digest_bytes, arguments)), len(tensors), flags)

    def record(self, site: Site, output: Value, sources: Sources | None = None) -> Reading:
        """Record an output: a tensor, read now, or a plain value. Without sources the record has no input digest."""
        with quiet(), self.lock:
            reading = self.reader.read([(site, output)])[0]
            if sources is not None:
                reading = reading.with_sources(sources.reads, sources.tensors, sources.flags)
            if isinstance(output, torch.Tensor) and not output.is_contiguous():
                reading = reading._replace(flags=reading.flags | Flag.STRIDED)
            self.readings.append(reading)
        return reading

    def repeat(self, reading: Reading, sites: Iterable[Site]) -> None:
        """Record the same tensor at the same moment under other names."""
        with self.lock:
            self.readings += [reading._replace(site=site) for site in sites]

    def record_all(self, site: Site, outputs: Sequence[torch.Tensor], sources: Sources) -> None:
        """Make one record of many tensors, read now."""
        with quiet(), self.lock:
            made = self.sources(outputs)
            reading = Reading(site, Form("tensors", (len(outputs),)), Folded(made.reads), int(made.flags))
            self.readings.append(reading.with_sources(sources.reads, sources.tensors, sources.flags))


def in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return int(torch._C._current_graph_task_id()) != -1
