"""The gates of a recipe, each a question with a verdict and its evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from samebits.compare.compare import Excuses, Waivers, compare_arms, explain, unhealthy
from samebits.compare.results import Comparison, GateResult
from samebits.gates.control import Outcome, judge_control
from samebits.gates.evidence import Evidence
from samebits.gates.placement import held_to_placement
from samebits.overhead import comparability
from samebits.overhead.gate import judge_overhead
from samebits.plan import arms
from samebits.spec.pins import Deviation
from samebits.spec.questions import Gate
from samebits.spec.verdicts import Verdict

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
    failures += [] if failures or costs[0].failures else comparability.apart(evidence.recipe, runs)
    return judge_overhead(costs[0], evidence.recipe.overhead, failures, _of_arms(evidence))


def _of_arms(evidence: Evidence) -> list[Deviation]:
    """Of the timed runs from the reference, where bits are compared, too: one sentence must not join two machines."""
    if arms.REFERENCE not in evidence.names or evidence.reference.certified is None:
        return []
    timed = [run.manifest for run in evidence.runs("overhead").all if run.manifest and not run.plan.relaxed]
    found = comparability.of_arm(evidence.reference.certified.manifest, timed[0]) if timed else []
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
