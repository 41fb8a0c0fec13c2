"""What a record is about: its site, its moment and its place in the file's tables.

A record is aligned by identity (phase, kind, name, scope, occurrence), never by position.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum, IntFlag, StrEnum

import numpy as np
from numpy.typing import NDArray

RUNGS = ("none", "metrics", "state", "boundary", "op")


class Moment(IntEnum):
    """When a block was taken.

    RESTORED: right after a checkpoint was loaded. STEP: one training step. SAVED: state in memory as the checkpoint
    of that step was written. FINAL: state after the last step, the same code in every arm, `bare` included.
    """

    RESTORED = 1
    STEP = 2
    SAVED = 3
    FINAL = 4


class Phase(StrEnum):
    """Part of a step, in causal order."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    STATE = "state"


class Kind(StrEnum):
    """What was fingerprinted. UPDATE metrics are gradient norm and the like; FORWARD metrics are losses."""

    BATCH = "batch"
    METRIC = "metric"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    MASTER = "master"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    SCHEDULER = "scheduler"
    POSITION = "position"
    RNG = "rng"


@dataclass(frozen=True, order=True)
class Site:
    """phase and kind: see the enums. name: for example a parameter's. scope: model chunk, optimizer or ''."""

    phase: Phase
    kind: Kind
    name: str
    scope: str = ""

    def hash(self) -> bytes:
        """16 bytes that stand for the identity, the same in every file."""
        text = json.dumps([self.phase, self.kind, self.name, self.scope])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f" [{self.scope}]" if self.scope else "")


@dataclass(frozen=True, order=True)
class Form:
    """dtype: torch's name without `torch.`, or `float` / `int` / `bytes` for Python values."""

    dtype: str
    shape: tuple[int, ...]

    def hash(self) -> bytes:
        """8 bytes, the same in every file."""
        return hashlib.blake2b(json.dumps([self.dtype, self.shape]).encode(), digest_size=8).digest()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Flag(IntFlag):
    """VALUE: output[0] is the value's float64 bit pattern, output[1] a digest word of its original bytes.
    SKIPPED: too large, outputs are 0. INPUT: the input digest is known."""

    NONE = 0
    VALUE = 1
    SKIPPED = 2
    INPUT = 4


RECORD = np.dtype(
    [
        ("site", "<u4"),
        ("form", "<u4"),
        ("occurrence", "<u4"),
        ("flags", "<u4"),
        ("input", "<u8"),
        ("output", "<u8", (2,)),
    ]
)
"""One record, 40 bytes; `site` and `form` number the file's tables in order of first use."""

_ROW = np.dtype(
    [("site", "<u8", (2,)), ("form", "<u8"), ("occurrence", "<u4"), ("flags", "<u4"), ("input", "<u8"), ("output", "<u8", (2,))]
)


def block_digest(
    moment: Moment, step: int, rung: int, records: NDArray[np.void], sites: NDArray[np.uint64], forms: NDArray[np.uint64]
) -> bytes:
    """16 bytes over all records of a block, whatever order they were taken in.

    records: RECORD, shape (n,). sites: uint64 (number of sites, 2), the hashes of the file's site table. forms: uint64
    (number of forms,). Each record becomes a row without file-local numbers; rows are sorted by site hash and
    occurrence and hashed with blake2b together with moment, step, rung and their number.
    """
    rows = np.empty(len(records), dtype=_ROW)
    rows["site"] = sites[records["site"]]
    rows["form"] = forms[records["form"]]
    for name in ("occurrence", "flags", "input", "output"):
        rows[name] = records[name]
    order = np.lexsort((rows["occurrence"], rows["site"][:, 1], rows["site"][:, 0]))
    head = b"samebits-block-1" + int(moment).to_bytes(1, "little") + rung.to_bytes(1, "little")
    head += step.to_bytes(8, "little") + len(records).to_bytes(8, "little")
    return hashlib.blake2b(head + rows[order].tobytes(), digest_size=16).digest()


def next_chain(chain: bytes, digest: bytes) -> bytes:
    """Running digest of all blocks so far; starts as 16 zero bytes."""
    return hashlib.blake2b(b"samebits-chain-1" + chain + digest, digest_size=16).digest()


NO_CHAIN = bytes(16)
