"""The two runs that localising makes: as the arms that were found to differ, traced, and no longer than need be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samebits.fingerprint.header import Coordinates
from samebits.fingerprint.paths import Artifact
from samebits.plan import arms
from samebits.spec.plan import Plan
from samebits.spec.questions import Capture
from samebits.spec.sections import CommandRecipe

ALL_RANKS = 16
"""Up to so many ranks all are traced."""
_AXES = ("tensor", "pipeline", "data", "context")


@dataclass(frozen=True)
class Aim:
    """What is traced: a step, and the one before it, on these ranks. Where arms recorded less than their whole state, a
    difference is seen first in the step behind the one that made it."""

    step: int
    ranks: tuple[int, ...]

    @property
    def window(self) -> tuple[int, int]:
        return max(1, self.step - 1), self.step


def pair(reference: Plan, candidate: Plan, kept: Artifact, aim: Aim, number: int) -> tuple[Plan, Plan]:
    """The so many-th pair. kept: artifact whose checkpoints the reference left."""
    start = _last_checkpoint(reference, candidate, kept, aim.step)
    restore = None if start is None else (start, str(arms.checkpoint(reference.recipe, kept, start).absolute()))
    return (
        _leg(reference, f"localize-{number}-reference", restore, aim),
        _leg(candidate, f"localize-{number}-candidate", restore, aim),
    )


def _last_checkpoint(reference: Plan, candidate: Plan, kept: Artifact, step: int) -> int | None:
    """The last one before the step, where both arms started alike. An arm that was restored and one that was not must
    start as they did: how it was restored is what may be at fault."""
    recipe = reference.recipe
    if reference.restore != candidate.restore or (isinstance(recipe, CommandRecipe) and recipe.command.resumed is None):
        return None
    every = recipe.checkpoint.every
    first = max(reference.first_step, candidate.first_step)
    saved = range(every, step, every)
    there = (one for one in reversed(saved) if one >= first and arms.checkpoint(recipe, kept, one).is_dir())
    return next(there, None)


def _leg(plan: Plan, arm: str, restore: tuple[int, str] | None, aim: Aim) -> Plan:
    recipe = plan.recipe
    ranks = tuple(sorted(aim.ranks))
    # Whole tensors: what was not read can neither be cleared nor blamed.
    capture = Capture(rung="op", windows=(aim.window,), ranks=ranks)
    return dataclasses.replace(
        plan,
        arm=arm,
        recipe=dataclasses.replace(recipe, capture=capture),
        first_step=plan.first_step if restore is None else restore[0] + 1,
        last_step=aim.step,
        restore=plan.restore if restore is None else restore[1],
        capture=True,
        keep_checkpoints=False,
    )


def with_peers(ranks: Iterable[int], places: Mapping[int, Coordinates]) -> tuple[int, ...]:
    """These ranks and all that they exchange tensors with: those in which one coordinate alone is another."""
    if len(places) <= ALL_RANKS:
        return tuple(sorted(places))
    wanted = set(ranks)
    near = {other for rank in wanted for other in places if _differing(places[rank], places[other]) <= 1}
    return tuple(sorted(wanted | near))


def _differing(place: Coordinates, other: Coordinates) -> int:
    return sum(getattr(place, axis) != getattr(other, axis) for axis in _AXES)
