"""Which block of the candidate is held against which block of the reference, by moment and step, never by position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from samebits.compare.certify import Certified
from samebits.compare.resume import saved_counterpart
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.records import RUNGS, Moment

Mask = NDArray[np.bool_]
"""bool, shape (ranks, pairs)."""

DIGEST_BYTES = 16

_IN_A_STEP = {Moment.STEP: 0, Moment.SAVED: 1, Moment.RESTORED: 2, Moment.FINAL: 3}


@dataclass(frozen=True)
class Pair:
    """moment, step: of the candidate's block. reference, candidate: columns of the two tables. same_moment: False where
    a restored state is held against the saved one; their digests differ by the moment alone."""

    moment: Moment
    step: int
    reference: int
    candidate: int
    same_moment: bool


@dataclass(frozen=True)
class Pairing:
    """Two certified artifacts of one world and digest, block by block in order of time."""

    reference: Certified
    candidate: Certified

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        columns = _columns(self.reference.manifest)
        found = (_pair(columns, key, column) for key, column in _columns(self.candidate.manifest).items())
        return tuple(sorted((pair for pair in found if pair), key=lambda pair: (pair.step, _IN_A_STEP[pair.moment])))

    @cached_property
    def unmatched(self) -> tuple[tuple[Moment, int], ...]:
        """Blocks of the candidate that nothing of the reference can be held against."""
        columns = _columns(self.reference.manifest)
        own = _columns(self.candidate.manifest)
        return tuple(key for key, column in own.items() if _pair(columns, key, column) is None)

    @cached_property
    def same_rung(self) -> Mask:
        ours, theirs = self.rungs
        same: Mask = ours == theirs
        return same

    @cached_property
    def rungs(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Numbers in RUNGS, shape (ranks, pairs), of reference and candidate."""
        ours = _rungs(self.reference.manifest)[:, [pair.reference for pair in self.pairs]]
        theirs = _rungs(self.candidate.manifest)[:, [pair.candidate for pair in self.pairs]]
        return ours, theirs

    @cached_property
    def suspects(self) -> Mask:
        """Blocks at equal rungs whose digests differ, or whose digests cannot tell (restored against saved)."""
        ours = _digests(self.reference)[:, [pair.reference for pair in self.pairs]]
        theirs = _digests(self.candidate)[:, [pair.candidate for pair in self.pairs]]
        differ: Mask = (ours != theirs).any(axis=2)
        differ[:, [not pair.same_moment for pair in self.pairs]] = True
        return differ & self.same_rung


def _columns(manifest: Manifest) -> dict[tuple[Moment, int], int]:
    return {(Moment[block.moment.upper()], block.step): column for column, block in enumerate(manifest.blocks)}


def _pair(columns: dict[tuple[Moment, int], int], key: tuple[Moment, int], candidate: int) -> Pair | None:
    """A restored state without an equal counterpart is held against the state saved at that step."""
    moment, step = key
    if key in columns:
        return Pair(moment, step, columns[key], candidate, same_moment=True)
    saved = saved_counterpart(columns, moment, step)
    return None if saved is None else Pair(moment, step, saved, candidate, same_moment=False)


def _rungs(manifest: Manifest) -> NDArray[np.uint8]:
    """uint8, shape (ranks, blocks)."""
    found = np.empty((len(manifest.ranks), len(manifest.blocks)), np.uint8)
    for column, block in enumerate(manifest.blocks):
        found[:, column] = np.repeat(
            [RUNGS.index(rung) for rung, _ in block.rungs], [count for _, count in block.rungs]
        )
    return found


def _digests(certified: Certified) -> NDArray[np.uint64]:
    """uint64, shape (ranks, blocks, 2)."""
    words: NDArray[np.uint64] = np.ascontiguousarray(certified.table).view("<u8")[:, :, : DIGEST_BYTES // 8]
    return words
