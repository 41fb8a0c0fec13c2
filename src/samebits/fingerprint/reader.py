"""Reads a fingerprint file: its valid prefix, how far that goes, and why it stops there."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samebits.fingerprint import clock, format
from samebits.fingerprint.block import NO_CHAIN, Tables, next_chain, words_of
from samebits.fingerprint.clock import CLOCK, Clocks
from samebits.fingerprint.format import BLOCK, CHECK_BYTES, HEAD, FrameKind, Header
from samebits.fingerprint.paths import ArtifactError
from samebits.fingerprint.records import RECORD, RUNGS, Form, Moment, Site


class _BrokenError(Exception):
    """Why the valid prefix ends."""


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""What contents of a frame can raise that no recorder wrote."""


@dataclass(frozen=True)
class Block:
    """One moment of one rank. skipped: records without a digest. started, ended: nanoseconds since the epoch, outside
    every digest. offset: of the records in the file, bytes."""

    moment: Moment
    step: int
    rung: str
    records: int
    skipped: int
    digest: bytes
    chain: bytes
    started: int
    ended: int
    offset: int

    def __str__(self) -> str:
        return block_text(self.moment, self.step)


def block_text(moment: Moment, step: int) -> str:
    """`step 7`, `saved state of step 8`."""
    return f"step {step}" if moment is Moment.STEP else f"{moment.name.lower()} state of step {step}"


@dataclass
class FingerprintFile:
    """What could be read. `fault` is None exactly when the whole file is valid, sealed, verified by its own rank, and
    has nothing after its end.

    deep: whether the records themselves were re-read. verified: the rank's own statement after its seal. check: of the
    last valid frame; it binds all bytes before it.
    """

    path: Path
    data: memoryview
    deep: bool
    header: Header | None = None
    tables: Tables = field(default_factory=Tables)
    blocks: list[Block] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    clocks: Clocks = field(default_factory=lambda: np.empty(0, CLOCK))
    seal: dict[str, Any] | None = None
    verified: dict[str, Any] | None = None
    valid_bytes: int = 0
    check: bytes = format.NO_CHECK
    fault: str | None = None
    _trusted: set[int] = field(default_factory=set)

    @property
    def sites(self) -> list[Site]:
        return self.tables.sites

    @property
    def forms(self) -> list[Form]:
        return self.tables.forms

    def records(self, block: Block) -> NDArray[np.void]:
        """RECORD, shape (block.records,): a view of the mapped file.

        Raises ArtifactError where they are not those that the block's digest was made of.
        """
        if block.offset not in self._trusted:
            try:
                self._check_sum(block)
            except _UNREADABLE as error:
                raise ArtifactError(f"{self.path}: {block}: {error}; run the arm again") from error
        return np.frombuffer(self.data, dtype=RECORD, count=block.records, offset=block.offset)

    def _check_sum(self, block: Block) -> None:
        words = words_of(self.data, block.records, block.offset)
        found = self.tables.sums.of(block.moment, block.step, RUNGS.index(block.rung), words)
        if (found.digest, found.skipped) != (block.digest, block.skipped):
            raise ValueError("its digest differs from its records, a byte was changed")
        self._trusted.add(block.offset)

    def block(self, moment: Moment, step: int) -> Block | None:
        return next((block for block in self.blocks if block.moment is moment and block.step == step), None)


def read(path: Path, *, deep: bool) -> FingerprintFile:
    """Reads what is valid of a fingerprint file. deep: also re-reads every record against its block digest.

    Never raises on damaged contents: `fault` says what is wrong. Raises OSError where the file cannot be opened.
    """
    file = FingerprintFile(path=path, data=_mapped(path), deep=deep)
    try:
        _read_frames(file)
    except _BrokenError as broken:
        last = f"last whole block: {file.blocks[-1]}" if file.blocks else "no whole block"
        file.fault = f"{broken} (valid up to byte {file.valid_bytes} of {len(file.data)}, {last})"
    return file


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as stream:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _read_frames(file: FingerprintFile) -> None:
    prefix = bytes(file.data[: len(format.PREFIX)])
    if prefix != format.PREFIX:
        if len(prefix) == len(format.PREFIX) and prefix.startswith(format.MAGIC):
            number = int.from_bytes(prefix[-4:], "little")
            raise _BrokenError(f"fingerprint format is {number}, this samebits reads {format.FORMAT}")
        raise _BrokenError("not a fingerprint file, or cut inside its first bytes")
    file.valid_bytes = len(format.PREFIX)
    state = _State()
    for kind, payload, offset in _frames(file):
        _accept(file, state, kind, payload, offset)
    if file.seal is None:
        raise _BrokenError("not sealed: the rank did not end as planned")
    if file.verified is None:
        raise _BrokenError("sealed, but the rank did not verify its own file")


@dataclass
class _State:
    """pending: offset and number of the records that wait for their block."""

    pending: tuple[int, int] | None = None
    chain: bytes = NO_CHAIN
    records: int = 0
    seen: set[tuple[Moment, int]] = field(default_factory=set)


def _frames(file: FingerprintFile) -> Iterator[tuple[FrameKind, memoryview, int]]:
    """Yields (kind, payload, payload offset) and moves the valid prefix on after each accepted frame."""
    sequence = 0
    while file.valid_bytes < len(file.data):
        start = file.valid_bytes
        head = bytes(file.data[start : start + HEAD.size])
        if len(head) < HEAD.size:
            raise _BrokenError(f"frame {sequence}: cut inside its head")
        name, number, length = HEAD.unpack(head)
        kind = format.KINDS.get(name)
        if kind is None:
            raise _BrokenError(f"frame {sequence}: unknown kind {name!r}")
        offset = start + HEAD.size
        end = offset + length + CHECK_BYTES
        if end > len(file.data):
            raise _BrokenError(f"frame {sequence} ({kind.name.lower()}): cut")
        payload, stored = file.data[offset : end - CHECK_BYTES], bytes(file.data[end - CHECK_BYTES : end])
        if (file.deep or kind is not FrameKind.RECORDS) and format.check(file.check, head, payload) != stored:
            raise _BrokenError(f"frame {sequence} ({kind.name.lower()}): checksum differs, a byte was changed")
        if number != sequence:
            raise _BrokenError(f"frame {sequence}: carries number {number}")
        yield kind, payload, offset
        file.check, file.valid_bytes, sequence = stored, end, sequence + 1


def _accept(file: FingerprintFile, state: _State, kind: FrameKind, payload: memoryview, offset: int) -> None:
    if (file.header is None) != (kind is FrameKind.HEADER):
        raise _BrokenError(f"{kind.name.lower()} frame out of place: the header comes first, once")
    if file.verified is not None or (file.seal is None) == (kind is FrameKind.VERIFIED):
        raise _BrokenError(f"{kind.name.lower()} frame out of place: a seal, then one verification, end the file")
    if (state.pending is not None) != (kind is FrameKind.BLOCK):
        raise _BrokenError(f"{kind.name.lower()} frame out of place: each block follows its records")
    try:
        _ACCEPT[kind](file, state, payload, offset)
    except _UNREADABLE as error:
        raise _BrokenError(f"{kind.name.lower()} frame cannot be read: {error}") from error


def _accept_header(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    file.header = Header.from_bytes(bytes(payload))


def _accept_tables(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    file.tables.add(bytes(payload))


def _accept_records(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    if len(payload) % RECORD.itemsize:
        raise ValueError("not a whole number of records")
    state.pending = (offset, len(payload) // RECORD.itemsize)


def _accept_block(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    moment, rung, zero, skipped, step, count, digest, chain, started, ended = BLOCK.unpack(payload)
    if state.pending is None or state.pending[1] != count or zero:
        raise ValueError("does not fit the records before it")
    start, state.pending = state.pending[0], None
    block = Block(Moment(moment), step, RUNGS[rung], count, skipped, digest, chain, started, ended, start)
    if next_chain(state.chain, digest) != chain:
        raise ValueError(f"{block}: chain differs from the block digests")
    if (block.moment, step) in state.seen:
        raise ValueError(f"{block} stands twice")
    if file.deep:
        file._check_sum(block)
    file.blocks.append(block)
    state.seen.add((block.moment, step))
    state.chain, state.records = chain, state.records + count


def _accept_note(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    file.notes.append(dict(json.loads(bytes(payload))))


def _accept_clock(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    if len(file.clocks):
        raise ValueError("steps are timed once")
    file.clocks = clock.checked(payload)


def _accept_seal(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    body = dict(json.loads(bytes(payload)))
    if (body["blocks"], body["records"], body["chain"]) != (len(file.blocks), state.records, state.chain.hex()):
        raise ValueError("counts or chain differ from what stands before it")
    file.seal = body


def _accept_verified(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    body = dict(json.loads(bytes(payload)))
    if body["records"] != state.records or body["fault"] is not None:
        raise ValueError(f"the rank's own verification says: {body['fault'] or 'another number of records'}")
    file.verified = body


_ACCEPT: dict[FrameKind, Callable[[FingerprintFile, _State, memoryview, int], None]] = {
    FrameKind.HEADER: _accept_header,
    FrameKind.TABLES: _accept_tables,
    FrameKind.RECORDS: _accept_records,
    FrameKind.BLOCK: _accept_block,
    FrameKind.NOTE: _accept_note,
    FrameKind.CLOCK: _accept_clock,
    FrameKind.SEAL: _accept_seal,
    FrameKind.VERIFIED: _accept_verified,
}
