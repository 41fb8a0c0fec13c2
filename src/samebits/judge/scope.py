"""What a comparison covers, in numbers."""

from __future__ import annotations

import numpy as np

from samebits.artifact.manifest import Manifest
from samebits.artifact.site import RUNGS, Moment
from samebits.judge.judgement import Scope
from samebits.judge.pairing import Pairing
from samebits.judge.resume import restart


def scope_of(pairing: Pairing) -> Scope | None:
    """None where no block was compared. Records are counted on the candidate's side."""
    if not pairing.pairs or not pairing.same_rung.any():
        return None
    manifest = pairing.candidate.manifest
    rung = manifest.plan.recipe.capture.rung
    steps = [pair.step for pair in pairing.pairs if pair.moment is not Moment.RESTORED] or [pairing.pairs[0].step]
    records = sum(file.records for file in manifest.ranks)
    skipped = sum(file.skipped for file in manifest.ranks)
    return Scope(
        ranks=len(manifest.ranks),
        first_step=min(steps),
        last_step=max(steps),
        rung=rung,
        blocks=int(np.count_nonzero(pairing.same_rung)),
        full_blocks=int(np.count_nonzero(pairing.same_rung & (pairing.rungs[1] >= RUNGS.index(rung)))),
        records=records,
        skipped=skipped,
        share=(records - skipped) / records if records else 0.0,
        placement=placement(pairing.reference.manifest, manifest),
        restart=restart(manifest.plan),
    )


def placement(reference: Manifest, candidate: Manifest) -> str:
    """`one node`, `same nodes`, `other nodes`, or `unknown nodes`."""
    ours, theirs = hosts(reference), hosts(candidate)
    if "" in ours | theirs:
        return "unknown nodes"
    if ours != theirs:
        return "other nodes"
    return "one node" if len(ours) == 1 else "same nodes"


def hosts(manifest: Manifest) -> set[str]:
    return {file.pins.placement.get("host", "") for file in manifest.ranks}
