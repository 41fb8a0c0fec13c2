"""What a record is about: its site, its moment and its place in the file's tables.

A record is aligned by identity (phase, kind, name, scope, occurrence), never by position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag, StrEnum

import numpy as np

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
    """Kind of value that was fingerprinted. UPDATE metrics are gradient norm and the like; FORWARD metrics are losses.

    From rung `boundary` on. MODULE: what a module returned; OUTPUT_GRADIENT: the gradient of that. LOCAL_GRADIENT: of a
    parameter, before it is reduced. COLLECTIVE: input at the launch, output at the consumer's wait; scope: its ranks.
    SEND, RECEIVE: one message between pipeline stages; scope: the other rank. RECOMPUTE: what a module returned when it
    was computed again for the backward pass. CALL: a function that computes as a whole, of autograd or of a library.
    From rung `op` on. OP: one dispatched operation. GIVEN: bytes that no seen operation left there, by who reads them:
    `before aten.mm.default`; OVERWRITTEN first where something else was left there before.
    """

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
    MODULE = "module"
    OUTPUT_GRADIENT = "output-gradient"
    LOCAL_GRADIENT = "local-gradient"
    COLLECTIVE = "collective"
    SEND = "send"
    RECEIVE = "receive"
    RECOMPUTE = "recompute"
    CALL = "call"
    OP = "op"
    GIVEN = "given"


OVERWRITTEN = "overwritten "
"""What the name of a GIVEN begins with where a writer that nobody sees changed what a seen one left. It has sites of
its own: that it happens in one run alone must not renumber what happens in both."""

TRACED = frozenset(
    {
        *(Kind.MODULE, Kind.OUTPUT_GRADIENT, Kind.LOCAL_GRADIENT, Kind.COLLECTIVE, Kind.SEND, Kind.RECEIVE),
        *(Kind.RECOMPUTE, Kind.CALL, Kind.OP, Kind.GIVEN),
    }
)
"""Recorded while a step computes, in the order in which things happen on a rank."""


@dataclass(frozen=True, order=True)
class Site:
    """phase and kind: see the enums. name: for example a parameter's. scope: model chunk, optimizer or ''."""

    phase: Phase
    kind: Kind
    name: str
    scope: str = ""

    def hash(self) -> bytes:
        return site_hash(self.phase, self.kind, self.name, self.scope)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f" [{self.scope}]" if self.scope else "")


@dataclass(frozen=True, order=True)
class Form:
    """dtype: torch's name without `torch.`, or `float` / `int` / `bytes` for Python values."""

    dtype: str
    shape: tuple[int, ...]

    def hash(self) -> bytes:
        return form_hash(self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def site_hash(phase: str, kind: str, name: str, scope: str) -> bytes:
    """16 bytes that stand for the identity of a site, the same in every file."""
    # The length tells where the name ends: no two sites make one text.
    text = f"{phase} {kind} {len(name)} {name}{scope}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def form_hash(dtype: str, shape: Sequence[int]) -> bytes:
    """8 bytes that stand for dtype and shape, the same in every file."""
    text = f"{dtype} {','.join(map(str, shape))}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class Flag(IntFlag):
    """VALUE: output[0] is the value's float64 bit pattern, output[1] a digest word of its original bytes.
    SKIPPED: too large, outputs are 0. INPUT: the input digest is known. STRIDED: a tensor among inputs or outputs is
    not contiguous. PARTIAL: an input was too large, so that equal input digests do not show equal inputs. Bits 8 to 15
    hold how many tensors the input digest is of, 255 standing for more."""

    NONE = 0
    VALUE = 1
    SKIPPED = 2
    INPUT = 4
    STRIDED = 8
    PARTIAL = 16


INPUTS_SHIFT = 8
MOST_INPUTS = 255
KNOWN_FLAGS = int(Flag.VALUE | Flag.SKIPPED | Flag.INPUT | Flag.STRIDED | Flag.PARTIAL) | MOST_INPUTS << INPUTS_SHIFT


def inputs_of(flags: int) -> int:
    """Return how many tensors a record's input digest covers."""
    return flags >> INPUTS_SHIFT & MOST_INPUTS


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
"""One record, 40 bytes; `site` and `form` number the file's tables in order of first use. The first 16 bytes are its
layout, the same from step to step; see `samebits.fingerprint.block`."""
