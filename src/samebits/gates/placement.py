"""Where the recipe asks its arms to run, held against the observed nodes: equal bits elsewhere are no answer."""

from __future__ import annotations

import dataclasses

from samebits.compare.nodes import names_text, nodes
from samebits.compare.results import Comparison, GateResult, Placement
from samebits.compare.scope import renamed
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.ranks import ranks_text
from samebits.gates.evidence import Evidence
from samebits.spec.sections import Recipe

_SAME: tuple[Placement, ...] = ("one node", "same nodes")
_OTHER: tuple[Placement, ...] = ("other nodes",)


def demanded(recipe: Recipe, gate: str) -> tuple[Placement, ...]:
    """Placements with which equal bits answer the gate; none where any does."""
    asked = recipe.cluster.placement if recipe.cluster else "any"
    if asked == "other-nodes" and gate == "repeatability":
        return _OTHER
    if asked == "same-nodes" and gate in ("repeatability", "resume", "observer"):
        return _SAME
    return ()


def misplaced(recipe: Recipe, gate: GateResult) -> list[Comparison]:
    """Those of its arms that did not run where the recipe asks, or of which it is not known."""
    wanted = demanded(recipe, gate.gate)
    return [
        comparison
        for comparison in gate.comparisons
        if wanted and (comparison.scope is None or comparison.scope.placement not in wanted)
    ]


def held_to_placement(gate: GateResult, evidence: Evidence) -> GateResult:
    """A `pass` of arms that ran elsewhere than asked is `inconclusive`; every other verdict stays. What the recipe in
    force asks for counts, whatever the arms' own plans said."""
    wrong = misplaced(evidence.recipe, gate) if gate.verdict == "pass" else []
    if not wrong:
        return gate
    return dataclasses.replace(gate, verdict="inconclusive", explanation=_explained(evidence, wrong[0], len(wrong) - 1))


def _explained(evidence: Evidence, comparison: Comparison, more: int) -> str:
    arm = comparison.candidate_arm
    reference, candidate = (evidence.arm(name).certified for name in (comparison.reference_arm, arm))
    if reference is None or candidate is None:
        return f"{arm}: nothing was compared"
    asked = evidence.recipe.cluster.placement if evidence.recipe.cluster else "any"
    told = _other if asked == "other-nodes" else _same
    found, way_out = told(arm, reference.manifest, candidate.manifest)
    rest = f" ({more} more arm{'s' * (more > 1)} likewise)" if more else ""
    return (
        f"{arm} has the reference's bits, but cluster.placement is {asked} and {found}{rest}, so that is not tested; "
        f"{way_out}"
    )


def _other(arm: str, reference: Manifest, candidate: Manifest) -> tuple[str, str]:
    """What was found, and the way out."""
    ours, theirs = nodes(reference), nodes(candidate)
    if "" in ours | theirs:
        return _unknown(arm)
    shared = names_text(ours & theirs)
    found = f"both ran on {shared}"
    if not shared:
        shared = names_text(renamed(reference, candidate))
        found = f"{shared} is a machine of the reference under another name (same boot id or GPU)"
    return found, f"run {arm} again on nodes that the reference did not have (sbatch's exclude)"


def _same(arm: str, reference: Manifest, candidate: Manifest) -> tuple[str, str]:
    """What was found, and the way out."""
    if "" in nodes(reference) | nodes(candidate):
        return _unknown(arm)
    pairs = [(ours, theirs) for ours, theirs in zip(reference.ranks, candidate.ranks, strict=True)]
    moved = [(ours, theirs) for ours, theirs in pairs if ours.pins.node != theirs.pins.node]
    there = names_text(ours.pins.node for ours, _ in moved)
    here = names_text(theirs.pins.node for _, theirs in moved)
    word = "ranks" if len(moved) > 1 else "rank"
    found = f"{word} {ranks_text(theirs.rank for _, theirs in moved)} ran on {there} there and on {here} here"
    return found, "run all arms again in one allocation"


def _unknown(arm: str) -> tuple[str, str]:
    return f"where the reference or {arm} ran was not recorded", "run both again"
