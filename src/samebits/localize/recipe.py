"""`samebits localize`: of two arms, or of all gates of a recipe that failed; from folders to findings on disk."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samebits.compare.certify import Arm, load
from samebits.compare.compare import Excuses, compare_arms
from samebits.compare.results import FINDING_FILE, Comparison, Divergence, Finding, read_finding, to_json
from samebits.fingerprint.paths import ArtifactError, write_whole
from samebits.gates.evidence import Evidence
from samebits.gates.gates import judge_gate, worst
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError
from samebits.launch.slurm import SlurmExecutor
from samebits.launch.submit import Executor, LocalExecutor
from samebits.localize import account
from samebits.localize.account import Search, Subject
from samebits.localize.search import TRIES, Hunt, localize
from samebits.recipe import load as recipe
from samebits.recipe.cluster import load as load_cluster
from samebits.spec.questions import Gate
from samebits.spec.verdicts import Verdict

_SUBJECT = "of"
"""File that names the launches whose difference is hunted down beside it."""

HUNTED: tuple[Gate, ...] = ("repeatability", "resume")
"""Gates whose failure is hunted down: `control` is about what was planted, and `observer` has nothing to trace."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """work: folder that gets the pairs and the finding; None: beside the candidate's. command: starts one rank."""

    tries: int = TRIES
    cluster: Path | None = None
    log: Path | None = None
    work: Path | None = None
    command: Sequence[str] | None = None

    def executor(self) -> Executor:
        return LocalExecutor() if self.cluster is None else SlurmExecutor(load_cluster(self.cluster))


def of_arms(reference: Path, candidate: Path, request: Request) -> tuple[Comparison, Finding | None]:
    """Compares two arms and hunts their difference down; no finding where none is seen.

    Raises what `localize` raises.
    """
    ours, theirs = load(reference), load(candidate)
    comparison = compare_arms(ours, theirs, Excuses())
    if comparison.divergence is None or comparison.deviations:
        return comparison, None
    return comparison, _finding(ours, theirs, comparison.divergence, request, Echo(sys.stderr, request.log))


def of_recipe(path: Path, results: Path, request: Request) -> tuple[list[Finding], Verdict]:
    """A finding for every arm in which a gate of HUNTED failed, one too where no pair can be run; and the worst verdict
    of the comparisons that were looked at: only `pass` means that there is nothing to find."""
    wanted = recipe.load(path)
    evidence, echo = Evidence(wanted, results), Echo(sys.stderr, request.log)
    comparisons = [one for gate in wanted.gates if gate in HUNTED for one in judge_gate(gate, evidence).comparisons]
    found = []
    for comparison in comparisons:
        if comparison.verdict == "fail" and comparison.divergence is not None:
            arm = evidence.arm(comparison.candidate_arm)
            found.append(_told(evidence.reference, arm, comparison, request, echo))
            echo.line(f"{arm.name}: {found[-1].sentence}")
    verdict = worst([comparison.verdict for comparison in comparisons])
    if not found:
        echo.line(f"{wanted.name}: no arm to localize ({verdict})")
    return found, verdict


def _told(reference: Arm, candidate: Arm, comparison: Comparison, request: Request, echo: Echo) -> Finding:
    if comparison.divergence is None:
        raise ArtifactError(f"{candidate.folder}: differs in nothing; `samebits compare` says more")
    try:
        return _finding(reference, candidate, comparison.divergence, request, echo)
    except (LaunchError, ArtifactError) as error:
        subject = _subject(reference, candidate, comparison.divergence)
        return _written(
            account.not_traced(subject, Search(), f"no pair could be run: {error}"), _work(candidate, request)
        )


def _finding(reference: Arm, candidate: Arm, divergence: Divergence, request: Request, echo: Echo) -> Finding:
    """The one that lies there, where it is of these very runs; else a new one, written down."""
    subject, work = _subject(reference, candidate, divergence), _work(candidate, request)
    kept = read_finding(work / FINDING_FILE)
    if kept is not None and kept.launches == subject.launches and (kept.cause or kept.tries >= request.tries):
        echo.line(f"{candidate.name}: kept, found before")
        return kept
    if reference.certified is None or candidate.certified is None:
        raise ArtifactError(reference.problem or candidate.problem or f"{candidate.folder}: is no evidence")
    _make_room(work, subject, echo)
    hunt = Hunt(
        folder=work.absolute(), echo=echo, tries=request.tries, executor=request.executor(), command=request.command
    )
    return _written(localize(reference.certified, candidate.certified, subject, hunt), work)


def _subject(reference: Arm, candidate: Arm, divergence: Divergence) -> Subject:
    launches = [arm.certified.manifest.launch if arm.certified else "" for arm in (reference, candidate)]
    return Subject(
        reference=reference.name,
        candidate=candidate.name,
        launches=(launches[0], launches[1]),
        divergence=divergence,
    )


def _make_room(work: Path, subject: Subject, echo: Echo) -> None:
    """Pairs of other runs of the arms are no evidence of these: they are set aside, the latest ones."""
    note, said = work / _SUBJECT, "\n".join(subject.launches)
    if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != said) and any(work.iterdir()):
        aside = work.with_name(f"{work.name}.superseded")
        shutil.rmtree(aside, ignore_errors=True)
        work.rename(aside)
        echo.line(f"{subject.candidate}: pairs of earlier runs are now in {aside}")
    work.mkdir(parents=True, exist_ok=True)
    write_whole(note, said.encode())


def _written(finding: Finding, work: Path) -> Finding:
    work.mkdir(parents=True, exist_ok=True)
    write_whole(work / FINDING_FILE, to_json(finding).encode())
    return finding


def _work(candidate: Arm, request: Request) -> Path:
    """`RESULTS/NAME/localize/ARM` for an arm in `RESULTS/NAME/arms/ARM`; else beside it."""
    home = candidate.folder.absolute().parent
    return request.work or (home.parent if home.name == "arms" else home) / "localize" / candidate.folder.name
