"""A finding in words and as a noun: what localising found, or how often it looked in vain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from samebits.compare.diagnosis import WORDS
from samebits.compare.results import Before, Cause, Divergence, Finding, Origin, Status
from samebits.fingerprint.records import Kind
from samebits.localize.locate import Located, Untraced
from samebits.recipe.problem import listed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The two arms that were found to differ. launches: of their starts, so that a finding of earlier runs is known for
    what it is."""

    reference: str
    candidate: str
    launches: tuple[str, str]
    divergence: Divergence


@dataclass(frozen=True, kw_only=True)
class Search:
    """How it was looked for. traced: ranks of the last pair, as text. folders: of the last pair."""

    tries: int = 0
    agreed: int = 0
    traced: str = ""
    folders: tuple[str, ...] = ()


def found(subject: Subject, search: Search, located: Located) -> Finding:
    return dataclasses.replace(
        _without(subject, search, "found" if located.cause else "unnamed", _sentence(located)),
        moment=located.moment,
        step=located.step,
        symptom=str(located.symptom),
        cause=located.cause,
        why=located.why,
        refused=located.refused,
        suspect=located.suspect,
        inputs=located.inputs,
        before=located.before,
        origins=located.origins,
        receivers=located.receivers,
        pattern=located.pattern,
        cells=located.cells,
        around=located.around,
    )


def of_state(subject: Subject) -> Finding:
    """No operation can be at fault: what was restored is not what was saved."""
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
    return dataclasses.replace(_without(subject, Search(), "found", sentence), cause=cause, origins=origins)


def not_reproduced(subject: Subject, search: Search) -> Finding:
    times = f"{search.tries} time{'s' * (search.tries != 1)}"
    sentence = f"Not reproduced: a pair was run again {times}, traced, and agreed each time. Nothing is named."
    return _without(subject, search, "not reproduced", sentence)


def not_traced(subject: Subject, search: Search, reason: str) -> Finding:
    return _without(subject, search, "not traced", f"Not located: {reason}.")


def reason_of(untraced: Untraced) -> str:
    step = untraced.step
    where = f"step {step}" if untraced.moment == "step" else f"the {untraced.moment} state of step {step}"
    return f"the pair parts in {where}, where no operation is traced"


def _without(subject: Subject, search: Search, status: Status, sentence: str) -> Finding:
    """Without a cause."""
    divergence = subject.divergence
    return Finding(
        reference=subject.reference,
        candidate=subject.candidate,
        launches=subject.launches,
        status=status,
        sentence=sentence,
        moment=divergence.moment,
        step=divergence.step,
        symptom=str(divergence.symptom),
        cause=None,
        why=divergence.explanation,
        refused="",
        suspect="",
        inputs=None,
        before=None,
        origins=(),
        receivers="",
        pattern="",
        cells=(),
        around=(),
        traced=search.traced,
        tries=search.tries,
        agreed=search.agreed,
        folders=search.folders,
    )


def _sentence(located: Located) -> str:
    """One line: where, what, and why it is believed."""
    ranks = located.origins[0].ranks
    word = "rank" if ranks.isdecimal() else "ranks"
    head = f"Step {located.step}, {word} {ranks}: "
    if located.cause is None:
        return f"{head}{located.refused}; {located.why}."
    return f"{head}{_what(located.cause)}: {located.why}.{_evidence(located)}"


def _what(cause: Cause) -> str:
    if cause.kind == Kind.GIVEN:
        return f"the bytes that {cause.name.rpartition('before ')[2]} reads in {cause.scope or 'no module'}"
    word = WORDS[Kind(cause.kind)]
    where = f" in {cause.scope}" if cause.scope else ""
    return f"{word} {cause.name}{where}"


def _evidence(located: Located) -> str:
    told = counted(located.before)
    return f" Before it {told} are equal." if told else ""


def counted(before: Before | None) -> str:
    """`2,445 operations (93 GEMMs), 9 collectives and 12 other records`; empty where nothing stands before."""
    if before is None:
        return ""
    gemms = f" ({before.gemms:,} GEMM{'s' * (before.gemms != 1)})" if before.gemms else ""
    parts = [
        *([f"{_number(before.operations, 'operation')}{gemms}"] if before.operations else []),
        *(
            [_number(before.collectives, "collective or message", "collectives and messages")]
            * bool(before.collectives)
        ),
        *([_number(before.others, "other record")] * bool(before.others)),
    ]
    return listed(parts, "and")


def _number(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
