"""Reads a fingerprint file: its valid prefix, how far that goes, and why it stops there."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samebits.artifact import frames
from samebits.artifact.frames import BLOCK, CHECK_BYTES, HEAD, FrameKind
from samebits.artifact.header import Header
from samebits.artifact.site import NO_CHAIN, RECORD, RUNGS, Form, Kind, Moment, Phase, Site, block_digest, next_chain


class _Broken(Exception):
    """Why the valid prefix ends."""


@dataclass(frozen=True)
class Block:
    """One moment of one rank. started, ended: nanoseconds since the epoch, outside every digest."""

    moment: Moment
    step: int
    rung: str
    records: int
    digest: bytes
    chain: bytes
    started: int
    ended: int
    offset: int
    """Of the records in the file, bytes."""


@dataclass
class FingerprintFile:
    """What could be read. `fault` is None exactly when the whole file is valid, sealed and has nothing after its end.

    deep: whether the records themselves were re-read. verified: the rank's own statement after its seal.
    """

    path: Path
    data: memoryview
    deep: bool
    header: Header | None = None
    sites: list[Site] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    seal: dict[str, Any] | None = None
    verified: dict[str, Any] | None = None
    valid_bytes: int = 0
    check: bytes = frames.NO_CHECK
    fault: str | None = None

    def records(self, block: Block) -> NDArray[np.void]:
        """RECORD, shape (block.records,): a view of the mapped file."""
        return np.frombuffer(self.data, dtype=RECORD, count=block.records, offset=block.offset)

    def block(self, moment: Moment, step: int) -> Block | None:
        return next((block for block in self.blocks if block.moment is moment and block.step == step), None)


def read(path: Path, *, deep: bool) -> FingerprintFile:
    """Reads what is valid of a fingerprint file. deep: also re-reads every record against its block digest.

    Never raises on damaged contents: `fault` says what is wrong. Raises OSError where the file cannot be opened.
    """
    file = FingerprintFile(path=path, data=_mapped(path), deep=deep)
    try:
        _read_frames(file)
    except _Broken as broken:
        file.fault = f"{broken} (valid up to byte {file.valid_bytes} of {len(file.data)})"
    return file


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as stream:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _read_frames(file: FingerprintFile) -> None:
    prefix = bytes(file.data[: len(frames.PREFIX)])
    if prefix != frames.PREFIX:
        if len(prefix) == len(frames.PREFIX) and prefix.startswith(frames.MAGIC):
            number = int.from_bytes(prefix[-4:], "little")
            raise _Broken(f"fingerprint format is {number}, this samebits reads {frames.FORMAT}")
        raise _Broken("not a fingerprint file, or cut inside its first bytes")
    file.valid_bytes = len(frames.PREFIX)
    state = _State()
    for kind, payload, offset in _frames(file):
        _accept(file, state, kind, payload, offset)
    if file.seal is None:
        raise _Broken("not sealed: the rank did not end as planned")
    if file.verified is None:
        raise _Broken("sealed, but the rank did not verify its own file")


@dataclass
class _State:
    site_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    form_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
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
            raise _Broken(f"frame {sequence}: cut inside its head")
        name, number, length = HEAD.unpack(head)
        try:
            kind = FrameKind(name.decode("ascii"))
        except ValueError:
            raise _Broken(f"frame {sequence}: unknown kind {name!r}") from None
        offset = start + HEAD.size
        end = offset + length + CHECK_BYTES
        if end > len(file.data):
            raise _Broken(f"frame {sequence} ({kind.name.lower()}): cut")
        payload, stored = file.data[offset : end - CHECK_BYTES], bytes(file.data[end - CHECK_BYTES : end])
        if (file.deep or kind is not FrameKind.RECORDS) and frames.check(file.check, head, payload) != stored:
            raise _Broken(f"frame {sequence} ({kind.name.lower()}): checksum differs, a byte was changed")
        if number != sequence:
            raise _Broken(f"frame {sequence}: carries number {number}")
        yield kind, payload, offset
        file.check, file.valid_bytes, sequence = stored, end, sequence + 1


def _accept(file: FingerprintFile, state: _State, kind: FrameKind, payload: memoryview, offset: int) -> None:
    if (file.header is None) != (kind is FrameKind.HEADER):
        raise _Broken(f"{kind.name.lower()} frame out of place: the header comes first, once")
    if file.verified is not None or (file.seal is not None and kind is not FrameKind.VERIFIED):
        raise _Broken(f"{kind.name.lower()} frame after the end")
    if state.pending is not None and kind is not FrameKind.BLOCK:
        raise _Broken("records without their block")
    try:
        _ACCEPT[kind](file, state, payload, offset)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _Broken(f"{kind.name.lower()} frame cannot be read: {error}") from error


def _accept_header(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    file.header = Header.from_bytes(bytes(payload))


def _accept_tables(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    body = json.loads(bytes(payload))
    file.sites += [Site(Phase(phase), Kind(kind), name, scope) for phase, kind, name, scope in body["sites"]]
    file.forms += [Form(dtype, tuple(shape)) for dtype, shape in body["forms"]]
    state.site_hashes = hashes(file.sites, 2)
    state.form_hashes = hashes(file.forms, 1)[:, 0]


def hashes(entries: list[Site] | list[Form], words: int) -> NDArray[np.uint64]:
    """uint64 (number of entries, words): the hashes of a table, as block_digest wants them."""
    return np.frombuffer(b"".join(entry.hash() for entry in entries), dtype="<u8").reshape(-1, words)


def _accept_records(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    if len(payload) % RECORD.itemsize:
        raise ValueError("not a whole number of records")
    state.pending = (offset, len(payload) // RECORD.itemsize)


def _accept_block(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    moment, rung, zero, null, step, count, digest, chain, started, ended = BLOCK.unpack(payload)
    if state.pending is None or state.pending[1] != count or zero or null:
        raise ValueError("does not fit the records before it")
    block = Block(Moment(moment), step, RUNGS[rung], count, digest, chain, started, ended, state.pending[0])
    state.pending = None
    if next_chain(state.chain, digest) != chain:
        raise ValueError("chain differs from the block digests")
    if (block.moment, step) in state.seen:
        raise ValueError(f"{block.moment.name.lower()} of step {step} stands twice")
    if file.deep and block_digest(block.moment, step, rung, file.records(block), state.site_hashes, state.form_hashes) != digest:
        raise ValueError("block digest differs from its records")
    file.blocks.append(block)
    state.seen.add((block.moment, step))
    state.chain, state.records = chain, state.records + count


def _accept_note(file: FingerprintFile, state: _State, payload: memoryview, offset: int) -> None:
    file.notes.append(dict(json.loads(bytes(payload))))


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


_ACCEPT = {
    FrameKind.HEADER: _accept_header,
    FrameKind.TABLES: _accept_tables,
    FrameKind.RECORDS: _accept_records,
    FrameKind.BLOCK: _accept_block,
    FrameKind.NOTE: _accept_note,
    FrameKind.SEAL: _accept_seal,
    FrameKind.VERIFIED: _accept_verified,
}
