"""One rank's traced block in both arms, in order of execution: what stands before a difference, and beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from samebits.compare.records import BlockDifference, Item, Side
from samebits.fingerprint.records import Flag, Kind, Site, inputs_of

Arm = Literal["reference", "candidate"]


@dataclass(frozen=True)
class Beside:
    """One identity in both arms. reference, candidate: rows; None where it is not there."""

    reference: int | None
    candidate: int | None
    same_input: bool | None
    same_output: bool
    partial: bool = False
    """Whether an input was too large to be read, in either arm."""


@dataclass(frozen=True)
class Trail:
    """The records of one block in order of execution."""

    block: BlockDifference

    @property
    def reference(self) -> Side:
        return self.block.reference

    @property
    def candidate(self) -> Side:
        return self.block.candidate

    def ordinal(self, item: Item) -> int:
        """Return its number among the records of its kind, name and scope, whatever their phase."""
        side, row = self.at(item)
        return sum(1 for other in _rows(side, _identity(item.site)) if other < row)

    def at(self, item: Item) -> tuple[Side, int]:
        """Return its side and row, in the reference where it is there, else in the candidate."""
        if item.reference is not None:
            return self.reference, item.reference
        return self.candidate, item.candidate or 0

    def number(self, item: Item) -> int:
        """Return a message's number, stored as its input digest, which sender and receiver share."""
        side, row = self.at(item)
        return int(side.records[row]["input"])

    def numbered(self, kind: Kind, name: str, scope: str, number: int) -> Beside | None:
        """Return the message of this number; None where one of the arms has none."""
        found = [
            next((row for row in _rows(side, (kind, name, scope)) if int(side.records[row]["input"]) == number), None)
            for side in (self.reference, self.candidate)
        ]
        return None if None in found else self.beside(*found)

    def nth(self, kind: Kind, name: str, scope: str, number: int) -> Beside:
        """Return the record with this number, from 0, among those of a kind, name and scope."""
        found = [
            next(_skip(_rows(side, (kind, name, scope)), number), None) for side in (self.reference, self.candidate)
        ]
        return self.beside(*found)

    def beside(self, row: int | None, other: int | None) -> Beside:
        if row is None or other is None:
            return Beside(row, other, same_input=None, same_output=False)
        ours, theirs = self.reference.records[row], self.candidate.records[other]
        known = int(ours["flags"] & theirs["flags"]) & Flag.INPUT
        same = bool((ours["output"] == theirs["output"]).all()) and self.reference.form(row) == self.candidate.form(
            other
        )
        partial = bool(int(ours["flags"] | theirs["flags"]) & Flag.PARTIAL)
        return Beside(row, other, bool(ours["input"] == theirs["input"]) if known else None, same, partial)

    def sites_before(self, item: Item) -> Iterator[Site]:
        """Yield the sites of all records before an item, nearest first; they are equal where the item differs first."""
        side, row = self.at(item)
        for number in range(row - 1, -1, -1):
            yield side.site(number)

    def inputs_at(self, arm: Arm | None, row: int) -> int | None:
        """Return how many tensors the input digest of a record covers; None: not known."""
        flags = int(self.side(arm).records[row]["flags"])
        return inputs_of(flags) if flags & Flag.INPUT else None

    def side(self, arm: Arm | None) -> Side:
        """Return an arm's block, the reference's where none is named."""
        return self.candidate if arm == "candidate" else self.reference

    def surplus(self, item: Item) -> Arm | None:
        """Return the arm that has one record more of this kind, name and scope, inserted at this item.

        That is the arm whose next such record equals the other arm's record at this place.
        """
        sides = (self.reference, item.reference), (self.candidate, item.candidate)
        arms: tuple[Arm, Arm] = ("reference", "candidate")
        rows = [list(_rows(side, _identity(item.site))) for side, _ in sides]
        for arm, (side, row), (other, there), own, others in zip(
            arms, sides, reversed(sides), rows, reversed(rows), strict=True
        ):
            if len(own) <= len(others):
                continue
            following = next((one for one in own if row is not None and one > row), None)
            if following is not None and there is not None and _equal(side, following, other, there):
                return arm
        return None

    def alike(self, site: Site) -> Iterator[tuple[int, bool]]:
        """Yield (row, whether the output differs) of records of this kind and name, in any scope, with equal inputs."""
        differing = {item.reference: item for item in self.block.items if item.reference is not None}
        name = site.name.partition("#")[0]
        kin = [
            number
            for number, other in enumerate(self.reference.file.sites)
            if other.kind is site.kind and other.name.partition("#")[0] == name
        ]
        for row in map(int, np.flatnonzero(np.isin(self.reference.records["site"], kin))):
            item = differing.get(row)
            if item is None or (item.same_input and item.candidate is not None):
                yield row, item is not None

    def is_partial(self, item: Item) -> bool:
        """Return whether an input was too large to be read."""
        side, row = self.at(item)
        return bool(side.records[row]["flags"] & Flag.PARTIAL)


def _equal(side: Side, row: int, other: Side, there: int) -> bool:
    """Return whether two records of one site are equal, whatever their occurrences."""
    ours, theirs = side.records[row], other.records[there]
    same = all(np.array_equal(ours[name], theirs[name]) for name in ("flags", "input", "output"))
    return same and side.form(row) == other.form(there)


def _identity(site: Site) -> tuple[Kind, str, str]:
    return site.kind, site.name, site.scope


def _rows(side: Side, identity: tuple[Kind, str, str]) -> Iterator[int]:
    numbers = [number for number, site in enumerate(side.file.sites) if _identity(site) == identity]
    rows: Iterator[int] = map(int, np.flatnonzero(np.isin(side.records["site"], numbers)))
    return rows


def _skip(rows: Iterator[int], number: int) -> Iterator[int]:
    for _ in range(number):
        next(rows, None)
    return rows
