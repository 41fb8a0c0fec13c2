"""The finding that localizing ends with: what was found, or how often it was looked for in vain, and one sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from samebits.compare.diagnosis import WORDS
from samebits.compare.results import Before, Cause, Divergence, Finding, Located, Origin, Status
from samebits.fingerprint.records import Kind
from samebits.recipe.problem import listed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The two arms that were found to differ. launches: ids of their starts."""

    reference: str
    candidate: str
    launches: tuple[str, str]
    divergence: Divergence


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """The pairs that were run. traced: ranks of the last pair, as text. folders: of the last pair."""

    tries: int = 0
    agreed: int = 0
    traced: str = ""
    folders: tuple[str, ...] = ()


def found(subject: Subject, attempts: Attempts, located: Located) -> Finding:
    """Return the finding where a traced pair differed as the arms did."""
    ranks = located.origins[0].ranks
    sentence = f"Step {located.step}, {'rank' if ranks.isdecimal() else 'ranks'} {ranks}: "
    if (cause := located.cause) is None:
        sentence += f"{located.refused}; {located.why}."
    else:
        if cause.kind == Kind.GIVEN:
            blamed = f"the bytes that {cause.name.rpartition('before ')[2]} reads in {cause.scope or 'no module'}"
        else:
            blamed = f"{WORDS[Kind(cause.kind)]} {cause.name}" + (f" in {cause.scope}" if cause.scope else "")
        equal = counted(located.before)
        sentence += f"{blamed}: {located.why}." + (f" Before it {equal} are equal." if equal else "")
    fields = {entry.name: getattr(located, entry.name) for entry in dataclasses.fields(Located)}
    return _finding(subject, attempts, "found" if cause else "unnamed", sentence, **fields)


def of_state(subject: Subject) -> Finding:
    """Return the finding where what was restored is not what was saved: no operation can be at fault."""
    divergence = subject.divergence
    first = divergence.ranks[0].first
    view = first.reference or first.candidate
    cause = Cause(
        phase=first.phase,
        kind=first.kind,
        name=first.name,
        scope=first.scope,
        occurrence=first.occurrence,
        form=view.form if view else "",
        stack=(),
    )
    origins = tuple(
        Origin(ranks=group.ranks, count=group.count, place=group.item, why=divergence.explanation)
        for group in divergence.groups
        if group.role == "origin"
    )
    sentence = f"{divergence.explanation} Nothing computes before it, so no run is traced."
    return _finding(subject, Attempts(), "found", sentence, cause=cause, origins=origins)


def not_reproduced(subject: Subject, attempts: Attempts) -> Finding:
    times = f"{attempts.tries} time{'s' * (attempts.tries != 1)}"
    sentence = f"Not reproduced: a pair was run again {times}, traced, and agreed each time. Nothing is named."
    return _finding(subject, attempts, "not reproduced", sentence)


def not_traced(subject: Subject, attempts: Attempts, reason: str) -> Finding:
    return _finding(subject, attempts, "not traced", f"Not located: {reason}.")


def _finding(subject: Subject, attempts: Attempts, status: Status, sentence: str, **located: Any) -> Finding:
    """Return a finding; what is not located is taken from the divergence of the arms."""
    divergence = subject.divergence
    known: dict[str, Any] = {
        "moment": divergence.moment,
        "step": divergence.step,
        "symptom": divergence.symptom,
        "why": divergence.explanation,
    }
    return Finding(
        reference=subject.reference,
        candidate=subject.candidate,
        launches=subject.launches,
        status=status,
        sentence=sentence,
        traced=attempts.traced,
        tries=attempts.tries,
        agreed=attempts.agreed,
        folders=attempts.folders,
        **(known | located),
    )


def counted(before: Before | None) -> str:
    """Return `2,445 operations (93 GEMMs), 9 collectives and messages and 12 other records`; empty for nothing."""
    if before is None:
        return ""

    def number(count: int, one: str, many: str) -> list[str]:
        return [f"{count:,} {one if count == 1 else many}"] * bool(count)

    operations = number(before.operations, "operation", "operations")
    if operations and before.gemms:
        operations = [f"{operations[0]} ({before.gemms:,} GEMM{'s' * (before.gemms != 1)})"]
    messages = number(before.collectives, "collective or message", "collectives and messages")
    return listed([*operations, *messages, *number(before.others, "other record", "other records")], "and")
