"""Bisection over simulated runs: what is named, what is not, and how many runs it takes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.stress.bisection import MOST_RUNS, TRIES, BisectionFinding, Ending, bisect, runs_bound, runs_of_one

NAMES = tuple("abcdefghi")


class Runs:
    """An oracle that counts: `strikes` says of a set of variations whether it matters, `chance` how often it shows."""

    def __init__(self, strikes: Callable[[set[str]], bool], chance: float = 1.0, seed: int = 0) -> None:
        self._strikes = strikes
        self._chance = chance
        self._random = random.Random(seed)
        self.made: list[tuple[tuple[str, ...], int]] = []

    def __call__(self, variations: tuple[str, ...], attempt: int) -> bool:
        self.made.append((variations, attempt))
        return self._strikes(set(variations)) and self._random.random() < self._chance


def needs(*culprits: str) -> Callable[[set[str]], bool]:
    return lambda variations: set(culprits) <= variations


def test_where_nothing_matters_one_run_says_so() -> None:
    runs = Runs(lambda _: False)
    found = bisect(NAMES, runs)
    assert (found.ending, found.culprits) == (Ending.NOTHING, ())
    assert runs.made == [(NAMES, 1)]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_single_culprit_is_named_wherever_it_stands(count: int) -> None:
    names, most = NAMES[:count], 0
    for culprit in names:
        runs = Runs(needs(culprit))
        found = bisect(names, runs)
        assert (found.ending, found.culprits) == (Ending.MATTERS, (culprit,))
        assert found.others_matter is (False if count > 1 else None)
        assert found.runs == len(runs.made)
        most = max(most, found.runs)
        assert found.trial((culprit,)).differed == (True,) * TRIES
        assert found.trial(()).differed == (False,) * TRIES
    assert runs_of_one(count) - 1 <= most <= runs_of_one(count)


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=4), st.integers(min_value=0))
@settings(deadline=None)
def test_variations_that_matter_only_together_are_named_together(culprits: set[str], seed: int) -> None:
    order = list(NAMES)
    random.Random(seed).shuffle(order)
    runs = Runs(needs(*culprits))
    found = bisect(order, runs)
    assert found.ending is Ending.MATTERS
    assert set(found.culprits) == culprits
    assert list(found.culprits) == [name for name in order if name in culprits]
    assert len(runs.made) <= runs_bound(len(order))


@pytest.mark.parametrize("count", range(1, 6))
def test_the_bound_is_reached_where_all_matter_together_and_never_passed(count: int) -> None:
    names = NAMES[:count]
    runs = Runs(needs(*names))
    assert set(bisect(names, runs).culprits) == set(names)
    assert len(runs.made) <= runs_bound(count) <= MOST_RUNS


def test_no_run_is_made_twice() -> None:
    runs = Runs(needs("b", "h"))
    bisect(NAMES, runs)
    assert len(runs.made) == len(set(runs.made))


def test_of_two_that_matter_each_by_itself_one_is_named_and_the_others_are_not_cleared() -> None:
    found = bisect(NAMES, Runs(lambda variations: bool(variations & {"c", "g"})))
    assert found.ending is Ending.MATTERS
    assert found.culprits in (("c",), ("g",))
    assert found.others_matter is True


def test_what_differs_without_any_variation_is_no_variations_fault() -> None:
    runs = Runs(lambda _: True)
    found = bisect(NAMES, runs)
    assert (found.ending, found.culprits) == (Ending.ALWAYS, ())
    assert runs.made == [(NAMES, 1), ((), 1)]


def outcomes(oracle: Callable[[int], Runs], times: int = 600) -> list[BisectionFinding]:
    return [bisect(NAMES, oracle(seed)) for seed in range(times)]


def test_a_culprit_that_strikes_in_3_of_10_runs_is_hardly_ever_named_wrongly() -> None:
    """No innocent alone, ever; together with innocents in a few runs of a hundred at most."""
    found = outcomes(lambda seed: Runs(needs("d"), 0.3, seed))
    assert {one.ending for one in found} <= {Ending.NOTHING, Ending.MATTERS, Ending.BY_CHANCE}
    assert all("d" in one.culprits for one in found if one.culprits)
    claimed = [one.culprits for one in found if one.ending is Ending.MATTERS]
    assert sum(culprits != ("d",) for culprits in claimed) <= 0.03 * len(found)
    by_chance = [one for one in found if one.ending is Ending.BY_CHANCE]
    assert len(by_chance) > 0.2 * len(found)
    assert all(len(set(differed)) == 2 for one in by_chance if (differed := one.trial(one.culprits).differed)[1:])


def test_a_recipe_that_differs_by_itself_in_3_of_10_runs_blames_hardly_any_variation() -> None:
    found = outcomes(lambda seed: Runs(lambda _: True, 0.3, seed))
    assert sum(one.ending is Ending.MATTERS for one in found) <= 0.02 * len(found)


def test_bisection_gives_up_after_so_many_runs_and_says_what_it_has() -> None:
    runs = Runs(needs(*NAMES))
    found = bisect(NAMES, runs, most=12)
    assert found.ending is Ending.GAVE_UP
    assert len(runs.made) == 12
    assert found.culprits == NAMES


def test_an_oracle_that_cannot_tell_ends_it() -> None:
    def broken(variations: tuple[str, ...], attempt: int) -> bool:
        raise ValueError("no evidence")

    with pytest.raises(ValueError, match="no evidence"):
        bisect(NAMES, broken)
