"""The scope of a comparison in numbers: ranks, steps, records, and where the arms ran."""

from __future__ import annotations

import numpy as np

from samebits.compare.align import Pairing, restart
from samebits.compare.results import Allocation, Placement, Scope
from samebits.fingerprint.manifest import Manifest
from samebits.fingerprint.records import RUNGS, Moment


def scope_of(pairing: Pairing) -> Scope | None:
    """Return what was compared, counted on the candidate's side; None where no block was."""
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
        allocation=allocation(pairing.reference.manifest, manifest),
        restart=restart(manifest.plan),
    )


def placement(reference: Manifest, candidate: Manifest) -> Placement:
    """Classify where the candidate's ranks ran, seen from the reference."""
    ours, theirs = ([file.pins.node for file in manifest.ranks] for manifest in (reference, candidate))
    if "" in ours or "" in theirs:
        return "unknown nodes"
    if ours == theirs:
        return "one node" if len(set(ours)) == 1 else "same nodes"
    if set(ours) == set(theirs):
        return "same nodes, ranks placed otherwise"
    if renamed(reference, candidate):
        return "renamed nodes"
    return "other nodes" if set(ours).isdisjoint(theirs) else "partly other nodes"


def renamed(reference: Manifest, candidate: Manifest) -> set[str]:
    """Return the candidate's names of machines that the reference knows by other names.

    A machine is recognized by its boot id or a GPU.
    """
    known: dict[tuple[str, str], set[str]] = {}
    for file in reference.ranks:
        for mark in file.pins.machine:
            known.setdefault(mark, set()).add(file.pins.node)
    return {
        file.pins.node
        for file in candidate.ranks
        if any(known.get(mark, {file.pins.node}) != {file.pins.node} for mark in file.pins.machine)
    }


def allocation(reference: Manifest, candidate: Manifest) -> Allocation:
    """Classify whether both arms ran in one allocation. The parts of a heterogeneous job have ids of their own."""
    ours, theirs = ([file.pins.job for file in manifest.ranks] for manifest in (reference, candidate))
    if not any(ours) and not any(theirs):
        return "no scheduler"
    if ours == theirs and all(ours):
        return "one allocation"
    certain = all(ours) and all(theirs) and set(ours).isdisjoint(theirs)
    return "several allocations" if certain else "unknown allocations"
