"""The verdict in plain words: what is proven or what failed first, how far that reaches, and what was not tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samebits.compare.nodes import names_text
from samebits.compare.results import Allocation, Comparison, Finding, GateResult, Placement, Scope
from samebits.gates.gates import misplaced
from samebits.overhead.results import Cost
from samebits.recipe.problem import listed
from samebits.spec.sections import Recipe
from samebits.spec.verdicts import Verdict

_PLACED: dict[Placement, str] = {
    "one node": "{arms} ran on the reference's one node; this says nothing about other nodes.",
    "same nodes": "{arms} ran on the reference's nodes, rank by rank; this says nothing about other nodes.",
    "same nodes, ranks placed otherwise": "{arms} ran on the reference's nodes, with ranks placed otherwise on them; "
    "this says nothing about other nodes.",
    "partly other nodes": "{arms} ran on some of the reference's nodes and on some others; this says nothing about "
    "a run on other nodes alone.",
    "other nodes": "{arms} ran on none of the reference's nodes; this says nothing about nodes that took no part.",
    "renamed nodes": "{arms} ran on machines of the reference under other names (same boot id or GPU); this says "
    "nothing about other nodes.",
    "unknown nodes": "Where the reference or {arms} ran was not recorded; this says nothing about any other placement.",
}
_ALLOCATED: dict[Allocation, str] = {
    "one allocation": "{arms} ran within one allocation with the reference: NCCL_ALGO=Ring, for example, pins the "
    "algorithm, not the physical ring, so this says nothing about another allocation.",
    "several allocations": "{arms} and the reference were compared across allocations; this says nothing about "
    "allocations that took no part.",
    "no scheduler": "No scheduler's job was recorded for {arms}, so this says nothing about allocations.",
    "unknown allocations": "Whether {arms} ran in the reference's allocation is not known, so this says nothing about "
    "allocations.",
}
_NO_BITS = "No bits were compared: whether the recipe computes the same ones is not covered."
_ASKED = {"other-nodes": "other nodes", "same-nodes": "the same nodes, rank by rank"}
_QUESTIONS = {"repeatability": "a repeated run", "resume": "a resumed run", "observer": "a run without capture"}


def headline(recipe: Recipe, verdict: Verdict, gates: Sequence[GateResult], findings: Sequence[Finding] = ()) -> str:
    """One sentence; where a cause was found, that."""
    if verdict == "pass":
        return f"{recipe.name} passes: {'; '.join(_proven(gates))}."
    first = next((gate for gate in gates if gate.verdict == verdict), None)
    if first is None:
        return f"{recipe.name} is inconclusive: it has no gate."
    said = {"fail": "fails", "invalid": "is not comparable", "inconclusive": "is inconclusive"}[verdict]
    why = next((one.sentence for one in findings if one.cause and _is_of(one, first)), first.explanation)
    return f"{recipe.name} {said}, gate {first.gate}: {_one_line(why)}"


def _is_of(finding: Finding, gate: GateResult) -> bool:
    return gate.verdict == "fail" and any(one.candidate_arm == finding.candidate for one in gate.comparisons)


def _proven(gates: Sequence[GateResult]) -> Iterator[str]:
    asked = [_QUESTIONS[gate.gate] for gate in gates if gate.gate in _QUESTIONS]
    if asked:
        bits = f"{listed(asked, 'and')} gave the reference's bits{_apart_from(gates)}"
        yield f"{bits}, and every planted fault was found at its place"
    for gate in gates:
        if gate.gate == "overhead":
            yield gate.explanation
    if not asked:
        yield "whether it computes the same bits was not tested"


def _apart_from(gates: Sequence[GateResult]) -> str:
    compared = (comparison for gate in gates for comparison in gate.comparisons)
    waived = dict.fromkeys(item.item for comparison in compared for item in comparison.waived if item.seen)
    return f" (apart from what is waived: {', '.join(waived)})" if waived else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".") + "."


def scope_text(
    recipe: Recipe, gates: Sequence[GateResult], costs: Sequence[Cost] = (), nodes: Sequence[str] = ()
) -> str:
    """One paragraph. nodes: sentences on what the nodes differ in."""
    compared = [comparison for gate in gates if gate.gate != "control" for comparison in gate.comparisons]
    scopes = [comparison.scope for comparison in compared if comparison.scope is not None]
    timed = list(_timed(costs))
    if not scopes:
        return " ".join([_NO_BITS, *timed]) if timed else "Nothing was compared, so nothing is covered."
    told = [*_covered(scopes), *_placed(compared), *nodes, *_waived(compared), *timed]
    return " ".join([*told, *_asked_for(recipe, gates), *_untested(recipe, gates, scopes)])


def _timed(costs: Sequence[Cost]) -> Iterator[str]:
    """How far the measured cost reaches."""
    for cost in costs:
        if cost.experiment != "overhead" and cost.findings is None:
            yield f"Asked for and not measured: {cost.experiment}, for its runs are missing or no evidence."
        if cost.experiment == "overhead" and cost.findings is not None:
            where = f" on {cost.nodes}" if cost.nodes else ""
            yield (
                f"Time: {cost.blocks} block{'s' * (cost.blocks > 1)} of {cost.steps} timed steps a run, {cost.ranks} "
                f"rank{'s' * (cost.ranks > 1)}{where}, capture off; this says nothing about the cost on other nodes, "
                "at another scale or with another parallel layout."
            )


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


def _placed(compared: Sequence[Comparison]) -> Iterator[str]:
    """Names the arms where they did not all run alike."""
    placements: dict[Placement, list[str]] = {}
    allocations: dict[Allocation, list[str]] = {}
    for comparison in compared:
        if (scope := comparison.scope) is not None:
            placements.setdefault(scope.placement, []).append(comparison.candidate_arm)
            allocations.setdefault(scope.allocation, []).append(comparison.candidate_arm)
    for placement, names in placements.items():
        yield _of_arms(_PLACED[placement], names, alone=len(placements) == 1)
    for allocation, names in allocations.items():
        yield _of_arms(_ALLOCATED[allocation], names, alone=len(allocations) == 1)


def _of_arms(sentence: str, names: list[str], *, alone: bool) -> str:
    arms = "the compared arms" if alone else names_text(names)
    text = sentence.format(arms=arms)
    return text[0].upper() + text[1:] if alone else text


def _asked_for(recipe: Recipe, gates: Sequence[GateResult]) -> Iterator[str]:
    """A placement that the recipe asks for and that some arm did not have."""
    asked = recipe.cluster.placement if recipe.cluster else "any"
    for gate in gates:
        if names := [comparison.candidate_arm for comparison in misplaced(recipe, gate)]:
            yield f"Asked for and not tested: {gate.gate} on {_ASKED[asked]}, for {names_text(names)} did not run so."
    if asked == "other-nodes" and all(gate.gate != "repeatability" for gate in gates):
        yield "Asked for and not tested: other nodes, for the recipe has no gate repeatability."


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
    # Rung `op` records every operation, so that only lower rungs leave them unseen.
    inside = [] if all(scope.rung == "op" for scope in scopes) else ["single operations inside a step"]
    yield f"Not tested: {listed([*missing, more, longer, *inside], 'and')}."
