"""Holds one artifact against itself: what its ranks must have alike, they have alike.

    checked = check(Artifact(Path("results/smoke/arms/reference")))

Finds what two equal runs cannot show: a fault that is the same in both. What the records do not allow to be checked is
said, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from samebits.checks.communication import CollectivesOfMembers, MessagePairs, Recomputed
from samebits.checks.invariants import Check, Invariant, RankRows, read_ranks, verdict_of
from samebits.checks.state import RandomStreams, Replicas, Samples, TensorReplicas, Tied
from samebits.compare.certify import Certified, load
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.fingerprint.records import Kind


class Looking(Protocol):
    """Sees every rank once, in order, then says what held."""

    def see(self, rank: RankRows) -> None: ...

    def results(self) -> Iterator[Invariant]: ...


def check(artifact: Artifact) -> Check:
    """Never raises for a damaged or missing artifact: that is `inconclusive`."""
    arm = load(artifact.folder)
    if arm.certified is None:
        return _without_evidence(artifact, arm.name, arm.problem or "not certified")
    try:
        found = _look(arm.certified)
    except ArtifactError as error:
        return _without_evidence(artifact, arm.name, str(error))
    return Check(
        path=str(artifact.folder),
        arm=arm.name,
        run_fingerprint=arm.fingerprint,
        verdict=verdict_of(found),
        problem=None,
        invariants=found,
    )


def _look(certified: Certified) -> tuple[Invariant, ...]:
    invariants: list[Looking] = [
        *(Replicas(), TensorReplicas(), Tied(), CollectivesOfMembers(), MessagePairs(), Recomputed()),
        *(RandomStreams(_default_stream(certified)), Samples()),
    ]
    for rank in read_ranks(certified):
        for invariant in invariants:
            invariant.see(rank)
    return tuple(result for invariant in invariants for result in invariant.results())


def _default_stream(certified: Certified) -> str | None:
    """Of the device that trains. On a CPU a script's own data loading may draw from it too, on some ranks alone: then
    nothing is known of it."""
    file = certified.file(0)
    if any(site.kind is Kind.RNG and site.name == "cuda" for site in file.sites):
        return "cuda"
    return "torch" if certified.manifest.plan.recipe.workload == "megatron-core" else None


def _without_evidence(artifact: Artifact, arm: str, problem: str) -> Check:
    return Check(
        path=str(artifact.folder),
        arm=arm,
        run_fingerprint="",
        verdict="inconclusive",
        problem=problem,
        invariants=(),
    )
