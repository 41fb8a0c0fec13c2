"""Whether a planted fault was found at exactly the place where the rank itself noted that it struck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.compare.compare import NOT_SEEN, not_comparable
from samebits.compare.results import Comparison, Divergence
from samebits.fingerprint.manifest import Planted
from samebits.fingerprint.ranks import ranks_text
from samebits.spec.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """`pass`: found there. `fail`: found elsewhere, or not at all."""

    verdict: Verdict
    explanation: str


@dataclass(frozen=True)
class _Place:
    """Where a fault strikes, on all its ranks."""

    moment: str
    step: int
    kind: str
    name: str
    scope: str

    def __str__(self) -> str:
        when = f"at step {self.step}" if self.moment == "step" else f"{self.moment} at step {self.step}"
        return f"{self.kind}:{self.name}{f' [{self.scope}]' if self.scope else ''} {when}"


def judge_control(comparison: Comparison, planted: Sequence[Planted]) -> Outcome:
    """planted: notes of the candidate's ranks."""
    arm = comparison.candidate_arm
    doubts = [problem for problem in comparison.problems if problem != NOT_SEEN]
    if comparison.verdict == "invalid":
        return Outcome("invalid", not_comparable(comparison))
    if comparison.scope is None or (comparison.divergence is None and doubts):
        return Outcome("inconclusive", doubts[0] if doubts else f"{arm}: nothing was compared")
    places = {_place(note) for note in planted}
    if len(places) != 1:
        what = "no rank noted a planted fault" if not places else f"faults were planted at {len(places)} places"
        return Outcome("inconclusive", f"{arm}: {what}, so that nothing can be looked for; run it again")
    place, ranks = places.pop(), frozenset(note.rank for note in planted)
    text = f"{planted[0].fault}, {place}, {_ranks(ranks)}"
    if comparison.divergence is None:
        return Outcome("fail", f"{arm}: the planted fault ({text}) was not found")
    if _is_at(comparison.divergence, place, ranks):
        return Outcome("pass", f"{arm}: found where it was planted ({text})")
    return Outcome("fail", f"{arm}: planted was {text}; found was {_found(comparison.divergence)}")


def _place(note: Planted) -> _Place:
    return _Place(note.moment, note.step, note.kind, note.name, note.scope)


def _is_at(divergence: Divergence, place: _Place, ranks: frozenset[int]) -> bool:
    """The same moment and step, these ranks and no others as origins, and on each of them this item first."""
    origins = [group for group in divergence.groups if group.role == "origin"]
    if len(origins) != 1 or (divergence.moment, divergence.step) != (place.moment, place.step):
        return False
    group = origins[0]
    if (group.ranks, group.count, group.item) != (ranks_text(ranks), len(ranks), f"{place.kind}:{place.name}"):
        return False
    return all(rank.first.scope == place.scope for rank in divergence.ranks if rank.role == "origin")


def _found(divergence: Divergence) -> str:
    first = divergence.ranks[0].first
    place = _Place(divergence.moment, divergence.step, first.kind, first.name, first.scope)
    return f"{place}, {'; '.join(f'ranks {group.ranks}' for group in divergence.groups if group.role == 'origin')}"


def _ranks(ranks: frozenset[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}"
