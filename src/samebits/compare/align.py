"""Which block of the candidate is held against which block of the reference: by moment and step, never by position.

A restored arm is also compared before its first step: the state right after the restore is held against the state that
the reference saved. These two blocks have different moments, which enter their digests, so the digests always differ
and the records are compared one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from samebits.compare.certify import Certified
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.records import RUNGS, Moment
from samebits.spec.plan import Plan

Mask = NDArray[np.bool_]
"""bool, shape (ranks, pairs)."""

DIGEST_BYTES = 16

_ORDER_IN_STEP = {Moment.STEP: 0, Moment.SAVED: 1, Moment.RESTORED: 2, Moment.FINAL: 3}


@dataclass(frozen=True)
class Pair:
    """Two blocks that are compared.

    moment, step: of the candidate's block. reference, candidate: columns of the two tables. same_moment: False where a
    restored state is held against a saved one, whose digests differ by the moment alone.
    """

    moment: Moment
    step: int
    reference: int
    candidate: int
    same_moment: bool


@dataclass(frozen=True)
class Pairing:
    """Two certified artifacts with the same number of ranks and digest, paired block by block in order of time."""

    reference: Certified
    candidate: Certified

    @cached_property
    def _matched(self) -> dict[tuple[Moment, int], Pair | None]:
        """The pair of each block of the candidate; None where the reference has no counterpart."""
        columns = _columns(self.reference.manifest)
        found: dict[tuple[Moment, int], Pair | None] = {}
        for (moment, step), candidate in _columns(self.candidate.manifest).items():
            counterpart = moment
            if moment is Moment.RESTORED and (moment, step) not in columns:
                counterpart = Moment.SAVED
            column = columns.get((counterpart, step))
            same = counterpart is moment
            found[moment, step] = None if column is None else Pair(moment, step, column, candidate, same)
        return found

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        found = (pair for pair in self._matched.values() if pair)
        return tuple(sorted(found, key=lambda pair: (pair.step, _ORDER_IN_STEP[pair.moment])))

    @property
    def unmatched(self) -> tuple[tuple[Moment, int], ...]:
        """Blocks of the candidate without a counterpart in the reference."""
        return tuple(key for key, pair in self._matched.items() if pair is None)

    @cached_property
    def rungs(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Indices into RUNGS of the paired blocks of reference and candidate, each of shape (ranks, pairs)."""
        ours = _rungs(self.reference.manifest)[:, [pair.reference for pair in self.pairs]]
        theirs = _rungs(self.candidate.manifest)[:, [pair.candidate for pair in self.pairs]]
        return ours, theirs

    @cached_property
    def same_rung(self) -> Mask:
        ours, theirs = self.rungs
        same: Mask = ours == theirs
        return same

    @cached_property
    def suspects(self) -> Mask:
        """Blocks at equal rungs whose digests differ, or whose digests cannot tell (restored against saved)."""
        ours = _digests(self.reference)[:, [pair.reference for pair in self.pairs]]
        theirs = _digests(self.candidate)[:, [pair.candidate for pair in self.pairs]]
        differ: Mask = (ours != theirs).any(axis=2)
        differ[:, [not pair.same_moment for pair in self.pairs]] = True
        return differ & self.same_rung

    def is_traced(self, rank: int, at: int, rung: str = "boundary") -> bool:
        """Return whether both arms recorded this rank's block of pair `at` at this rung or above."""
        return all(int(side[rank, at]) >= RUNGS.index(rung) for side in self.rungs)


def restart(plan: Plan) -> int | None:
    """Return the step whose checkpoint an arm started from, or None where it started from scratch."""
    return None if plan.restore is None else plan.first_step - 1


def _columns(manifest: Manifest) -> dict[tuple[Moment, int], int]:
    return {(Moment[block.moment.upper()], block.step): column for column, block in enumerate(manifest.blocks)}


def _rungs(manifest: Manifest) -> NDArray[np.uint8]:
    """Indices into RUNGS, shape (ranks, blocks). The manifest stores them run-length encoded over ranks."""
    found = np.empty((len(manifest.ranks), len(manifest.blocks)), np.uint8)
    for column, block in enumerate(manifest.blocks):
        numbers, counts = [RUNGS.index(rung) for rung, _ in block.rungs], [count for _, count in block.rungs]
        found[:, column] = np.repeat(numbers, counts)
    return found


def _digests(certified: Certified) -> NDArray[np.uint64]:
    """Block digests as pairs of words, shape (ranks, blocks, 2)."""
    words: NDArray[np.uint64] = np.ascontiguousarray(certified.table).view("<u8")[:, :, : DIGEST_BYTES // 8]
    return words
