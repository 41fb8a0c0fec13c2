"""The framing of a fingerprint file: append-only, checksummed, each frame bound to all that stand before it.

    file   = MAGIC (12 bytes) · format (u32) · frame*
    frame  = kind (4 bytes) · sequence (u32) · payload length (u64) · payload · check (16 bytes)
    check  = sha256-128(check of the frame before · the 16 head bytes · payload); before the first: 16 zero bytes

A killed writer leaves a valid prefix. A flipped bit, a dropped, repeated or reordered frame breaks the checks from
there on. Only the payload of RECORDS frames may be left unread; their stored check still binds the next frame.
sha256-128: the first 128 bits of sha256; against accidents, like every digest here.
"""

from __future__ import annotations

import hashlib
import struct
from enum import StrEnum

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
