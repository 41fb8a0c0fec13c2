"""What a stress run shows: which variation changes the bits, though none of them may.

The nouns that are written to JSON and presented, and how one trial's comparison is read. Bisection itself is in
`samebits.stress.bisection`, running in `samebits.stress.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samebits.compare.certify import load
from samebits.compare.compare import NOT_SEEN, Excuses, Waivers, compare_arms
from samebits.compare.results import Comparison
from samebits.fingerprint.conditions import Condition
from samebits.fingerprint.format import ranks_text
from samebits.recipe.problem import listed
from samebits.spec.sections import CommandRecipe, Recipe
from samebits.spec.stressors import VARIATIONS, Variation
from samebits.spec.verdicts import Verdict
from samebits.stress.bisection import BisectionFinding, Ending

Effect = Literal["same", "differs", "differs at times", "not told apart", "not applicable", "not asked"]
"""`same`: a run with it, among others perhaps, had the reference's bits. `not told apart`: only tried together with
what differs."""

STRESS_FORMAT = 1


class UndecidedError(RuntimeError):
    """A trial whose comparison says neither that bits are equal nor that they differ."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.candidate_arm)
        self.comparison = comparison


@dataclass(frozen=True, kw_only=True)
class VariationRow:
    """One variation. how: what was done on the ranks, or why it is not applicable."""

    name: str
    does: str
    effect: Effect
    how: str


@dataclass(frozen=True, kw_only=True)
class StressRun:
    """One run beside the reference. arm: its folder's name."""

    arm: str
    variations: tuple[str, ...]
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Stress:
    """culprits: variations that matter, a smallest set. headline: one sentence. comparison: that shows it, with the
    first divergence; where nothing matters, the one of all variations together."""

    format: int
    recipe: str
    verdict: Verdict
    headline: str
    culprits: tuple[str, ...]
    variations: tuple[VariationRow, ...]
    runs: tuple[StressRun, ...]
    comparison: Comparison | None


def compared(recipe: Recipe, reference: Path, candidate: Path) -> Comparison:
    """The arms' folders. Pins that the candidate varies on purpose are no deviations; all others are."""
    excuses = Excuses(Waivers(recipe.waivers), stressed=True)
    return compare_arms(load(reference), load(candidate), excuses)


def differs(comparison: Comparison) -> bool:
    """Raises UndecidedError where that is not known. That a planted fault is in both runs does not matter here."""
    if comparison.deviations:
        raise UndecidedError(comparison)
    if comparison.divergence is not None:
        return True
    if comparison.scope is None or any(problem != NOT_SEEN for problem in comparison.problems):
        raise UndecidedError(comparison)
    return False


def not_applicable(recipe: Recipe) -> dict[str, str]:
    """Variations that the recipe leaves no room for, and why."""
    found = {}
    own = recipe.command.environment if isinstance(recipe, CommandRecipe) else {}
    if "PYTHONHASHSEED" in {**recipe.determinism.environment, **own}:
        found["hash-seed"] = "the recipe itself sets PYTHONHASHSEED"
    if isinstance(recipe, CommandRecipe):
        found["loader-threads"] = "what loads the data of a launch line is its own affair"
    return found


def in_force(wanted: Sequence[str], conditions: Sequence[Condition]) -> tuple[dict[str, str], dict[str, str]]:
    """(what was done, why nothing was done) by variation, as the ranks say."""
    done, left = {}, {}
    for name in wanted:
        own = [condition for condition in conditions if condition.stressor == name]
        active = [condition for condition in own if condition.in_force]
        if not active:
            left[name] = own[0].how if own else "no rank says that it was in force"
            continue
        where = "" if len(active) == len(own) else f" (ranks {ranks_text(one.rank for one in active)} only)"
        done[name] = f"rank {active[0].rank}: {active[0].how}{where}"
    return done, left


def rows(
    finding: BisectionFinding | None, done: Mapping[str, str], left: Mapping[str, str]
) -> tuple[VariationRow, ...]:
    """finding: None where bisection came to no end."""
    return tuple(
        VariationRow(
            name=variation.name,
            does=variation.does,
            effect=_effect(variation, finding, done, left),
            how=done.get(variation.name) or left.get(variation.name, ""),
        )
        for variation in VARIATIONS
    )


def _effect(
    variation: Variation, finding: BisectionFinding | None, done: Mapping[str, str], left: Mapping[str, str]
) -> Effect:
    name = variation.name
    if name in left:
        return "not applicable"
    if name not in done:
        return "not asked"
    if finding is None:
        return "not told apart"
    if name in finding.culprits and finding.ending is not Ending.GAVE_UP:
        return "differs" if finding.ending is Ending.MATTERS else "differs at times"
    cleared = any(name in trial.variations and not any(trial.differed) for trial in finding.trials)
    return "same" if cleared else "not told apart"


VERDICTS: dict[Ending, Verdict] = {
    Ending.NOTHING: "pass",
    Ending.MATTERS: "fail",
    Ending.ALWAYS: "fail",
    Ending.BY_CHANCE: "inconclusive",
    Ending.GAVE_UP: "inconclusive",
}


def sentence(finding: BisectionFinding, left: Mapping[str, str]) -> str:
    """What was found, with the number of runs that it rests on."""
    match finding.ending:
        case Ending.NOTHING:
            number = len(finding.trials[0].variations)
            together = f"{number} variations together change" if number > 1 else f"{_all(finding)[0]} changes"
            return f"{together} nothing{_not_covered(left)}"
        case Ending.ALWAYS:
            return (
                f"differs without any variation ({_counted(finding, ())}): no variation is to blame; "
                "the gate repeatability is about that"
            )
        case Ending.MATTERS:
            return f"{_matters(finding.culprits)}: {_evidence(finding)}{_others(finding)}"
        case Ending.BY_CHANCE:
            return (
                f"cannot be reproduced every time: with {_joined(finding.culprits)} it differs in "
                f"{_counted(finding, finding.culprits)}, without any variation in {_counted(finding, ())}; chance "
                "decides: look for a race between ranks, threads or streams"
            )
        case Ending.GAVE_UP:
            return (
                f"gave up after {finding.runs} runs; the smallest set that differed is {_joined(finding.culprits)}: "
                f"go on with `--only {','.join(finding.culprits)}`"
            )


def _all(finding: BisectionFinding) -> tuple[str, ...]:
    return finding.trials[0].variations


def _matters(culprits: Sequence[str]) -> str:
    return (
        f"{culprits[0]} matters" if len(culprits) == 1 else f"{listed(list(culprits), 'and')} matter, and only together"
    )


def _evidence(finding: BisectionFinding) -> str:
    said = [f"with {_joined(finding.culprits)} it differs in {_counted(finding, finding.culprits)}"]
    for name in finding.culprits:
        without = tuple(other for other in finding.culprits if other != name)
        said.append(f"with {_joined(without)} in {_counted(finding, without)}")
    return ", ".join(said)


def _others(finding: BisectionFinding) -> str:
    if finding.others_matter is None:
        return ""
    others = [name for name in _all(finding) if name not in finding.culprits]
    if not finding.others_matter:
        return (
            f"; the other {len(others)} together change nothing"
            if len(others) > 1
            else f"; {others[0]} changes nothing"
        )
    return f"; something else matters as well: `--only {','.join(others)}`"


def _joined(variations: Sequence[str]) -> str:
    return listed(list(variations), "and") if variations else "no variation"


def _counted(finding: BisectionFinding, variations: Sequence[str]) -> str:
    trial = finding.trial(variations)
    runs = trial.differed if trial else ()
    return f"{sum(runs)} of {len(runs)} run{'s' * (len(runs) != 1)}"


def _not_covered(left: Mapping[str, str]) -> str:
    return f"; not applicable: {', '.join(left)}" if left else ""
