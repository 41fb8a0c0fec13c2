"""Rank numbers as a person reads them.

The framing of a fingerprint file: append-only, checksummed, each frame bound to all that stand before it.

    file   = MAGIC (12 bytes) · format (u32) · frame*
    frame  = kind (4 bytes) · sequence (u32) · payload length (u64) · payload · check (16 bytes)
    check  = sha256-128(check of the frame before · the 16 head bytes · payload); before the first: 16 zero bytes

A killed writer leaves a valid prefix. A flipped bit, a dropped, repeated or reordered frame breaks the checks from
there on. Only the payload of RECORDS frames may be left unread; their stored check still binds the next frame.
sha256-128: the first 128 bits of sha256; against accidents, like every digest here.

The header of a fingerprint file: whose it is, and in what surroundings it was made.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from samebits.spec.pins import Pins
from samebits.spec.plan import Plan, decode

MAGIC = b"samebits-fp\n"
FORMAT = 3
"""2: clock records. 3: kinds and flags of the rungs `boundary` and `op`."""
PREFIX = MAGIC + FORMAT.to_bytes(4, "little")
HEAD = struct.Struct("<4sIQ")
CHECK_BYTES = 16
NO_CHECK = bytes(CHECK_BYTES)


class FrameKind(StrEnum):
    """HEADER first, once. TABLES before the records that use them. RECORDS, then the BLOCK that sums them up.
    NOTE anywhere between. CLOCK: once, where steps were timed.
    SEAL: the run ended as planned. VERIFIED: the rank re-read its own file after the seal."""

    HEADER = "HEAD"
    TABLES = "TABL"
    RECORDS = "RECS"
    BLOCK = "BLOK"
    NOTE = "NOTE"
    CLOCK = "CLOK"
    SEAL = "SEAL"
    VERIFIED = "VRFY"


KINDS = {kind.encode(): kind for kind in FrameKind}

BLOCK = struct.Struct("<BBHIQQ16s16sqq")
"""moment, rung, 0, skipped records, step, number of records, block digest, chain, start and end (nanoseconds since the
epoch)."""


def check(before: bytes, head: bytes, payload: bytes | memoryview) -> bytes:
    """16 check bytes of one frame."""
    state = hashlib.sha256(before + head)
    state.update(payload)
    return state.digest()[:CHECK_BYTES]


def frame(kind: FrameKind, sequence: int, payload: bytes | memoryview, before: bytes) -> tuple[bytes, bytes]:
    """The whole frame, and its check for the next one."""
    head = HEAD.pack(kind.encode(), sequence, len(payload))
    own = check(before, head, payload)
    return b"".join((head, payload, own)), own


@dataclass(frozen=True)
class Coordinates:
    """Where a rank stands in the parallel layout; all numbers start at 0."""

    rank: int
    world: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    context: int

    def __str__(self) -> str:
        return f"TP {self.tensor}, PP {self.pipeline}, DP {self.data}, EP {self.expert}, CP {self.context}"


@dataclass(frozen=True, kw_only=True)
class Header:
    """digest: id of the digest algorithm. launch: one id per start of the arm, the same on its ranks."""

    digest: str
    launch: str
    coordinates: Coordinates
    plan: Plan
    pins: Pins

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Header:
        """Raises PlanError, ValueError or TypeError where the bytes are not a header."""
        body = dict(json.loads(data))
        plan = _plan(json.dumps(body.pop("plan", None)))
        return decode(_Unplanned, body).with_plan(plan)


@dataclass(frozen=True, kw_only=True)
class _Unplanned:
    digest: str
    launch: str
    coordinates: Coordinates
    pins: Pins

    def with_plan(self, plan: Plan) -> Header:
        return Header(digest=self.digest, launch=self.launch, coordinates=self.coordinates, plan=plan, pins=self.pins)


@functools.lru_cache(maxsize=8)
def _plan(text: str) -> Plan:
    """Thousands of ranks carry the same one."""
    return decode(Plan, json.loads(text))


def ranks_text(ranks: Iterable[int]) -> str:
    """`0-7, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def ranks_of(text: str) -> frozenset[int]:
    """The ranks of `0-7, 9`; of none for an empty text. Raises ValueError where it is no such text."""
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)
