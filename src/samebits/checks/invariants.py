"""What must hold between the ranks of one artifact, and what was found: nouns of `samebits check`.

The records of one rank by kind, as an invariant looks at them; sites and forms have one number on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samebits.compare.certify import Certified
from samebits.compare.records import opened
from samebits.fingerprint.format import Coordinates, ranks_text
from samebits.fingerprint.reader import Block, FingerprintFile, block_text
from samebits.fingerprint.records import RUNGS, Flag, Form, Kind, Moment, Site
from samebits.spec.verdicts import Verdict

SPELLED_OUT = 32
"""Breaches of one invariant that are listed."""


@dataclass(frozen=True, kw_only=True)
class Breach:
    """moment, step: of the block. ranks: those that are apart. item: what they should have had alike, or not alike."""

    moment: str
    step: int
    ranks: str
    item: str
    explanation: str

    def __str__(self) -> str:
        block = block_text(Moment[self.moment.upper()], self.step)
        ranks = f"rank{'s' * (not self.ranks.isdigit())} {self.ranks}"
        return f"{block}, {ranks}: {self.item}: {self.explanation}"


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """checked: comparisons made. violations: those that failed; violated: the first of them. unchecked: why none was
    made; empty where some were."""

    name: str
    meaning: str
    checked: int
    violations: int
    violated: tuple[Breach, ...]
    unchecked: str

    @property
    def verdict(self) -> Verdict:
        if self.violations:
            return "fail"
        return "pass" if self.checked else "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One artifact held against itself. problem: why it is no evidence; None exactly where it is certified."""

    path: str
    arm: str
    run_fingerprint: str
    verdict: Verdict
    problem: str | None
    invariants: tuple[Invariant, ...]


def verdict_of(invariants: Iterable[Invariant]) -> Verdict:
    """Nothing checked is no pass."""
    verdicts = {one.verdict for one in invariants}
    if "fail" in verdicts:
        return "fail"
    return "pass" if "pass" in verdicts else "inconclusive"


@dataclass(frozen=True)
class BrokenPlace:
    moment: Moment
    step: int


class Tally:
    """Counts the comparisons of one invariant. unchecked: what is said where there was none."""

    def __init__(self, name: str, meaning: str, unchecked: str) -> None:
        self.unchecked = unchecked
        self._name, self._meaning = name, meaning
        self._checked = 0
        self._breaches: list[Breach] = []

    def held(self, comparisons: int = 1) -> None:
        self._checked += comparisons

    def broken(self, place: BrokenPlace, ranks: Iterable[int], item: str, explanation: str) -> None:
        self._checked += 1
        where = {"moment": place.moment.name.lower(), "step": place.step, "ranks": ranks_text(ranks)}
        self._breaches.append(Breach(**where, item=item, explanation=explanation))  # type: ignore[arg-type]

    def result(self) -> Invariant:
        """The earliest breaches first."""
        breaches = sorted(self._breaches, key=lambda breach: breach.step)
        return Invariant(
            name=self._name,
            meaning=self._meaning,
            checked=self._checked,
            violations=len(breaches),
            violated=tuple(breaches[:SPELLED_OUT]),
            unchecked="" if self._checked else self.unchecked,
        )


Rows = NDArray[np.void]
"""RECORD, shape (n,), without those that were too large to be fingerprinted."""


@dataclass
class Names:
    """Number of each site and form, the same for all ranks."""

    sites: dict[Site, int] = field(default_factory=dict)
    forms: dict[Form, int] = field(default_factory=dict)
    site_of: list[Site] = field(default_factory=list)

    def number_sites(self, sites: list[Site]) -> NDArray[np.uint32]:
        for site in sites:
            if site not in self.sites:
                self.sites[site] = len(self.sites)
                self.site_of.append(site)
        return np.array([self.sites[site] for site in sites], np.uint32)

    def number_forms(self, forms: list[Form]) -> NDArray[np.uint32]:
        return np.array([self.forms.setdefault(form, len(self.forms)) for form in forms], np.uint32)


@dataclass(frozen=True)
class RankRows:
    """note: what the rank wrote of its parameters; empty where it did not. in_flight: (step, name) of what it launched
    and did not wait for in that step."""

    rank: int
    coordinates: Coordinates
    note: dict[str, Any]
    in_flight: frozenset[tuple[int, str]]
    names: Names
    _file: FingerprintFile
    _sites: NDArray[np.uint32]
    _forms: NDArray[np.uint32]
    _kinds: dict[Kind, NDArray[np.bool_]]
    _chosen: dict[str, NDArray[np.bool_]]

    @property
    def blocks(self) -> Iterator[tuple[BrokenPlace, Block]]:
        for block in self._file.blocks:
            yield BrokenPlace(block.moment, block.step), block

    def rows(self, block: Block, *kinds: Kind) -> Rows:
        """In the order in which they were recorded."""
        records = self._file.records(block)
        wanted = np.any([self._of_kind(kind)[records["site"]] for kind in kinds], axis=0)
        found: Rows = records[wanted & (records["flags"] & int(Flag.SKIPPED) == 0)].copy()
        found["site"], found["form"] = self._sites[found["site"]], self._forms[found["form"]]
        return found

    def chosen(self, rows: Rows, label: str, choose: Callable[[Site], bool]) -> Rows:
        """Those of chosen sites. label: of the choice, the same at each call."""
        if label not in self._chosen:
            mask = np.zeros(len(self.names.site_of), bool)
            mask[self._sites] = [choose(site) for site in self._file.sites]
            self._chosen[label] = mask
        found: Rows = rows[self._chosen[label][rows["site"]]]
        return found

    def site(self, row: np.void) -> Site:
        return self.names.site_of[int(row["site"])]

    def _of_kind(self, kind: Kind) -> NDArray[np.bool_]:
        if kind not in self._kinds:
            self._kinds[kind] = np.array([site.kind is kind for site in self._file.sites] or [False], bool)
        return self._kinds[kind]


def is_traced(block: Block) -> bool:
    return RUNGS.index(block.rung) >= RUNGS.index("boundary")


def read_ranks(certified: Certified) -> Iterator[RankRows]:
    """One after the other: no more than one file is open at a time."""
    names = Names()
    for rank in range(len(certified.manifest.ranks)):
        file = opened(certified, rank)
        note = next((note for note in file.notes if note.get("type") == "parameters"), {})
        aloft = frozenset((one["step"], one["name"]) for one in file.notes if one.get("type") == "in-flight")
        numbers = names.number_sites(file.sites), names.number_forms(file.forms)
        yield RankRows(rank, certified.manifest.ranks[rank].coordinates, note, aloft, names, file, *numbers, {}, {})


def digest_text(row: np.void) -> str:
    return f"{int(row['output'][0]):016x}"


def outcome(row: np.void) -> tuple[int, int, int]:
    """Form and output."""
    return int(row["form"]), int(row["output"][0]), int(row["output"][1])
