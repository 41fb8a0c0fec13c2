"""The gates of a recipe, each a question with a verdict and its evidence.

Whether a planted fault was found at exactly the place where the rank itself noted that it struck.

Where the recipe asks its arms to run, held against the observed nodes: equal bits elsewhere are no answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samebits.compare.compare import NOT_SEEN, Excuses, Waivers, compare_arms, explain, not_comparable, unhealthy
from samebits.compare.nodes import names_text, nodes
from samebits.compare.results import Comparison, Divergence, GateResult, Placement
from samebits.compare.scope import renamed
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.manifest import Manifest, Planted
from samebits.gates.evidence import Evidence
from samebits.overhead import analysis
from samebits.overhead.gate import judge_overhead
from samebits.plan import arms
from samebits.spec.pins import Deviation
from samebits.spec.questions import Gate
from samebits.spec.sections import Recipe
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


_WORST: tuple[Verdict, ...] = ("fail", "invalid", "inconclusive", "pass")


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Nothing judged is `inconclusive`."""
    return min(verdicts, key=_WORST.index, default="inconclusive")


def judge_gate(gate: Gate, evidence: Evidence) -> GateResult:
    return held_to_placement(_GATES[gate](evidence), evidence)


def trusted(gates: Sequence[GateResult]) -> tuple[GateResult, ...]:
    """Without a control that found every planted fault, no other gate on bits may say `pass`."""
    control = next((gate for gate in gates if gate.gate == "control"), None)
    if control is not None and control.verdict == "pass":
        return tuple(gates)
    reason = f"the gate control is {control.verdict}" if control else "no control was run"
    return tuple(_doubted(gate, reason) if gate.verdict == "pass" and _compares(gate) else gate for gate in gates)


def _compares(gate: GateResult) -> bool:
    """Time is measured, not compared bit by bit: planted faults say nothing about it."""
    return gate.gate != "overhead"


def _doubted(gate: GateResult, reason: str) -> GateResult:
    return GateResult(
        gate=gate.gate,
        verdict="inconclusive",
        explanation=f"no difference was found, but {reason}: that one would be found is not shown",
        comparisons=gate.comparisons,
    )


def _repeatability(evidence: Evidence) -> GateResult:
    twins = [name for name in evidence.names if name.startswith("twin-")]
    return _gate("repeatability", [_compared(evidence, name) for name in twins])


def _resume(evidence: Evidence) -> GateResult:
    return _gate("resume", [_compared(evidence, arms.RESUMED)])


def _observer(evidence: Evidence) -> GateResult:
    """An arm `bare` that recorded more than its final state was observed as well, and proves nothing."""
    bare = evidence.arm(arms.BARE)
    blocks = bare.certified.manifest.blocks if bare.certified else ()
    comparison = _compared(evidence, arms.BARE)
    if any(block.moment != "final" for block in blocks):
        message = f"bare: recorded {len(blocks)} blocks, must be its final state alone; run it with capture off"
        return GateResult(gate="observer", verdict="inconclusive", explanation=message, comparisons=(comparison,))
    return _gate("observer", [comparison])


def _control(evidence: Evidence) -> GateResult:
    """A waived item is passed over, unless it is the one that was planted."""
    comparisons, outcomes = [], []
    for name in (name for name in evidence.names if name.startswith("control-")):
        arm = evidence.arm(name)
        notes = arm.certified.manifest.planted if arm.certified else ()
        planted = frozenset(f"{note.kind}:{note.name}" for note in notes)
        excuses = Excuses(passed_over=Waivers(evidence.recipe.waivers).without(planted))
        comparisons.append(compare_arms(evidence.reference, arm, excuses))
        outcomes.append(judge_control(comparisons[-1], notes))
    outcomes += _reference_outcomes(evidence)
    verdict = worst([outcome.verdict for outcome in outcomes])
    told = [outcome.explanation for outcome in outcomes if outcome.verdict == verdict]
    if verdict == "pass":
        told = [f"{len(outcomes)} of {len(outcomes)} planted faults were found, each at exactly its place"]
    return GateResult(
        gate="control",
        verdict=verdict,
        explanation="; ".join(told) or "no control was run",
        comparisons=tuple(comparisons),
    )


def _reference_outcomes(evidence: Evidence) -> list[Outcome]:
    """What the reference itself takes away."""
    certified = evidence.reference.certified
    if certified is None:
        return []
    found = [Outcome("fail", line) for line in unhealthy(certified.manifest)]
    if certified.manifest.plan.faults or certified.manifest.planted:
        found.append(Outcome("inconclusive", "reference: carries a planted fault itself; run it without"))
    return found


def _overhead(evidence: Evidence) -> GateResult:
    if evidence.recipe.overhead is None:
        raise ValueError("the gate overhead needs the section overhead; rules.evidence holds recipes to that")
    costs = [evidence.cost(experiment) for experiment in evidence.made]
    failures = [f"experiment {cost.experiment}: {text}" for cost in costs[1:] for text in cost.failures]
    runs = [run for experiment in evidence.made for run in evidence.runs(experiment).all if run.manifest]
    failures += [] if failures or costs[0].failures else analysis.apart(evidence.recipe, runs)
    return judge_overhead(costs[0], evidence.recipe.overhead, failures, _of_arms(evidence))


def _of_arms(evidence: Evidence) -> list[Deviation]:
    """Of the timed runs from the reference, where bits are compared, too: one sentence must not join two machines."""
    if arms.REFERENCE not in evidence.names or evidence.reference.certified is None:
        return []
    timed = [run.manifest for run in evidence.runs("overhead").all if run.manifest and not run.plan.relaxed]
    found = analysis.of_arm(evidence.reference.certified.manifest, timed[0]) if timed else []
    return [dataclasses.replace(row, pin=f"{row.pin} (of the reference and of timed runs)") for row in found]


_GATES: dict[Gate, Callable[[Evidence], GateResult]] = {
    "repeatability": _repeatability,
    "resume": _resume,
    "observer": _observer,
    "control": _control,
    "overhead": _overhead,
}


def _compared(evidence: Evidence, name: str) -> Comparison:
    excuses = Excuses(waived=Waivers(evidence.recipe.waivers))
    return compare_arms(evidence.reference, evidence.arm(name), excuses)


def _gate(gate: Gate, comparisons: Sequence[Comparison]) -> GateResult:
    verdict = worst([comparison.verdict for comparison in comparisons])
    deciding = [comparison for comparison in comparisons if comparison.verdict == verdict]
    explanation = explain(deciding[0]) if deciding else f"{gate}: no arm was compared"
    return GateResult(gate=gate, verdict=verdict, explanation=explanation, comparisons=tuple(comparisons))
