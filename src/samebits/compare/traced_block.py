"""One rank's records of one block as they happened, in both arms: what stands before a difference, and beside it."""

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
    """One identity in both arms. None: not there."""

    reference: int | None
    candidate: int | None
    same_input: bool | None
    same_output: bool
    partial: bool = False
    """Whether an input was too large to be read, in either arm."""


@dataclass(frozen=True)
class Trail:
    block: BlockDifference

    @property
    def reference(self) -> Side:
        return self.block.reference

    @property
    def candidate(self) -> Side:
        return self.block.candidate

    def ordinal(self, item: Item) -> int:
        """Which one it is of its kind, name and scope, whatever the phase."""
        side, row = self.at(item)
        return sum(1 for other in _rows(side, _identity(item.site)) if other < row)

    def at(self, item: Item) -> tuple[Side, int]:
        """Where it stands: in the reference, else in the candidate."""
        if item.reference is not None:
            return self.reference, item.reference
        return self.candidate, item.candidate or 0

    def number(self, item: Item) -> int:
        """Of a message: its input digest, by which the other side has it, too."""
        side, row = self.at(item)
        return int(side.records[row]["input"])

    def numbered(self, kind: Kind, name: str, scope: str, number: int) -> Beside | None:
        """The message of this number; None where one of the arms has none."""
        found = [
            next((row for row in _rows(side, (kind, name, scope)) if int(side.records[row]["input"]) == number), None)
            for side in (self.reference, self.candidate)
        ]
        return None if None in found else self.beside(*found)

    def nth(self, kind: Kind, name: str, scope: str, number: int) -> Beside:
        """The so many-th record of this kind, name and scope."""
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
        """Of the records that happened before, the nearest first; all are equal where the item is the first one."""
        side, row = self.at(item)
        for number in range(row - 1, -1, -1):
            yield side.site(number)

    def inputs_at(self, arm: Arm | None, row: int) -> int | None:
        """Tensors that the input digest of this record is of; None: not known."""
        flags = int(self.side(arm).records[row]["flags"])
        return inputs_of(flags) if flags & Flag.INPUT else None

    def side(self, arm: Arm | None) -> Side:
        """The reference, where none is named."""
        return self.candidate if arm == "candidate" else self.reference

    def surplus(self, item: Item) -> Arm | None:
        """The arm whose next record of this kind, name and scope is what this one is in the other arm."""
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
        """(row, whether the output differs) of records of this kind and name, in any scope, with equal inputs."""
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
        """Whether an input was too large to be read."""
        side, row = self.at(item)
        return bool(side.records[row]["flags"] & Flag.PARTIAL)


def _equal(side: Side, row: int, other: Side, there: int) -> bool:
    """Two records of one site, whatever their occurrences."""
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
