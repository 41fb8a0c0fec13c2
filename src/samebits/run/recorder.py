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
import time
from pathlib import Path
from typing import Any

import numpy as np

from samebits.artifact import frames, reader
from samebits.artifact.frames import BLOCK, FrameKind
from samebits.artifact.header import Header
from samebits.artifact.site import NO_CHAIN, RECORD, RUNGS, Flag, Form, Moment, Site, block_digest, next_chain

SYNC_SECONDS = 5.0
"""Between two fsyncs: a killed process loses nothing, a lost node at most this much."""


class RecorderError(RuntimeError):
    """The file cannot be written, or is used out of order."""


class Recorder:
    """One open block at a time. Not for several threads at once."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises RecorderError where the file exists (an arm is never recorded over another) or cannot be made."""
        self.path = path
        self._sites: dict[Site, int] = {}
        self._forms: dict[Form, int] = {}
        self._new_sites: list[Site] = []
        self._new_forms: list[Form] = []
        self._check = frames.NO_CHECK
        self._chain = NO_CHAIN
        self._sequence = self._blocks = self._total = 0
        self._open: tuple[Moment, int, int] | None = None
        self._rows: list[tuple[int, int, int, int, int, tuple[int, int]]] = []
        self._occurrences: dict[int, int] = {}
        self._synced = time.monotonic()
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise RecorderError(f"{path}: cannot be made ({error.strerror}); an arm starts in an empty folder") from error
        self._write(frames.PREFIX)
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
        if self._open is not None:
            raise RecorderError(f"{self.path}: {moment.name} of step {step} begins inside another block")
        self._open = moment, step, RUNGS.index(rung)

    def record(self, site: int, form: int, output: tuple[int, int], flags: int = 0, source: int = 0) -> None:
        """site, form: numbers from above. output: two unsigned 64-bit words. source: 64-bit input digest, with
        Flag.INPUT. The occurrence is counted here: the same site again in one block is the next occurrence."""
        occurrence = self._occurrences.get(site, 0)
        self._occurrences[site] = occurrence + 1
        self._rows.append((site, form, occurrence, flags, source, output))

    def end(self, started: int, ended: int) -> bytes:
        """Closes the block and writes it. started, ended: nanoseconds since the epoch. Returns the block digest."""
        if self._open is None:
            raise RecorderError(f"{self.path}: a block ends that never began")
        moment, step, rung = self._open
        records = np.array(self._rows, dtype=RECORD)
        digest = block_digest(moment, step, rung, records, *self._hashes())
        self._chain = next_chain(self._chain, digest)
        body = BLOCK.pack(moment, rung, 0, 0, step, len(records), digest, self._chain, started, ended)
        self._append(*self._tables(), (FrameKind.RECORDS, records.tobytes()), (FrameKind.BLOCK, body))
        self._blocks, self._total = self._blocks + 1, self._total + len(records)
        self._open = None
        self._rows.clear()
        self._occurrences.clear()
        self._sync_now_and_then()
        return digest

    def note(self, body: dict[str, Any]) -> None:
        """A remark that belongs to the run, for example where a planted fault struck; in no digest."""
        self._append((FrameKind.NOTE, json.dumps(body, sort_keys=True).encode()))

    def seal(self) -> None:
        """The run ended as planned: seals the file, re-reads it once, and appends what that found.

        Raises RecorderError where the file on disk is not what was written.
        """
        if self._open is not None:
            raise RecorderError(f"{self.path}: sealed inside a block")
        body = {"blocks": self._blocks, "records": self._total, "chain": self._chain.hex()}
        self._append((FrameKind.SEAL, json.dumps(body, sort_keys=True).encode()))
        os.fsync(self._file)
        fault = self._reread()
        body = {"records": self._total, "fault": fault}
        self._append((FrameKind.VERIFIED, json.dumps(body, sort_keys=True).encode()))
        os.fsync(self._file)
        os.close(self._file)
        if fault is not None:
            raise RecorderError(f"{self.path}: read back, it is not what was written: {fault}")

    def _reread(self) -> str | None:
        found = reader.read(self.path, deep=True)
        if found.seal is None or found.valid_bytes != len(found.data):
            return found.fault or "unsealed"
        return None

    def _hashes(self) -> tuple[Any, Any]:
        if self._new_sites or self._new_forms or self._blocks == 0:
            self._site_hashes = reader.hashes(list(self._sites), 2)
            self._form_hashes = reader.hashes(list(self._forms), 1)[:, 0]
        return self._site_hashes, self._form_hashes

    def _tables(self) -> list[tuple[FrameKind, bytes]]:
        if not self._new_sites and not self._new_forms:
            return []
        sites = [[site.phase, site.kind, site.name, site.scope] for site in self._new_sites]
        forms = [[form.dtype, list(form.shape)] for form in self._new_forms]
        self._new_sites, self._new_forms = [], []
        return [(FrameKind.TABLES, json.dumps({"sites": sites, "forms": forms}).encode())]

    def _append(self, *bodies: tuple[FrameKind, bytes]) -> None:
        parts = []
        for kind, payload in bodies:
            part, self._check = frames.frame(kind, self._sequence, payload, self._check)
            self._sequence += 1
            parts.append(part)
        self._write(b"".join(parts))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise RecorderError(
                f"{self.path}: cannot be written ({error.strerror}); free space or choose another results folder, then run the arm again"
            ) from error

    def _sync_now_and_then(self) -> None:
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            os.fsync(self._file)
            self._synced = time.monotonic()
