"""Waivers: differences that a recipe lets stand while they reach nothing else."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.compare.records import Item
from samebits.compare.results import WaivedItem
from samebits.spec.questions import Waiver


@dataclass(frozen=True)
class Waivers:
    """Only another value is waived: an item that one arm lacks, skipped, or has in another form, is not covered."""

    entries: Sequence[Waiver]

    def cover(self, item: Item) -> bool:
        name = f"{item.site.kind}:{item.site.name}"
        return item.same_form and any(_matches(waiver, name) for waiver in self.entries)

    def items(self, seen: frozenset[str], *, hold: bool) -> tuple[WaivedItem, ...]:
        """seen: differences that the waivers covered. hold: whether nothing else differed."""
        found = []
        for waiver in self.entries:
            was_seen = any(_matches(waiver, name) for name in seen)
            found.append(WaivedItem(item=waiver.item, reason=waiver.reason, holds=hold or not was_seen, seen=was_seen))
        return tuple(found)

    def without(self, items: frozenset[str]) -> Waivers:
        """Those that match none of these items."""
        return Waivers([waiver for waiver in self.entries if not any(_matches(waiver, name) for name in items)])


NONE = Waivers(())


def _matches(waiver: Waiver, name: str) -> bool:
    """name: kind:name. The kind is compared as it is, only the name is a pattern."""
    kind, _, pattern = waiver.item.partition(":")
    own_kind, _, own = name.partition(":")
    return kind == own_kind and (own == pattern or fnmatch.fnmatchcase(own, pattern))
