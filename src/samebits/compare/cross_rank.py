"""Follows a difference across ranks: whether what a collective or message brought was made by another rank.

Ranks share no clock. What they share is the order of the collectives of one group, the so many-th of one member being
the so many-th of all, and the number that both sides give a message as they launch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from samebits.compare.align import Pairing
from samebits.compare.records import Item, RankRecords
from samebits.compare.traced_block import Beside, Trail
from samebits.fingerprint.format import ranks_of
from samebits.fingerprint.records import TRACED, Kind

_FUNCTIONAL = ("_c10d_functional.", "_c10d_functional_autograd.", "_dtensor.")


class DifferenceSource(StrEnum):
    """Origin of a rank's first difference. OWN: the rank itself. RECEIVED: from other ranks. SHARED: the
    collective or message itself, whose inputs are equal on every member. FOUND: it was there, and nothing recorded
    made it: a hidden writer of this rank, or another rank through a reduction that is not seen (torch's DDP).
    UNSEEN: from ranks that were not traced."""

    OWN = "own"
    FOUND = "found"
    RECEIVED = "received"
    SHARED = "shared"
    UNSEEN = "unseen"


@dataclass(frozen=True)
class Link:
    """Where a difference came from. ranks: those that sent it, that were not traced, or that took part, by source."""

    source: DifferenceSource
    ranks: frozenset[int] = frozenset()


class Links:
    """Traces differences of one pair of blocks, `at`. trails: by rank, of the ranks that differ there."""

    def __init__(self, pairing: Pairing, at: int, trails: Mapping[int, Trail]) -> None:
        self._pairing = pairing
        self._at = at
        self._trails = dict(trails)

    def of(self, rank: int, item: Item) -> Link:
        """Return where a rank's first difference came from."""
        kind = item.site.kind
        if kind is Kind.COLLECTIVE and self._came_in(item):
            return self._of_collective(rank, item)
        if kind is Kind.RECEIVE and self._came_in(item):
            return self._of_message(rank, item)
        return Link(DifferenceSource.OWN if _made_here(item) else DifferenceSource.FOUND)

    @staticmethod
    def _came_in(item: Item) -> bool:
        """Return whether both arms have it, and this rank's own input is not known to differ."""
        return not item.lone and item.same_input is not False

    def _of_collective(self, rank: int, item: Item) -> Link:
        number = self._trails[rank].ordinal(item)
        members = ranks_of(item.site.scope.removeprefix("ranks ")) - {rank}
        # The second output of one call has the same inputs as the first.
        name = item.site.name.partition("#")[0]
        beside = {member: self._nth(member, Kind.COLLECTIVE, name, item.site.scope, number) for member in members}
        differing = {member for member, found in beside.items() if found is not None and found.same_input is False}
        if differing:
            return Link(DifferenceSource.RECEIVED, frozenset(differing))
        if missing := {member for member, found in beside.items() if found is None or found.partial}:
            return Link(DifferenceSource.UNSEEN, frozenset(missing))
        return Link(DifferenceSource.SHARED, frozenset({rank, *members}))

    def _of_message(self, rank: int, item: Item) -> Link:
        sender = int(item.site.scope.removeprefix("from "))
        name = item.site.name.replace("recv", "send", 1)
        number = self._trails[rank].number(item)
        sent = self._trail(sender).numbered(Kind.SEND, name, f"to {rank}", number) if self._sees(sender) else None
        if sent is None:
            return Link(DifferenceSource.UNSEEN, frozenset({sender}))
        return Link(DifferenceSource.SHARED if sent.same_output else DifferenceSource.RECEIVED, frozenset({sender}))

    def _nth(self, rank: int, kind: Kind, name: str, scope: str, number: int) -> Beside | None:
        """Return another rank's record with this number; None where that rank did not record it."""
        if not self._sees(rank):
            return None
        found = self._trail(rank).nth(kind, name, scope, number)
        return None if found.reference is None or found.candidate is None else found

    def _sees(self, rank: int) -> bool:
        return self._pairing.is_traced(rank, self._at)

    def _trail(self, rank: int) -> Trail:
        if rank not in self._trails:
            records = RankRecords(self._pairing, rank)
            self._trails[rank] = Trail(records.compare(self._pairing.pairs[self._at]))
        return self._trails[rank]


def _made_here(item: Item) -> bool:
    """Return whether this rank itself did what differs, as far as its own record tells."""
    site = item.site
    if site.kind is Kind.GIVEN or (site.kind is Kind.OP and site.name.startswith(_FUNCTIONAL)):
        # A collective as an operation: what other ranks gave is no input of it here.
        return False
    if item.lone or not item.same_form or site.kind is Kind.BATCH:
        return True
    if item.same_input is False:
        return site.kind is Kind.OP
    return site.kind in TRACED
