"""Judges a recipe from its arms on disk: every gate, the verdict over all, and what a report says beside it.

What a report lists of each arm, and of the reference's pins.

Whether a report still speaks of the artifacts that lie beside it.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import samebits
from samebits.compare.certify import Arm, Certified
from samebits.compare.curves import curves
from samebits.compare.nodes import differences, jobs_text, nodes_text
from samebits.compare.records import opened
from samebits.compare.results import Comparison, Curve, Finding, GateResult, Vote, current_findings
from samebits.compare.vote import Voter, vote
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.manifest import Manifest, read_clocks, read_manifest
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.reader import Block
from samebits.fingerprint.records import Moment
from samebits.gates.evidence import Evidence
from samebits.gates.gates import judge_gate, trusted, worst
from samebits.gates.judgement import ArmSummary, Judgement, PinRow
from samebits.gates.statement import headline, scope_text
from samebits.overhead.results import Cost
from samebits.overhead.timing import start_of
from samebits.plan import arms
from samebits.plan.overhead_runs import DETERMINISTIC
from samebits.spec.sections import Recipe

TIMED_RANKS = 64
"""Ranks whose times are looked at, spread evenly."""


def summarize(arm: Arm) -> ArmSummary:
    if arm.certified is None:
        return ArmSummary(
            arm=arm.name,
            folder=str(arm.folder),
            run_fingerprint=None,
            ranks=0,
            nodes="",
            job="",
            steps="",
            records=0,
            bytes=0,
            seconds=None,
            step_seconds=None,
            problem=arm.problem,
        )
    manifest = arm.certified.manifest
    seconds, step_seconds = _times(arm.certified)
    return ArmSummary(
        arm=arm.name,
        folder=str(arm.folder),
        run_fingerprint=manifest.run_fingerprint,
        ranks=len(manifest.ranks),
        nodes=nodes_text(manifest),
        job=jobs_text(manifest),
        steps=ranks_text(range(manifest.plan.first_step, manifest.plan.last_step + 1)),
        records=sum(file.records for file in manifest.ranks),
        bytes=sum(file.bytes for file in manifest.ranks),
        seconds=seconds,
        step_seconds=step_seconds,
        problem=None,
    )


def _times(certified: Certified) -> tuple[float | None, float | None]:
    """Seconds in all and in a median step, of the slowest rank; None where nothing says."""
    world = len(certified.manifest.ranks)
    ranks = (
        {index * (world - 1) // max(1, TIMED_RANKS - 1) for index in range(TIMED_RANKS)}
        if world > TIMED_RANKS
        else range(world)
    )
    try:
        blocks = [opened(certified, rank).blocks for rank in ranks]
    except (ArtifactError, OSError):
        return None, None
    medians = [median for own in blocks if (median := _median_step(own)) is not None]
    return max(own[-1].ended - own[0].started for own in blocks) / 1e9, max(medians, default=None)


def _median_step(blocks: list[Block]) -> float | None:
    steps = [block.ended - block.started for block in blocks if block.moment is Moment.STEP]
    return statistics.median(steps) / 1e9 if steps else None


def pin_rows(manifest: Manifest, declared: dict[str, str]) -> tuple[PinRow, ...]:
    """Every pin of every rank, and the nodes. declared: software by name."""
    found: dict[str, dict[str, list[int]]] = {}
    for file in manifest.ranks:
        for pin, value in file.pins.compared():
            found.setdefault(pin, {}).setdefault(value, []).append(file.rank)
        if node := file.pins.node:
            found.setdefault("placement.node", {}).setdefault(node, []).append(file.rank)
    return tuple(
        PinRow(
            pin=pin,
            values={value: ranks_text(ranks) for value, ranks in values.items()},
            declared=declared.get(pin.removeprefix("software.")) if pin.startswith("software.") else None,
        )
        for pin, values in found.items()
    )


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


def check_standing(judgement: Judgement, folder: Path) -> None:
    """Hold a judgement against the artifacts beside its report. folder: of the recipe's results, wherever it was moved
    or copied to, with its arms below `arms/`.

    Raises ArtifactError where an arm is gone or is another run than the one judged.
    """
    again = f"`samebits report` for recipe {judgement.recipe} again"
    for arm in judgement.arms:
        if arm.run_fingerprint is not None:
            _check_arm(arm, Artifact(folder / "arms" / arm.arm), again)
    for cost in judgement.costs:
        _check_runs(cost, folder / cost.experiment, again)


def _check_runs(cost: Cost, folder: Path, again: str) -> None:
    for run in (run for run in cost.runs if run.seal):
        artifact = Artifact(folder / run.arm)
        try:
            manifest = read_manifest(artifact)
            read_clocks(artifact, manifest)
        except ArtifactError as error:
            raise ArtifactError(f"the report is stale: {error}; then {again}") from error
        if manifest.plan.arm != run.arm or manifest.clocks != run.seal:
            raise ArtifactError(
                f"{artifact.folder}: is {manifest.plan.arm} of start {start_of(manifest)}, the report was made of "
                f"another run, of start {cost.start}; {again}"
            )


def _check_arm(arm: ArmSummary, artifact: Artifact, again: str) -> None:
    try:
        found = read_manifest(artifact).run_fingerprint
    except ArtifactError as error:
        raise ArtifactError(f"the report is stale: {error}; then {again}") from error
    if found != arm.run_fingerprint:
        raise ArtifactError(
            f"{artifact.folder}: run fingerprint is {found}, the report was made of {arm.run_fingerprint}; {again}"
        )
