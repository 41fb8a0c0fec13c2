"""Which of several variations matters: bisection over runs that differ from the reference or do not.

    found = bisect(("hash-seed", "contention"), lambda wanted, attempt: differs(wanted, attempt))

Sets are tried as growing prefixes, halved: a smallest set of k out of n takes about k (log2 n + 1) runs, where halves
and complements would take up to n^2. Two variations that matter only together are found together. What a decision
rests on is run TRIES times, for a run may differ by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

TRIES = 3
"""Runs of the set that is named, and of every set with one of it left out."""
MOST_RUNS = 40
"""After these bisection gives up."""

Oracle = Callable[[tuple[str, ...], int], bool]
"""Whether a run with these variations differs from the reference. The second argument counts its repeats from 1."""


class Ending(StrEnum):
    """How a bisection ended."""

    NOTHING = "nothing matters"
    MATTERS = "a smallest set matters"
    ALWAYS = "differs without any variation"
    BY_CHANCE = "differs at times"
    GAVE_UP = "gave up"


@dataclass(frozen=True)
class Trial:
    """One set of variations, and whether each of its runs differed."""

    variations: tuple[str, ...]
    differed: tuple[bool, ...]


@dataclass(frozen=True)
class BisectionFinding:
    """culprits: the smallest set that was found, in the order of the variations. others_matter: whether the others
    differ without it; None: not tried. trials: in their order."""

    ending: Ending
    culprits: tuple[str, ...]
    others_matter: bool | None
    trials: tuple[Trial, ...]

    @property
    def runs(self) -> int:
        return sum(len(trial.differed) for trial in self.trials)

    def trial(self, variations: Sequence[str]) -> Trial | None:
        return next((trial for trial in self.trials if set(trial.variations) == set(variations)), None)


def bisect(variations: Sequence[str], differs: Oracle, most: int = MOST_RUNS) -> BisectionFinding:
    """variations: at least one. What the oracle raises ends it."""
    laboratory = _Laboratory(tuple(variations), differs, most)
    try:
        return _search(laboratory)
    except _SpentError:
        return laboratory.finding(Ending.GAVE_UP, laboratory.smallest_seen())


def runs_bound(number: int, most: int = MOST_RUNS) -> int:
    """Runs at worst: every one of `number` variations matters together with all others."""
    searching = sum(_halvings(left) + 1 for left in range(1, number + 1))
    confirming = (TRIES - 1) + TRIES * number
    return min(most, 2 + searching + confirming)


def runs_of_one(number: int) -> int:
    """Runs where one of `number` variations matters, by itself."""
    searching = _halvings(number) + 1 if number > 1 else 0
    return 2 + searching + 2 * (TRIES - 1) + (number > 1)


def _halvings(number: int) -> int:
    return max(0, number - 1).bit_length()


class _SpentError(RuntimeError):
    """No run is left."""


class _Laboratory:
    """Remembers every run; a set that has differed once counts as one that differs."""

    def __init__(self, everything: tuple[str, ...], oracle: Oracle, most: int) -> None:
        self.everything = everything
        self._oracle = oracle
        self._left = most
        self._seen: dict[frozenset[str], list[bool]] = {}

    def differs(self, variations: Sequence[str]) -> bool:
        return any(self.tried(variations, 1))

    def tried(self, variations: Sequence[str], times: int) -> list[bool]:
        """Whether it differed in each of so many runs, or in as many as there were."""
        seen = self._seen.setdefault(frozenset(variations), [])
        while len(seen) < times:
            if self._left == 0:
                raise _SpentError
            self._left -= 1
            seen.append(self._oracle(self._ordered(variations), len(seen) + 1))
        return list(seen)

    def smallest_seen(self) -> tuple[str, ...]:
        """That has differed."""
        different = [wanted for wanted, seen in self._seen.items() if any(seen)]
        return self._ordered(min(different, key=len)) if different else ()

    def finding(self, ending: Ending, culprits: Sequence[str], others: bool | None = None) -> BisectionFinding:
        trials = tuple(Trial(self._ordered(wanted), tuple(seen)) for wanted, seen in self._seen.items() if seen)
        return BisectionFinding(ending, self._ordered(culprits), others, trials)

    def _ordered(self, variations: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
        return tuple(name for name in self.everything if name in variations)


def _search(laboratory: _Laboratory) -> BisectionFinding:
    if not laboratory.differs(laboratory.everything):
        return laboratory.finding(Ending.NOTHING, ())
    if laboratory.differs(()):
        return laboratory.finding(Ending.ALWAYS, ())
    return _confirmed(_smallest(laboratory.everything, laboratory), laboratory)


def _smallest(candidates: tuple[str, ...], laboratory: _Laboratory) -> tuple[str, ...]:
    """A set that has differed, and each of which was seen to be needed: candidates differ together, () does not."""
    needed: tuple[str, ...] = ()
    while not laboratory.differs(needed):
        low, high = 0, len(candidates)
        while high - low > 1:
            middle = (low + high) // 2
            if laboratory.differs((*candidates[:middle], *needed)):
                high = middle
            else:
                low = middle
        needed, candidates = (candidates[high - 1], *needed), candidates[: high - 1]
    return needed


def _confirmed(needed: tuple[str, ...], laboratory: _Laboratory) -> BisectionFinding:
    """Every run of the set must differ and none of it with one left out."""
    if not all(laboratory.tried(needed, TRIES)):
        return laboratory.finding(Ending.BY_CHANCE, needed)
    for name in needed:
        without = tuple(other for other in needed if other != name)
        if any(laboratory.tried(without, TRIES)):
            ending = Ending.BY_CHANCE if without else Ending.ALWAYS
            return laboratory.finding(ending, without)
    others = tuple(name for name in laboratory.everything if name not in needed)
    return laboratory.finding(Ending.MATTERS, needed, laboratory.differs(others) if others else None)
