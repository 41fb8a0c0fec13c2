"""Judges a recipe from its arms on disk: every gate, the verdict over all, and what a report says beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import samebits
from samebits.compare.curves import curves
from samebits.compare.nodes import differences
from samebits.compare.results import Comparison, Curve, Finding, GateResult, Vote, current_findings
from samebits.compare.vote import Voter, vote
from samebits.fingerprint.manifest import Manifest
from samebits.gates.evidence import Evidence
from samebits.gates.gates import judge_gate, trusted, worst
from samebits.gates.judgement import Judgement
from samebits.gates.summary import pin_rows, summarize
from samebits.overhead.results import Cost
from samebits.plan import arms
from samebits.plan.overhead_runs import DETERMINISTIC
from samebits.report.statement import headline, scope_text
from samebits.spec.sections import Recipe

JUDGEMENT_FORMAT = 4
"""2: nodes, jobs and allocations. 3: costs. 4: findings."""


def judge(recipe: Recipe, results: Path) -> Judgement:
    """results: folder of all results. Never raises for missing or damaged artifacts: they are `inconclusive`."""
    evidence = Evidence(recipe, results)
    gates = trusted([judge_gate(gate, evidence) for gate in recipe.gates])
    # Controls prove nothing about the recipe by themselves.
    proven = any(gate.gate != "control" for gate in gates)
    verdict = worst([gate.verdict for gate in gates] + ([] if proven else ["inconclusive"]))
    costs = tuple(_costs(evidence))
    findings = tuple(_findings(evidence, gates))
    pinned = _pinned(evidence)
    return Judgement(
        format=JUDGEMENT_FORMAT,
        samebits=samebits.__version__,
        recipe=recipe.name,
        verdict=verdict,
        headline=headline(recipe, verdict, gates, findings),
        scope=scope_text(recipe, gates, costs, differences(_manifests(evidence))),
        gates=gates,
        findings=findings,
        costs=costs,
        vote=_vote(evidence, gates),
        curves=tuple(_curves(evidence, gates)),
        arms=tuple(summarize(evidence.arm(name)) for name in evidence.names),
        pins=pin_rows(pinned, recipe.pins) if pinned else (),
        recipe_text=json.dumps(dataclasses.asdict(recipe), indent=2),
    )


def _findings(evidence: Evidence, gates: tuple[GateResult, ...]) -> Iterator[Finding]:
    """Of arms in which a gate still fails."""
    failed = {
        comparison.candidate_arm
        for gate in gates
        for comparison in gate.comparisons
        if gate.gate != "control" and comparison.divergence is not None
    }
    for finding in current_findings(evidence.results / evidence.recipe.name):
        if finding.candidate in failed:
            yield finding


def _costs(evidence: Evidence) -> Iterator[Cost]:
    """Of the experiments that the recipe asks for, and of others that were made on request."""
    for experiment in evidence.made:
        yield evidence.cost(experiment)
    if evidence.recipe.overhead and evidence.runs("null").present and evidence.cost("null").findings:
        yield evidence.cost("null")


def _pinned(evidence: Evidence) -> Manifest | None:
    """Of the reference; of a recipe that only measures time, of its first deterministic run."""
    if arms.REFERENCE in evidence.names:
        certified = evidence.reference.certified
        return certified.manifest if certified else None
    if evidence.recipe.overhead is None:
        return None
    return next((run.manifest for run in evidence.runs("overhead").all if run.setting == DETERMINISTIC), None)


def _manifests(evidence: Evidence) -> Iterator[Manifest]:
    for name in evidence.names:
        if certified := evidence.arm(name).certified:
            yield certified.manifest


def _vote(evidence: Evidence, gates: tuple[GateResult, ...]) -> Vote | None:
    """Among the reference and the arms that are comparable with it; one with a used waiver differs by permission."""
    compared = {
        comparison.candidate_arm: comparison
        for gate in gates
        if gate.gate in ("repeatability", "resume")
        for comparison in gate.comparisons
    }
    if not compared:
        return None
    names = [name for name, comparison in compared.items() if _may_vote(comparison)]
    found = ((name, evidence.arm(name).certified) for name in [arms.REFERENCE, *names])
    return vote([Voter(name, certified) for name, certified in found if certified is not None])


def _may_vote(comparison: Comparison) -> bool:
    excused = any(item.seen and item.holds for item in comparison.waived)
    return comparison.scope is not None and not comparison.deviations and not comparison.problems and not excused


def _curves(evidence: Evidence, gates: tuple[GateResult, ...]) -> Iterator[Curve]:
    for comparison in _charted(gates):
        reference = evidence.reference.certified
        candidate = evidence.arm(comparison.candidate_arm).certified
        if reference is not None and candidate is not None:
            yield from curves(reference, candidate, comparison.divergence)


def _charted(gates: tuple[GateResult, ...]) -> list[Comparison]:
    """The first candidate that diverged, else the first twin; the resumed arm; the first control that was found."""
    told = [comparison for gate in gates if gate.gate in ("repeatability", "resume") for comparison in gate.comparisons]
    controls = [comparison for gate in gates if gate.gate == "control" for comparison in gate.comparisons]
    wanted = [
        *([comparison for comparison in told if comparison.divergence] or told)[:1],
        *(comparison for comparison in told if comparison.candidate_arm == arms.RESUMED),
        *[comparison for comparison in controls if comparison.divergence][:1],
    ]
    return list({comparison.candidate_arm: comparison for comparison in wanted}.values())
