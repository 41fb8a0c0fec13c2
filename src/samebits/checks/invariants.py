"""What must hold between the ranks of one artifact, and what was found: nouns of `samebits check`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from samebits.fingerprint.ranks import ranks_text
from samebits.fingerprint.reader import block_text
from samebits.fingerprint.records import Moment
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
class Place:
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

    def broken(self, place: Place, ranks: Iterable[int], item: str, explanation: str) -> None:
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
