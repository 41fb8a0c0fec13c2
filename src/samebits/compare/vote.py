"""Majority vote of three or more arms: which one is odd where they first disagree, on which ranks and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samebits.compare.align import DIGEST_BYTES
from samebits.compare.certify import Certified
from samebits.compare.divergence import host
from samebits.compare.results import Vote
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.records import Moment

MOST_HOSTS = 16

_ORDER = {"step": 0, "saved": 1, "final": 2}


@dataclass(frozen=True)
class Voter:
    arm: str
    certified: Certified

    def digests(self, moment: str, step: int) -> NDArray[np.uint8] | None:
        """Return block digests, uint8 of shape (ranks, 16); None where the arm has no such block."""
        for column, block in enumerate(self.certified.manifest.blocks):
            if (block.moment, block.step) == (moment, step):
                digests: NDArray[np.uint8] = self.certified.table[:, column, :DIGEST_BYTES]
                return digests
        return None


def vote(voters: Sequence[Voter]) -> Vote | None:
    """Find the arm that differs from all others where they first disagree.

    voters: comparable arms without planted faults; a restored one votes on the steps that it has. Returns None where
    there are fewer than three, or where they agree throughout.
    """
    if len(voters) < 3:
        return None
    # A restored state is left out: the gate `resume` holds it against the saved one.
    places = {(block.moment, block.step) for voter in voters for block in voter.certified.manifest.blocks}
    places = {place for place in places if place[0] != Moment.RESTORED.name.lower()}
    for moment, step in sorted(places, key=lambda place: (place[1], _ORDER[place[0]])):
        ballot = [(voter, digests) for voter in voters if (digests := voter.digests(moment, step)) is not None]
        if any(not np.array_equal(ballot[0][1], digests) for _, digests in ballot):
            return _counted(ballot, moment, step)
    return None


def _counted(ballot: list[tuple[Voter, NDArray[np.uint8]]], moment: str, step: int) -> Vote:
    names = tuple(voter.arm for voter, _ in ballot)
    camps: dict[bytes, list[int]] = {}
    for index, (_, digests) in enumerate(ballot):
        camps.setdefault(digests.tobytes(), []).append(index)
    largest, smallest = max(camps.values(), key=len), min(camps.values(), key=len)
    apart = np.zeros(len(ballot[0][1]), dtype=bool)
    for _, digests in ballot:
        apart |= (digests != ballot[largest[0]][1]).any(axis=1)
    ranks = [int(rank) for rank in np.flatnonzero(apart)]
    where = f"{'' if moment == 'step' else moment + ' at '}step {step}"
    odd, hosts = None, set()
    if len(ballot) >= 3 and len(camps) == 2 and len(smallest) == 1:
        voter = ballot[smallest[0]][0]
        odd, hosts = voter.arm, {host(voter.certified, rank) for rank in ranks}
        others = ", ".join(name for name in names if name != odd)
        told = f"{odd} is odd: at {where} it alone differs (ranks {ranks_text(ranks)}), {others} agree"
    elif len(ballot) < 3:
        arms = " and ".join(names)
        told = f"{arms} disagree at {where} (ranks {ranks_text(ranks)}), which no third arm recorded: no majority"
    else:
        arms = ", ".join(names)
        told = f"{arms} disagree at {where} (ranks {ranks_text(ranks)}) without one against all others: no majority"
    return Vote(
        arms=names,
        moment=moment,
        step=step,
        ranks=ranks_text(ranks),
        odd=odd,
        hosts=tuple(sorted(hosts)[:MOST_HOSTS]),
        explanation=told,
    )
