"""Writes one rank's fingerprint file as the run goes: whole blocks, straight to the file, sealed at the end.

recorder = Recorder(path, header)
recorder.begin(Moment.STEP, 7, "state")
recorder.record(site, form, output)
recorder.end(started, ended)
recorder.seal()
"""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any, NoReturn

from samebits.fingerprint import block, format, reader
from samebits.fingerprint.block import NO_CHAIN, BlockSums, next_chain, words_of
from samebits.fingerprint.clock import Clocks
from samebits.fingerprint.format import BLOCK, FrameKind, Header
from samebits.fingerprint.records import RUNGS, Form, Moment, Site

SYNC_SECONDS = 5.0
"""Between two fsyncs: a killed process loses nothing, a lost node at most this much."""

_PACK = struct.Struct("<IIIIQQQ").pack
"""One RECORD; packed at once, because a list of tuples costs more than twice as much in the end."""


class RecorderError(RuntimeError):
    """The file cannot be written, or is used out of order."""


class Recorder:
    """One open block at a time. Not for several threads at once. After the first failed write it refuses all others:
    what is in the file stays a valid, unsealed prefix."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises RecorderError where the file exists (an arm is never recorded over another) or cannot be made."""
        self.path = path
        self._sites: dict[Site, int] = {}
        self._forms: dict[Form, int] = {}
        self._new_sites: list[Site] = []
        self._new_forms: list[Form] = []
        self._sums = BlockSums()
        self._check = format.NO_CHECK
        self._chain = NO_CHAIN
        self._sequence = self._blocks = self._total = 0
        self._open: tuple[Moment, int, int] | None = None
        self._rows: list[bytes] = []
        self._occurrences: dict[int, int] = {}
        self._synced = time.monotonic()
        self._closed: str | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RecorderError(
                f"{path}: cannot be made ({error.strerror}); an arm starts in an empty folder"
            ) from error
        self._write(format.PREFIX)
        self._append((FrameKind.HEADER, header.to_bytes()))

    def site(self, site: Site) -> int:
        """Number of a site in this file; ask once and keep it."""
        number = self._sites.get(site)
        if number is None:
            number = self._sites[site] = len(self._sites)
            self._new_sites.append(site)
        return number

    def form(self, form: Form) -> int:
        """Number of a dtype and shape in this file."""
        number = self._forms.get(form)
        if number is None:
            number = self._forms[form] = len(self._forms)
            self._new_forms.append(form)
        return number

    def begin(self, moment: Moment, step: int, rung: str) -> None:
        """Opens a block. Raises RecorderError inside another one, or where records came before it."""
        if self._open is not None:
            raise RecorderError(f"{self.path}: {moment.name} of step {step} begins inside another block")
        if self._rows:
            raise RecorderError(f"{self.path}: records stand before {moment.name} of step {step}, in no block")
        self._open = moment, step, RUNGS.index(rung)

    def record(self, site: int, form: int, output: tuple[int, int], flags: int = 0, source: int = 0) -> None:
        """site, form: numbers from above. output: two unsigned 64-bit words. source: 64-bit input digest, with
        Flag.INPUT. The occurrence is counted here: the same site again in one block is the next occurrence."""
        seen = self._occurrences
        occurrence = seen.get(site, 0)
        seen[site] = occurrence + 1
        first, second = output
        self._rows.append(_PACK(site, form, occurrence, flags, source, first, second))

    def end(self, started: int, ended: int) -> bytes:
        """Closes the block and writes it. started, ended: nanoseconds since the epoch. Returns the block digest.

        Raises RecorderError where it cannot be written, or holds a number that no table has.
        """
        if self._open is None:
            raise RecorderError(f"{self.path}: a block ends that never began")
        try:
            digest = self._write_block(*self._open, started, ended)
        except (ValueError, struct.error) as error:
            self._closed = f"an earlier block could not be written ({error})"
            raise RecorderError(f"{self.path}: {self._open[0].name} of step {self._open[1]}: {error}") from error
        self._open = None
        self._rows.clear()
        self._occurrences.clear()
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self._sync()
        return digest

    def _write_block(self, moment: Moment, step: int, rung: int, started: int, ended: int) -> bytes:
        table = self._new_tables()
        payload, count = b"".join(self._rows), len(self._rows)
        total = self._sums.of(moment, step, rung, words_of(payload, count))
        chain = next_chain(self._chain, total.digest)
        body = BLOCK.pack(moment, rung, 0, total.skipped, step, count, total.digest, chain, started, ended)
        self._append(*table, (FrameKind.RECORDS, payload), (FrameKind.BLOCK, body))
        self._chain, self._blocks, self._total = chain, self._blocks + 1, self._total + count
        return total.digest

    def time(self, clocks: Clocks) -> None:
        """Where the time of each step went; once, before the seal; in no digest."""
        if len(clocks):
            self._append((FrameKind.CLOCK, clocks.tobytes()))

    def note(self, body: dict[str, Any]) -> None:
        """A remark that belongs to the run, for example where a planted fault struck; in no digest."""
        self._append((FrameKind.NOTE, json.dumps(body, sort_keys=True).encode()))

    def seal(self) -> None:
        """The run ended as planned: seals the file, re-reads it once, and appends what that found.

        Raises RecorderError where the file on disk is not what was written.
        """
        if self._open is not None or self._rows:
            raise RecorderError(f"{self.path}: sealed inside a block")
        body = {"blocks": self._blocks, "records": self._total, "chain": self._chain.hex()}
        self._append((FrameKind.SEAL, json.dumps(body, sort_keys=True).encode()))
        self._sync()
        fault = self._reread()
        body = {"records": self._total, "fault": fault}
        self._append((FrameKind.VERIFIED, json.dumps(body, sort_keys=True).encode()))
        self._sync()
        self._close("it is sealed")
        if fault is not None:
            raise RecorderError(f"{self.path}: read back, it is not what was written: {fault}; change the disk or node")

    def _reread(self) -> str | None:
        """From the disk, not from memory, where the system can be asked for that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            found = reader.read(self.path, deep=True)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if found.seal is None or found.valid_bytes != len(found.data):
            return found.fault or "unsealed"
        return None if found.check == self._check else "it is another file"

    def _new_tables(self) -> list[tuple[FrameKind, bytes]]:
        """The frame of the entries that no frame has yet, if there are any."""
        if not self._new_sites and not self._new_forms:
            return []
        self._sums.extend((site.hash() for site in self._new_sites), (form.hash() for form in self._new_forms))
        payload = block.encode(self._new_sites, self._new_forms)
        self._new_sites, self._new_forms = [], []
        return [(FrameKind.TABLES, payload)]

    def _append(self, *bodies: tuple[FrameKind, bytes]) -> None:
        parts = []
        for kind, payload in bodies:
            part, self._check = format.frame(kind, self._sequence, payload, self._check)
            self._sequence += 1
            parts.append(part)
        self._write(b"".join(parts))

    def _write(self, data: bytes) -> None:
        if self._closed is not None:
            raise RecorderError(f"{self.path}: nothing can be added, {self._closed}")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._fail(error)

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            self._fail(error)
        self._synced = time.monotonic()

    def _close(self, why: str) -> None:
        """Some file systems say only now that the disk is full."""
        self._closed = why
        try:
            os.close(self._file)
        except OSError as error:
            raise self._unwritten(error) from error

    def _fail(self, error: OSError) -> NoReturn:
        self._closed = f"an earlier write failed ({error.strerror})"
        os.close(self._file)
        raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> RecorderError:
        return RecorderError(
            f"{self.path}: cannot be written ({error.strerror}); free space or choose another results folder, "
            "then run the arm again"
        )
