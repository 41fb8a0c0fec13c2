"""Finds what made two arms differ: runs a traced pair of them, compares it, and aims again where need be.

Each pair trains from the last checkpoint before the first differing step, and traces that step on the ranks that
matter. `of_arms` and `of_recipe` are the two ways in; both write what they find to disk.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samebits.compare.align import Pairing
from samebits.compare.certify import Arm, Certified, load
from samebits.compare.collect import collect
from samebits.compare.compare import Excuses, compare_arms
from samebits.compare.results import FINDING_FILE, Comparison, Divergence, Finding, read_finding, to_json
from samebits.fingerprint.format import Coordinates, ranks_of, ranks_text
from samebits.fingerprint.paths import Artifact, ArtifactError, write_whole
from samebits.fingerprint.records import Kind
from samebits.gates.evidence import Evidence
from samebits.gates.gates import judge_gate, worst
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError
from samebits.launch.local import LocalExecutor
from samebits.launch.run_arms import run_arms
from samebits.launch.slurm import SlurmExecutor
from samebits.launch.submit import Executor
from samebits.localize import finding as findings
from samebits.localize.finding import Attempts, Subject
from samebits.localize.locate import LocatedPair, Untraced, locate
from samebits.plan import arms
from samebits.recipe import load as recipe
from samebits.recipe.cluster import load as load_cluster
from samebits.spec.plan import Plan
from samebits.spec.questions import Capture, Gate
from samebits.spec.sections import CommandRecipe
from samebits.spec.verdicts import Verdict

TRIES = 5
"""Pairs that are run before a difference counts as not reproduced."""
ALL_RANKS = 16
"""Up to this number of ranks, all are traced."""
LOCALIZED_GATES: tuple[Gate, ...] = ("repeatability", "resume")
"""Gates whose failure is localized: `control` is about what was planted, and `observer` has nothing to trace."""
_SUBJECT_FILE = "of"
"""Names the launches whose difference is localized in the folder beside it."""
_AXES = ("tensor", "pipeline", "data", "context")


@dataclass(frozen=True, kw_only=True)
class LocalizeOptions:
    """Options of `samebits localize`.

    work: folder that gets the pairs and the finding; None: beside the candidate's. command: starts one rank.
    """

    tries: int = TRIES
    cluster: Path | None = None
    log: Path | None = None
    work: Path | None = None
    command: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """How pairs are run. folder: gets the pairs. tries: pairs at most. command: starts one rank; None: the executor's
    own."""

    folder: Path
    echo: Echo
    tries: int = TRIES
    executor: Executor = field(default_factory=LocalExecutor)
    command: Sequence[str] | None = None


def of_arms(reference: Path, candidate: Path, options: LocalizeOptions) -> tuple[Comparison, Finding | None]:
    """Compare two arms and localize their difference; no finding where none is seen.

    Raises what `localize` raises.
    """
    ours, theirs = load(reference), load(candidate)
    comparison = compare_arms(ours, theirs, Excuses())
    if comparison.divergence is None or comparison.deviations:
        return comparison, None
    return comparison, _kept_or_new(ours, theirs, comparison.divergence, options, Echo(sys.stderr, options.log))


def of_recipe(path: Path, results: Path, options: LocalizeOptions) -> tuple[list[Finding], Verdict]:
    """Localize every arm in which a gate of LOCALIZED_GATES failed.

    Returns a finding for each, even where no pair can be run, and the worst verdict of the comparisons that were looked
    at: only `pass` means that there is nothing to find.
    """
    wanted = recipe.load(path)
    evidence, echo = Evidence(wanted, results), Echo(sys.stderr, options.log)
    gates = [gate for gate in wanted.gates if gate in LOCALIZED_GATES]
    comparisons = [comparison for gate in gates for comparison in judge_gate(gate, evidence).comparisons]
    found = []
    for comparison in comparisons:
        if comparison.verdict != "fail" or (divergence := comparison.divergence) is None:
            continue
        reference, candidate = evidence.reference, evidence.arm(comparison.candidate_arm)
        try:
            finding = _kept_or_new(reference, candidate, divergence, options, echo)
        except (LaunchError, ArtifactError) as error:
            subject = _subject(reference, candidate, divergence)
            finding = findings.not_traced(subject, Attempts(), f"no pair could be run: {error}")
            _write(finding, _work(candidate, options))
        found.append(finding)
        echo.line(f"{candidate.name}: {finding.sentence}")
    verdict = worst([comparison.verdict for comparison in comparisons])
    if not found:
        echo.line(f"{wanted.name}: no arm to localize ({verdict})")
    return found, verdict


def _kept_or_new(
    reference: Arm, candidate: Arm, divergence: Divergence, options: LocalizeOptions, echo: Echo
) -> Finding:
    """Return the finding on disk where it is of these very runs, else localize anew and write the finding."""
    subject, work = _subject(reference, candidate, divergence), _work(candidate, options)
    kept = read_finding(work / FINDING_FILE)
    if kept is not None and kept.launches == subject.launches and (kept.cause or kept.tries >= options.tries):
        echo.line(f"{candidate.name}: kept, found before")
        return kept
    if reference.certified is None or candidate.certified is None:
        raise ArtifactError(reference.problem or candidate.problem or f"{candidate.folder}: is no evidence")
    # Pairs of other runs of the arms are no evidence of these: they are set aside, the latest ones.
    note, said = work / _SUBJECT_FILE, "\n".join(subject.launches)
    if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != said) and any(work.iterdir()):
        aside = work.with_name(f"{work.name}.superseded")
        shutil.rmtree(aside, ignore_errors=True)
        work.rename(aside)
        echo.line(f"{subject.candidate}: pairs of earlier runs are now in {aside}")
    work.mkdir(parents=True, exist_ok=True)
    write_whole(note, said.encode())
    executor = LocalExecutor() if options.cluster is None else SlurmExecutor(load_cluster(options.cluster))
    hunt = Hunt(folder=work.absolute(), echo=echo, tries=options.tries, executor=executor, command=options.command)
    finding = localize(reference.certified, candidate.certified, subject, hunt)
    _write(finding, work)
    return finding


def _subject(reference: Arm, candidate: Arm, divergence: Divergence) -> Subject:
    ours, theirs = (arm.certified.manifest.launch if arm.certified else "" for arm in (reference, candidate))
    names = reference.name, candidate.name
    return Subject(reference=names[0], candidate=names[1], launches=(ours, theirs), divergence=divergence)


def _write(finding: Finding, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    write_whole(work / FINDING_FILE, to_json(finding).encode())


def _work(candidate: Arm, options: LocalizeOptions) -> Path:
    """Return `RESULTS/NAME/localize/ARM` for an arm in `RESULTS/NAME/arms/ARM`; else a folder beside the arm's."""
    home = candidate.folder.absolute().parent
    return options.work or (home.parent if home.name == "arms" else home) / "localize" / candidate.folder.name


def localize(reference: Certified, candidate: Certified, subject: Subject, hunt: Hunt) -> Finding:
    """Run pairs of two arms until what makes them differ is found, or until no further pair would help.

    Raises LaunchError where a pair cannot be run, ArtifactError where it cannot be read, CancelledError after a signal.
    """
    divergence = subject.divergence
    if divergence.moment == "restored":
        return findings.of_state(subject)
    if divergence.moment != "step":
        reason = f"the arms part in the {divergence.moment} state of step {divergence.step}, behind all that computes"
        return findings.not_traced(subject, Attempts(), reason)
    return _Chase(reference, candidate, subject, hunt).run()


@dataclass(frozen=True)
class Aim:
    """What is traced: a step, and the one before it, on these ranks.

    Where arms recorded less than their whole state, a difference is first seen in the step after the one that made it.
    """

    step: int
    ranks: tuple[int, ...]

    @property
    def window(self) -> tuple[int, int]:
        return max(1, self.step - 1), self.step


class _Chase:
    def __init__(self, reference: Certified, candidate: Certified, subject: Subject, hunt: Hunt) -> None:
        self._plans = reference.manifest.plan, candidate.manifest.plan
        self._kept = reference.artifact
        self._places = {file.rank: file.coordinates for file in reference.manifest.ranks}
        self._subject = subject
        self._hunt = hunt
        origins = (group for group in subject.divergence.groups if group.role == "origin")
        first = {rank for group in origins for rank in ranks_of(group.ranks)}
        self._aim = Aim(subject.divergence.step, with_peers(first, self._places))
        self._attempts = Attempts()
        self._first_step = 1

    def run(self) -> Finding:
        last = "no pair was run"
        for number in range(1, self._hunt.tries + 1):
            made = self._run_pair(number)
            if isinstance(made, Finding):
                return made
            located = locate(made)
            if located is None:
                self._attempts = dataclasses.replace(self._attempts, agreed=self._attempts.agreed + 1)
                self._hunt.echo.line(f"pair {number} of {self._hunt.tries}: agrees")
                continue
            if isinstance(located, Untraced):
                step = located.step
                where = f"step {step}" if located.moment == "step" else f"the {located.moment} state of step {step}"
                last = f"the pair parts in {where}, where no operation is traced"
                again = located.moment == "step" and self._aim_again(step, located.ranks)
            elif self._is_inherited(located):
                last = "bytes differ that an earlier step left"
                again = self._aim_again(located.step, frozenset())
            elif located.unseen and set(self._aim.ranks) != set(self._places):
                last = "only receivers were traced"
                again = self._aim_again(self._aim.step, located.unseen)
            else:
                return findings.found(self._subject, self._attempts, located)
            if not again:
                return findings.not_traced(self._subject, self._attempts, last)
        attempts = self._attempts
        if attempts.agreed == attempts.tries:
            return findings.not_reproduced(self._subject, attempts)
        agreed = f"; {attempts.agreed} of {attempts.tries} pairs agreed" if attempts.agreed else ""
        return findings.not_traced(self._subject, attempts, f"{last}{agreed}")

    def _is_inherited(self, located: LocatedPair) -> bool:
        """Return whether bytes that differ were there before the first traced step: an earlier one made them."""
        low = self._aim.window[0]
        given = located.cause is not None and located.cause.kind == Kind.GIVEN
        return given and located.step == low and low > self._first_step

    def _aim_again(self, step: int, more: frozenset[int]) -> bool:
        """Aim at this step and these further ranks, or at all ranks. Returns False where that is no other aim."""
        before = self._aim
        wider = with_peers({*before.ranks, *more}, self._places)
        if step == before.step and set(wider) == set(before.ranks):
            wider = tuple(sorted(self._places))
        self._aim = Aim(step, wider)
        self._hunt.echo.line(f"it came from elsewhere: tracing step {step} on ranks {ranks_text(wider)}")
        return self._aim != before

    def _run_pair(self, number: int) -> Pairing | Finding:
        """Run and compare one pair. Returns a finding where the two runs are not comparable."""
        aim, hunt = self._aim, self._hunt
        traced = ranks_text(aim.ranks)
        hunt.echo.line(f"pair {number} of at most {hunt.tries}: step {aim.step}, traced on ranks {traced}")
        folder = hunt.folder / str(number)
        artifacts = Artifact(folder / "reference"), Artifact(folder / "candidate")
        plans = pair(*self._plans, self._kept, aim, number)
        self._first_step = max(plan.first_step for plan in plans)
        for plan, artifact in zip(plans, artifacts, strict=True):
            outcome = run_arms([(plan, artifact)], echo=hunt.echo, executor=hunt.executor, command=hunt.command)
            if not outcome.ok:
                raise LaunchError(outcome.message)
            collect(artifact.folder)
        folders = tuple(os.path.relpath(artifact.folder) for artifact in artifacts)
        self._attempts = dataclasses.replace(self._attempts, tries=number, traced=traced, folders=folders)
        reference, candidate = (load(artifact.folder) for artifact in artifacts)
        comparison = compare_arms(reference, candidate, Excuses())
        if comparison.deviations:
            one = comparison.deviations[0]
            reason = f"the pair is not comparable: {one.pin} is {one.reference} in one and {one.candidate} in the other"
            return findings.not_traced(self._subject, self._attempts, reason)
        if reference.certified is None or candidate.certified is None:
            return findings.not_traced(self._subject, self._attempts, comparison.problems[0])
        return Pairing(reference.certified, candidate.certified)


def pair(reference: Plan, candidate: Plan, kept: Artifact, aim: Aim, number: int) -> tuple[Plan, Plan]:
    """Return the plans of a traced pair: the arms that differ, run no longer than need be.

    kept: artifact whose checkpoints the reference left. number: of the pair, from 1.
    """
    start = _last_checkpoint(reference, candidate, kept, aim.step)
    restore = None if start is None else str(arms.checkpoint(reference.recipe, kept, start).absolute())

    def leg(plan: Plan, arm: str) -> Plan:
        # Whole tensors: what was not read can neither be cleared nor blamed.
        capture = Capture(rung="op", windows=(aim.window,), ranks=tuple(sorted(aim.ranks)))
        return dataclasses.replace(
            plan,
            arm=arm,
            recipe=dataclasses.replace(plan.recipe, capture=capture),
            first_step=plan.first_step if start is None else start + 1,
            last_step=aim.step,
            restore=plan.restore if restore is None else restore,
            capture=True,
            keep_checkpoints=False,
        )

    return leg(reference, f"localize-{number}-reference"), leg(candidate, f"localize-{number}-candidate")


def _last_checkpoint(reference: Plan, candidate: Plan, kept: Artifact, step: int) -> int | None:
    """Return the last checkpoint before a step, where both arms started alike.

    An arm that was restored and one that was not must start as they did: the restore itself may be at fault.
    """
    recipe = reference.recipe
    if reference.restore != candidate.restore or (isinstance(recipe, CommandRecipe) and recipe.command.resumed is None):
        return None
    every = recipe.checkpoint.every
    first = max(reference.first_step, candidate.first_step)
    saved = range(every, step, every)
    there = (one for one in reversed(saved) if one >= first and arms.checkpoint(recipe, kept, one).is_dir())
    return next(there, None)


def with_peers(ranks: Iterable[int], places: Mapping[int, Coordinates]) -> tuple[int, ...]:
    """Return these ranks and all that they exchange tensors with: those that differ in one coordinate alone."""
    if len(places) <= ALL_RANKS:
        return tuple(sorted(places))
    wanted = set(ranks)

    def distance(rank: int, other: int) -> int:
        return sum(getattr(places[rank], axis) != getattr(places[other], axis) for axis in _AXES)

    return tuple(sorted(wanted | {other for other in places if any(distance(rank, other) <= 1 for rank in wanted)}))
