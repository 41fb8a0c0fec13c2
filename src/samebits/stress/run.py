"""`samebits stress RECIPE`: runs of a recipe under variations that must not matter, and bisection to the one that does.

Each run is an arm in `RESULTS/NAME/stress`, beside the reference in `arms`; finished ones are kept and used again.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samebits.compare.collect import collect
from samebits.compare.results import Comparison
from samebits.fingerprint import conditions
from samebits.fingerprint.manifest import read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.launch.console import Echo
from samebits.launch.job_state import ArmOutcome, LaunchError
from samebits.launch.rank_command import STRESS
from samebits.launch.run_arms import run_arms
from samebits.launch.submit import Executor
from samebits.plan import arms
from samebits.recipe import load, planting
from samebits.recipe.load import RecipeError
from samebits.recipe.problem import listed
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.spec.sections import Recipe
from samebits.spec.stressors import NAMES, Stressor
from samebits.stress import results as judging
from samebits.stress.bisection import BisectionFinding, Ending, bisect, runs_bound, runs_of_one
from samebits.stress.results import STRESS_FORMAT, Stress, StressRun, UndecidedError

ALL = "stress-all"
PLAIN = "plain"

Run = Callable[[Plan, Artifact], ArmOutcome]


def stressed(
    path: Path,
    results: Path,
    *,
    echo: Echo,
    only: Sequence[str] = (),
    executor: Executor | None = None,
    fault: Fault | None = None,
    command: Sequence[str] | None = None,
) -> Stress:
    """Runs what is not there yet, and says what matters.

    only: names of variations; empty: all. executor: None: this machine. fault: planted in every run, the reference
    too: to test the tool. command: starts one rank. Raises RecipeError for a bad recipe or name, LaunchError where a
    run does not finish, CancelledError after SIGINT or SIGTERM.
    """
    wanted = chosen(only)
    loaded = load.load(path)
    left = {name: why for name, why in judging.not_applicable(loaded).items() if name in set(map(str, wanted))}
    plan = _planted(arms.plan(loaded, arms.REFERENCE, results), fault)

    def run(plan: Plan, artifact: Artifact) -> ArmOutcome:
        return run_arms([(plan, artifact)], echo=echo, executor=executor, command=command)

    laboratory = _StressRuns(plan, results, echo, run)
    return laboratory.stress(tuple(name for name in wanted if name not in left), left)


def chosen(only: Sequence[str]) -> tuple[Stressor, ...]:
    """In the order of `samebits.spec.stressors`. Raises RecipeError for a name that is none."""
    for name in only:
        if name not in NAMES:
            raise RecipeError(f"--only: {name!r} is no variation; use {', '.join(NAMES)}")
    return tuple(name for name in NAMES if not only or name in only)


def _planted(plan: Plan, fault: Fault | None) -> Plan:
    if fault is not None:
        planting.check(plan.recipe, fault)
    faults = (arms.placed(plan.recipe, fault),) if fault else ()
    return dataclasses.replace(plan, faults=faults)


@dataclass
class _StressRuns:
    """reference: its plan. runs: made so far, in their order."""

    reference: Plan
    results: Path
    echo: Echo
    run: Run
    runs: list[StressRun] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        return self.reference.recipe

    def stress(self, wanted: tuple[Stressor, ...], left: dict[str, str]) -> Stress:
        """left: variations that the recipe leaves no room for, and why."""
        if not wanted:
            return self._undecided("no variation is applicable: nothing was varied", {}, left)
        self._announce(wanted, left)
        self._finished(self.reference, self._home(arms.REFERENCE))
        try:
            everything = self._differs(wanted, 1)
        except UndecidedError as error:
            return self._undecided(_why(error.comparison), *self._in_force(wanted, left), error.comparison)
        done, left = self._in_force(wanted, left)
        active = tuple(name for name in wanted if name in done)
        if not active:
            return self._undecided("no variation was in force: nothing was varied", done, left)
        return self._bisected(active, everything, done, left)

    def _bisected(
        self, active: tuple[Stressor, ...], everything: bool, done: dict[str, str], left: dict[str, str]
    ) -> Stress:
        """everything: whether the run of all that was wanted differed, whether or not all of it was in force."""

        def differs(variations: tuple[str, ...], attempt: int) -> bool:
            if set(variations) == set(active) and attempt == 1:
                return everything
            return self._differs(variations, attempt)

        try:
            finding = bisect(active, differs)
        except UndecidedError as error:
            return self._undecided(_why(error.comparison), done, left, error.comparison)
        return self._decided(finding, done, left)

    def _announce(self, wanted: Sequence[str], left: dict[str, str]) -> None:
        number = len(wanted)
        for name, why in left.items():
            self.echo.line(f"stress {self.recipe.name}: {name} is not applicable: {why}")
        self.echo.line(
            f"stress {self.recipe.name}: {number} variation{'s' * (number > 1)}; beside the reference 1 run where none "
            f"matters, up to {runs_of_one(number)} where one does, {runs_bound(number)} at the very most"
        )

    def _differs(self, variations: Sequence[str], attempt: int) -> bool:
        arm = self._arm(variations) + (f"-{attempt}" if attempt > 1 else "")
        stress = tuple(name for name in NAMES if name in variations)
        plan = dataclasses.replace(self.reference, arm=arm, keep_checkpoints=False, stress=stress)
        artifact = self._home(arm)
        self._finished(plan, artifact)
        comparison = judging.compared(self.recipe, self._home(arms.REFERENCE).folder, artifact.folder)
        self.comparisons[arm] = comparison
        found = judging.differs(comparison)
        self.runs.append(StressRun(arm=arm, variations=stress, differs=found))
        self.echo.line(f"{arm}: {'differs from' if found else 'has the bits of'} the reference")
        return found

    def _arm(self, variations: Sequence[str]) -> str:
        """Its name, whatever else was asked for, so that its runs are found again."""
        applicable = set(NAMES) - judging.not_applicable(self.recipe).keys()
        return ALL if set(variations) == applicable else ".".join(variations) or PLAIN

    def _home(self, arm: str) -> Artifact:
        if arm == arms.REFERENCE and not self.reference.faults:
            return Artifact(arms.artifact_folder(self.results, self.recipe.name, arm))
        return Artifact(self.results / self.recipe.name / STRESS / arm)

    def _finished(self, plan: Plan, artifact: Artifact) -> None:
        """Runs it if need be, and seals it. Raises LaunchError where it does not end well."""
        outcome = self.run(plan, artifact)
        for caches in conditions.folder(artifact.folder).glob("caches-*"):
            shutil.rmtree(caches, ignore_errors=True)
        if not outcome.ok:
            raise LaunchError(outcome.message)
        try:
            if read_manifest(artifact).launch == outcome.launch:
                return
        except ArtifactError:
            pass
        collect(artifact.folder)

    def _in_force(self, wanted: Sequence[str], left: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """What was done in the run of all variations, and why a variation was not; see `judging.in_force`."""
        done, not_done = judging.in_force(wanted, conditions.read(self._home(self._arm(wanted)).folder))
        return done, {**left, **not_done}

    def _decided(self, finding: BisectionFinding, done: dict[str, str], left: dict[str, str]) -> Stress:
        verdict = judging.VERDICTS[finding.ending]
        planted = verdict == "pass" and bool(self.reference.faults)
        said = judging.sentence(finding, left)
        return Stress(
            format=STRESS_FORMAT,
            recipe=self.recipe.name,
            verdict="inconclusive" if planted else verdict,
            headline=f"{said}; a fault is planted in every run, so that this proves nothing" if planted else said,
            culprits=finding.culprits,
            variations=judging.rows(finding, done, left),
            runs=tuple(self.runs),
            comparison=self._shown(finding),
        )

    def _shown(self, finding: BisectionFinding) -> Comparison:
        """The first run of the culprits that differs; where nothing matters, of all variations."""
        variations = set(finding.culprits) if finding.ending is not Ending.NOTHING else set()
        told = [run for run in self.runs if run.differs and set(run.variations) == variations]
        return self.comparisons[told[0].arm if told else self.runs[0].arm]

    def _undecided(
        self, why: str, done: dict[str, str], left: dict[str, str], comparison: Comparison | None = None
    ) -> Stress:
        return Stress(
            format=STRESS_FORMAT,
            recipe=self.recipe.name,
            verdict="invalid" if comparison is not None and comparison.deviations else "inconclusive",
            headline=why,
            culprits=(),
            variations=judging.rows(None, done, left),
            runs=tuple(self.runs),
            comparison=comparison,
        )


def _why(comparison: Comparison) -> str:
    if comparison.deviations:
        pins = listed([row.pin for row in comparison.deviations], "and")
        return f"{comparison.candidate_arm}: is not comparable: {pins} differ, which no variation asked for"
    return comparison.problems[0] if comparison.problems else f"{comparison.candidate_arm}: nothing was compared"
