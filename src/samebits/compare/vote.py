"""From three comparable arms on: which one is odd where they first disagree, and on which ranks and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samebits.compare.align import DIGEST_BYTES
from samebits.compare.certify import Certified
from samebits.compare.divergence import host
from samebits.compare.results import Vote
from samebits.fingerprint.ranks import ranks_text
from samebits.fingerprint.records import Moment

MOST_HOSTS = 16

_ORDER = {"step": 0, "saved": 1, "final": 2}


@dataclass(frozen=True)
class Voter:
    arm: str
    certified: Certified

    def digests(self, moment: str, step: int) -> NDArray[np.uint8] | None:
        """uint8, shape (ranks, 16); None where the arm has no such block."""
        for column, block in enumerate(self.certified.manifest.blocks):
            if (block.moment, block.step) == (moment, step):
                digests: NDArray[np.uint8] = self.certified.table[:, column, :DIGEST_BYTES]
                return digests
        return None


Ballot = list[tuple[Voter, NDArray[np.uint8]]]


def vote(voters: Sequence[Voter]) -> Vote | None:
    """voters: comparable arms without planted faults; a restored one votes on the steps that it has.

    None where there are fewer than three, or where they agree throughout.
    """
    if len(voters) < 3:
        return None
    for moment, step in _places(voters):
        ballot = [(voter, digests) for voter in voters if (digests := voter.digests(moment, step)) is not None]
        if any(not np.array_equal(ballot[0][1], digests) for _, digests in ballot):
            return _counted(ballot, moment, step)
    return None


def _places(voters: Sequence[Voter]) -> list[tuple[str, int]]:
    """A restored state stands alone: it is held against the saved one by the gate `resume`."""
    found = {(block.moment, block.step) for voter in voters for block in voter.certified.manifest.blocks}
    wanted = (place for place in found if place[0] != Moment.RESTORED.name.lower())
    return sorted(wanted, key=lambda place: (place[1], _ORDER[place[0]]))


def _counted(ballot: Ballot, moment: str, step: int) -> Vote:
    arms = tuple(voter.arm for voter, _ in ballot)
    camps: dict[bytes, list[int]] = {}
    for index, (_, digests) in enumerate(ballot):
        camps.setdefault(digests.tobytes(), []).append(index)
    largest = max(camps.values(), key=len)
    apart = np.zeros(len(ballot[0][1]), dtype=bool)
    for _, digests in ballot:
        apart |= (digests != ballot[largest[0]][1]).any(axis=1)
    ranks = [int(rank) for rank in np.flatnonzero(apart)]
    odd = _odd(len(ballot), camps)
    seen = {host(ballot[odd][0].certified, rank) for rank in ranks} if odd is not None else set()
    name = None if odd is None else arms[odd]
    return Vote(
        arms=arms,
        moment=moment,
        step=step,
        ranks=ranks_text(ranks),
        odd=name,
        hosts=tuple(sorted(seen)[:MOST_HOSTS]),
        explanation=_explained(
            arms, name, f"{'' if moment == 'step' else moment + ' at '}step {step}", ranks_text(ranks)
        ),
    )


def _odd(voters: int, camps: dict[bytes, list[int]]) -> int | None:
    """The only one outside a camp of all others."""
    if voters < 3 or len(camps) != 2:
        return None
    smallest = min(camps.values(), key=len)
    return smallest[0] if len(smallest) == 1 else None


def _explained(arms: tuple[str, ...], odd: str | None, place: str, ranks: str) -> str:
    if odd is not None:
        others = ", ".join(arm for arm in arms if arm != odd)
        return f"{odd} is odd: at {place} it alone differs (ranks {ranks}), {others} agree"
    if len(arms) < 3:
        return f"{' and '.join(arms)} disagree at {place} (ranks {ranks}), which no third arm recorded: no majority"
    return f"{', '.join(arms)} disagree at {place} (ranks {ranks}) without one against all others: no majority"
