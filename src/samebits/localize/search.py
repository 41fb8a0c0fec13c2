"""Hunting a difference down: runs a traced pair of the two arms that differ, compares it, and aims again if need be.

    finding = localize(reference, candidate, Hunt(folder, echo))

Each pair trains from the last checkpoint before the first differing step, and traces that step on the ranks that
matter.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samebits.compare.align import Pairing
from samebits.compare.certify import Certified, load
from samebits.compare.collect import collect
from samebits.compare.compare import Excuses, compare_arms
from samebits.compare.results import Finding
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.ranks import ranks_of, ranks_text
from samebits.fingerprint.records import Kind
from samebits.launch.arm import run_arm
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError
from samebits.launch.submit import Executor, LocalExecutor
from samebits.localize import account
from samebits.localize.account import Search, Subject
from samebits.localize.locate import Located, Untraced, locate
from samebits.localize.pair import Aim, pair, with_peers
from samebits.spec.plan import Plan

TRIES = 5
"""Pairs that are run before a difference counts as not reproduced."""


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """folder: gets the pairs. tries: pairs at most. command: starts one rank; None: the executor's own."""

    folder: Path
    echo: Echo
    tries: int = TRIES
    executor: Executor = field(default_factory=LocalExecutor)
    command: Sequence[str] | None = None


def localize(reference: Certified, candidate: Certified, subject: Subject, hunt: Hunt) -> Finding:
    """reference, candidate: arms of which `subject` says how they differ.

    Raises LaunchError where a pair cannot be run, ArtifactError where it cannot be read, CancelledError after a signal.
    """
    divergence = subject.divergence
    if divergence.moment == "restored":
        return account.of_state(subject)
    if divergence.moment != "step":
        reason = f"the arms part in the {divergence.moment} state of step {divergence.step}, behind all that computes"
        return account.not_traced(subject, Search(), reason)
    return _Chase(reference, candidate, subject, hunt).run()


class _Chase:
    def __init__(self, reference: Certified, candidate: Certified, subject: Subject, hunt: Hunt) -> None:
        self._plans = reference.manifest.plan, candidate.manifest.plan
        self._kept = reference.artifact
        self._places = {file.rank: file.coordinates for file in reference.manifest.ranks}
        self._subject = subject
        self._hunt = hunt
        first = {
            rank for group in subject.divergence.groups if group.role == "origin" for rank in ranks_of(group.ranks)
        }
        self._aim = Aim(subject.divergence.step, with_peers(first, self._places))
        self._search = Search()
        self._first_step = 1

    def run(self) -> Finding:
        last = "no pair was run"
        for number in range(1, self._hunt.tries + 1):
            made = self._run_pair(number)
            if isinstance(made, Finding):
                return made
            located = locate(made)
            if isinstance(located, Located) and not self._is_open(located) and not self._is_inherited(located):
                return account.found(self._subject, self._search, located)
            if located is None:
                self._search = dataclasses.replace(self._search, agreed=self._search.agreed + 1)
                self._hunt.echo.line(f"pair {number} of {self._hunt.tries}: agrees")
                continue
            last = self._why(located)
            if not self._aim_again(located):
                return account.not_traced(self._subject, self._search, last)
        if self._search.agreed == self._search.tries:
            return account.not_reproduced(self._subject, self._search)
        agreed = f"; {self._search.agreed} of {self._search.tries} pairs agreed" if self._search.agreed else ""
        return account.not_traced(self._subject, self._search, f"{last}{agreed}")

    def _why(self, located: Located | Untraced) -> str:
        if isinstance(located, Untraced):
            return account.reason_of(located)
        return "bytes differ that an earlier step left" if self._is_inherited(located) else "only receivers were traced"

    def _is_open(self, located: Located) -> bool:
        """Whether ranks that were not traced may have brought it."""
        return bool(located.unseen) and set(self._aim.ranks) != set(self._places)

    def _is_inherited(self, located: Located) -> bool:
        """Whether bytes that differ were there before the first step that was traced: an earlier one made them."""
        low = self._aim.window[0]
        found = located.cause is not None and located.cause.kind == Kind.GIVEN
        return found and located.step == low and low > self._first_step

    def _aim_again(self, located: Located | Untraced) -> bool:
        """At the step where the pair parted, with more ranks. False where that is no other aim."""
        before = self._aim
        if isinstance(located, Untraced):
            if located.moment != "step":
                return False
            step, more = located.step, located.ranks
        elif self._is_inherited(located):
            step, more = located.step, frozenset[int]()
        else:
            step, more = before.step, located.unseen
        wider = with_peers({*before.ranks, *more}, self._places)
        if step == before.step and set(wider) == set(before.ranks):
            wider = tuple(sorted(self._places))
        self._aim = Aim(step, wider)
        self._hunt.echo.line(f"it came from elsewhere: tracing step {step} on ranks {ranks_text(wider)}")
        return self._aim != before

    def _run_pair(self, number: int) -> Pairing | Finding:
        aim = self._aim
        self._hunt.echo.line(
            f"pair {number} of at most {self._hunt.tries}: step {aim.step}, traced on ranks {ranks_text(aim.ranks)}"
        )
        folder = self._hunt.folder / str(number)
        artifacts = Artifact(folder / "reference"), Artifact(folder / "candidate")
        plans = pair(*self._plans, self._kept, aim, number)
        self._first_step = max(plan.first_step for plan in plans)
        for plan, artifact in zip(plans, artifacts, strict=True):
            self._run(plan, artifact)
        self._search = dataclasses.replace(
            self._search,
            tries=number,
            traced=ranks_text(aim.ranks),
            folders=tuple(os.path.relpath(artifact.folder) for artifact in artifacts),
        )
        return self._compared(*artifacts)

    def _run(self, plan: Plan, artifact: Artifact) -> None:
        hunt = self._hunt
        outcome = run_arm(plan, artifact, echo=hunt.echo, executor=hunt.executor, command=hunt.command)
        if not outcome.ok:
            raise LaunchError(outcome.message)
        collect(artifact.folder)

    def _compared(self, reference: Artifact, candidate: Artifact) -> Pairing | Finding:
        arms = load(reference.folder), load(candidate.folder)
        comparison = compare_arms(*arms, Excuses())
        if comparison.deviations:
            one = comparison.deviations[0]
            reason = f"the pair is not comparable: {one.pin} is {one.reference} in one and {one.candidate} in the other"
            return account.not_traced(self._subject, self._search, reason)
        certified = [arm.certified for arm in arms]
        if certified[0] is None or certified[1] is None:
            return account.not_traced(self._subject, self._search, comparison.problems[0])
        return Pairing(certified[0], certified[1])
