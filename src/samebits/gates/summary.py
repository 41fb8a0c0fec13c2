"""What a report lists of each arm, and of the reference's pins."""

from __future__ import annotations

import statistics

from samebits.compare.certify import Arm, Certified
from samebits.compare.nodes import jobs_text, nodes_text
from samebits.compare.records import opened
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.paths import ArtifactError
from samebits.fingerprint.ranks import ranks_text
from samebits.fingerprint.reader import Block
from samebits.fingerprint.records import Moment
from samebits.gates.judgement import ArmSummary, PinRow

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
