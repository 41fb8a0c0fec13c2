"""The verdict in plain words: what is proven or what failed first, how far that reaches, and what was not tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samebits.judge.judgement import Comparison, GateResult, Scope, Verdict
from samebits.problem import listed
from samebits.sections import Recipe

_PLACED = {
    "one node": "All arms ran on one node; this says nothing about other nodes.",
    "same nodes": "All arms ran on the same nodes; this says nothing about other nodes or allocations.",
    "other nodes": "Arms ran on different nodes; this says nothing about nodes that took no part.",
    "unknown nodes": "Where the arms ran was not recorded; this says nothing about any other placement.",
}
_QUESTIONS = {"repeatability": "a repeated run", "resume": "a resumed run", "observer": "a run without capture"}


def headline(recipe: Recipe, verdict: Verdict, gates: Sequence[GateResult]) -> str:
    """One sentence."""
    if verdict == "pass":
        asked = [_QUESTIONS[gate.gate] for gate in gates if gate.gate in _QUESTIONS]
        proven = f"{listed(asked, 'and')} gave the reference's bits{_apart_from(gates)}, and " if asked else ""
        return f"{recipe.name} passes: {proven}every planted fault was found at its place."
    first = next((gate for gate in gates if gate.verdict == verdict), None)
    if first is None:
        return f"{recipe.name} is inconclusive: it has no gate."
    said = {"fail": "fails", "invalid": "is not comparable", "inconclusive": "is inconclusive"}[verdict]
    return f"{recipe.name} {said}, gate {first.gate}: {_one_line(first.explanation)}"


def _apart_from(gates: Sequence[GateResult]) -> str:
    compared = (comparison for gate in gates for comparison in gate.comparisons)
    waived = dict.fromkeys(item.item for comparison in compared for item in comparison.waived if item.seen)
    return f" (apart from what is waived: {', '.join(waived)})" if waived else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".") + "."


def scope_text(recipe: Recipe, gates: Sequence[GateResult]) -> str:
    """One paragraph."""
    compared = [comparison for gate in gates if gate.gate != "control" for comparison in gate.comparisons]
    scopes = [comparison.scope for comparison in compared if comparison.scope is not None]
    if not scopes:
        return "Nothing was compared, so nothing is covered."
    return " ".join([*_covered(scopes), *_waived(compared), *_untested(recipe, gates, scopes)])


def _covered(scopes: Sequence[Scope]) -> Iterator[str]:
    ranks = max(scope.ranks for scope in scopes)
    first, last = min(scope.first_step for scope in scopes), max(scope.last_step for scope in scopes)
    skipped, records = sum(scope.skipped for scope in scopes), sum(scope.records for scope in scopes)
    widest = max(scopes, key=lambda scope: scope.blocks)
    yield f"{ranks} rank{'s' * (ranks > 1)}, steps {first} to {last}, rung {widest.rung} in {_share(scopes)}."
    if skipped:
        yield f"{skipped:,} of {records:,} records were skipped for their size: their bytes were not compared."
    else:
        yield f"All {records:,} records carried a fingerprint."
    for restart in sorted({scope.restart for scope in scopes if scope.restart is not None}):
        yield f"The resumed arm started from the checkpoint of step {restart}, once."
    for placement in sorted({scope.placement for scope in scopes}):
        yield _PLACED[placement]


def _share(scopes: Sequence[Scope]) -> str:
    full, blocks = sum(scope.full_blocks for scope in scopes), sum(scope.blocks for scope in scopes)
    return f"all {blocks:,} blocks" if full == blocks else f"{full:,} of {blocks:,} blocks, only metrics in the others"


def _waived(compared: Sequence[Comparison]) -> Iterator[str]:
    told: dict[str, str] = {}
    for item in (item for comparison in compared for item in comparison.waived if item.seen):
        state = "waived" if item.holds else "its waiver is void"
        told[f"{item.item} differs, {state} ({item.reason})"] = ""
    if told:
        yield f"{'; '.join(told)}."


def _untested(recipe: Recipe, gates: Sequence[GateResult], scopes: Sequence[Scope]) -> Iterator[str]:
    asked = {gate.gate for gate in gates}
    missing = [f"gate {gate}" for gate in ("repeatability", "resume", "control", "observer") if gate not in asked]
    more = f"more than {max(scope.ranks for scope in scopes)} ranks"
    longer = f"more than {max(scope.last_step for scope in scopes)} steps"
    yield f"Not tested: {listed([*missing, more, longer, 'single operations inside a step'], 'and')}."
