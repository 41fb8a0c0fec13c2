"""Invariants of what ranks hand to each other, and of what one rank computes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from samebits.checks.invariants import BrokenPlace, Invariant, RankRows, Tally, is_traced, outcome
from samebits.fingerprint.format import ranks_of
from samebits.fingerprint.records import Flag, Kind

UNTRACED = "no step was recorded at rung boundary"
Outcome = tuple[int, int, int]
"""Form and digest."""


class Shared(NamedTuple):
    """A collective that leaves the same on every member. names: of torch.distributed's functions."""

    invariant: str
    meaning: str
    names: frozenset[str]


SHARED = (
    Shared("all-reduce", "what an all-reduce leaves is equal on its members", frozenset({"all_reduce"})),
    Shared(
        "all-gather",
        "what an all-gather leaves is equal on its members",
        frozenset({"all_gather", "all_gather_into_tensor"}),
    ),
    Shared("broadcast", "what a broadcast leaves is equal on its members", frozenset({"broadcast"})),
)


@dataclass
class _Left:
    """What collectives of one name and one group left in one block on the first member that was read. seen: members
    that had any."""

    rank: int
    outcomes: list[Outcome]
    seen: set[int] = field(default_factory=set)


class CollectivesOfMembers:
    """Members are held against the one with the lowest rank, call by call."""

    def __init__(self) -> None:
        self._traced: dict[BrokenPlace, set[int]] = {}
        self._left: dict[tuple[BrokenPlace, str, str], _Left] = {}
        self._tallies: dict[str, Tally] = {}
        self._in_flight: dict[tuple[int, str], set[int]] = {}
        for shared in SHARED:
            tally = Tally(shared.invariant, shared.meaning, "no ranks had one together")
            self._tallies |= dict.fromkeys(shared.names, tally)

    def see(self, rank: RankRows) -> None:
        for call in rank.in_flight:
            self._in_flight.setdefault(call, set()).add(rank.rank)
        for place, block in rank.blocks:
            if not is_traced(block):
                continue
            self._traced.setdefault(place, set()).add(rank.rank)
            own: dict[tuple[str, str], list[Outcome]] = {}
            for row in rank.rows(block, Kind.COLLECTIVE):
                site = rank.site(row)
                if site.name.partition("#")[0] in self._tallies:
                    own.setdefault((site.name, site.scope), []).append(outcome(row))
            for (name, scope), outcomes in own.items():
                self._member(place, name, scope, rank.rank, outcomes)

    def _member(self, place: BrokenPlace, name: str, scope: str, rank: int, outcomes: list[Outcome]) -> None:
        left = self._left.setdefault((place, name, scope), _Left(rank, outcomes))
        left.seen.add(rank)
        if left.rank != rank:
            self._compare(place, f"{name} [{scope}]", (left.rank, rank), (left.outcomes, outcomes))

    def _compare(
        self, place: BrokenPlace, item: str, ranks: tuple[int, int], both: tuple[list[Outcome], list[Outcome]]
    ) -> None:
        tally = self._tallies[item.partition(" ")[0].partition("#")[0]]
        ours, theirs = both
        if Counter(ours) == Counter(theirs):
            # Ranks may wait for calls in another order than the one they were launched in.
            tally.held(len(ours))
            return
        equal = sum((Counter(ours) & Counter(theirs)).values())
        tally.held(equal)
        aloft = self._in_flight.get((place.step, item), set()) & set(ranks)
        if aloft:
            # Calls that one of them did not see the end of have no counterpart; any beyond those differ.
            apart = min(len(ours), len(theirs)) - equal
            if apart and len(aloft) == 1:
                tally.broken(place, ranks, item, f"{apart} of its calls left something else")
            return
        if len(ours) != len(theirs):
            tally.broken(
                place, ranks, item, f"rank {ranks[0]} has {len(ours)} calls, rank {ranks[1]} has {len(theirs)}"
            )
            return
        for number, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if one != two:
                tally.broken(place, ranks, f"{item}, call {number}", _apart(ranks, one, two))

    def results(self) -> Iterator[Invariant]:
        for (place, name, scope), left in self._left.items():
            members = ranks_of(scope.removeprefix("ranks ")) & self._traced[place]
            missing = members - left.seen
            if missing and (place.step, f"{name} [{scope}]") not in self._in_flight:
                tally = self._tallies[name.partition("#")[0]]
                tally.broken(place, missing, f"{name} [{scope}]", f"took no part; rank {left.rank} did")
        for tally in dict.fromkeys(self._tallies.values()):
            if not self._traced:
                tally.unchecked = UNTRACED
            yield tally.result()


@dataclass
class _Messages:
    """Of one pair of ranks in one block: ordinal (an input digest, the same on both sides) -> outcome. partial: some
    were received from any source, which has no ordinal, or were still in flight."""

    sent: dict[int, Outcome] = field(default_factory=dict)
    received: dict[int, Outcome] = field(default_factory=dict)
    partial: bool = False


class MessagePairs:
    """Paired by the ordinal that both sides give to a message as they launch it."""

    def __init__(self) -> None:
        meaning = "what a rank received is what the other one sent"
        self._tally = Tally("messages", meaning, "no two recorded ranks had one")
        self._traced: dict[BrokenPlace, set[int]] = {}
        self._messages: dict[tuple[BrokenPlace, int, int], _Messages] = {}
        self._waiting: set[tuple[BrokenPlace, int]] = set()

    def see(self, rank: RankRows) -> None:
        for place, block in rank.blocks:
            if not is_traced(block):
                continue
            self._traced.setdefault(place, set()).add(rank.rank)
            if (place.step, "recv") in rank.in_flight:
                self._waiting.add((place, rank.rank))
            for row in rank.rows(block, Kind.SEND, Kind.RECEIVE):
                site = rank.site(row)
                other = int(site.scope.rpartition(" ")[2])
                if site.kind is Kind.SEND:
                    self._of(place, rank.rank, other).sent[int(row["input"])] = outcome(row)
                elif row["flags"] & Flag.INPUT:
                    self._of(place, other, rank.rank).received[int(row["input"])] = outcome(row)
                else:
                    self._of(place, other, rank.rank).partial = True

    def _of(self, place: BrokenPlace, sender: int, receiver: int) -> _Messages:
        return self._messages.setdefault((place, sender, receiver), _Messages())

    def results(self) -> Iterator[Invariant]:
        for (place, sender, receiver), found in self._messages.items():
            if {sender, receiver} <= self._traced[place]:
                self._compare(place, (sender, receiver), found)
        if not self._traced:
            self._tally.unchecked = UNTRACED
        yield self._tally.result()

    def _compare(self, place: BrokenPlace, ranks: tuple[int, int], found: _Messages) -> None:
        item = f"messages from {ranks[0]} to {ranks[1]}"
        for ordinal, sent in found.sent.items():
            received = found.received.get(ordinal)
            if received == sent:
                self._tally.held()
            elif received is not None:
                self._tally.broken(place, ranks, item, _apart(ranks, sent, received))
        lost, unsent = found.sent.keys() - found.received.keys(), found.received.keys() - found.sent.keys()
        if lost and not found.partial and (place, ranks[1]) not in self._waiting:
            self._tally.broken(place, ranks, item, f"{len(lost)} were sent and not received in this step")
        if unsent:
            self._tally.broken(place, ranks, item, f"{len(unsent)} were received and not sent in this step")


class Recomputed:
    """A module that computes again for the backward pass gives what it gave. In which order is not said: a module that
    is used twice is computed again in reverse."""

    def __init__(self) -> None:
        meaning = "what a module computes again for the backward pass is what it computed first"
        self._tally = Tally("recompute", meaning, "no module was computed again")
        self._traced = False

    def see(self, rank: RankRows) -> None:
        for place, block in rank.blocks:
            self._traced |= is_traced(block)
            first: dict[str, list[Outcome]] = {}
            again: dict[str, list[Outcome]] = {}
            for row in rank.rows(block, Kind.MODULE, Kind.RECOMPUTE) if is_traced(block) else ():
                site = rank.site(row)
                (first if site.kind is Kind.MODULE else again).setdefault(site.name, []).append(outcome(row))
            for name, outcomes in again.items():
                if name in first:
                    self._compare(place, rank.rank, name, (first[name], outcomes))

    def _compare(
        self, place: BrokenPlace, rank: int, name: str, both: tuple[Sequence[Outcome], Sequence[Outcome]]
    ) -> None:
        first, again = both
        surplus = Counter(again) - Counter(first)
        self._tally.held(len(again) - sum(surplus.values()))
        for number, found in enumerate(again):
            if surplus[found]:
                surplus[found] -= 1
                explanation = f"computed again gives {found[1]:016x}, which no first time gave"
                self._tally.broken(place, (rank,), f"recompute:{name}, time {number}", explanation)

    def results(self) -> Iterator[Invariant]:
        if not self._traced:
            self._tally.unchecked = UNTRACED
        yield self._tally.result()


def _apart(ranks: tuple[int, int], one: Outcome, two: Outcome) -> str:
    if one[0] != two[0]:
        return f"ranks {ranks[0]} and {ranks[1]} have other dtypes or shapes"
    return f"rank {ranks[0]} has {one[1]:016x}, rank {ranks[1]} has {two[1]:016x}"
