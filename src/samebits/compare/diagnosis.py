"""Classifies a divergence by the kind of fault that it looks like. Claims no more than the records show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from samebits.compare import cause_rules
from samebits.compare.cross_rank import Link
from samebits.compare.results import Symptom
from samebits.fingerprint.format import Coordinates, ranks_text
from samebits.fingerprint.records import RUNGS, TRACED, Kind, Moment
from samebits.recipe.problem import listed

if TYPE_CHECKING:
    from samebits.compare.align import Pairing
    from samebits.compare.divergence import FirstDifference

LONGEST = 250
"""Characters of an explanation."""

WORDS = {
    Kind.BATCH: "batch",
    Kind.METRIC: "metric",
    Kind.GRADIENT: "gradient",
    Kind.OPTIMIZER: "optimizer state",
    Kind.MASTER: "master parameter",
    Kind.PARAMETER: "parameter",
    Kind.BUFFER: "buffer",
    Kind.SCHEDULER: "scheduler state",
    Kind.POSITION: "data position",
    Kind.RNG: "RNG stream",
    Kind.MODULE: "output of module",
    Kind.OUTPUT_GRADIENT: "gradient of the output of module",
    Kind.LOCAL_GRADIENT: "gradient before the reduction of",
    Kind.COLLECTIVE: "collective",
    Kind.SEND: "message",
    Kind.RECEIVE: "message",
    Kind.RECOMPUTE: "recomputed output of module",
    Kind.CALL: "call",
    Kind.OP: "operation",
    Kind.GIVEN: "bytes",
}
_TOGETHER = {
    Kind.BATCH: "data",
    Kind.GRADIENT: "gradients",
    Kind.OPTIMIZER: "optimizer state",
    Kind.MASTER: "master parameters",
    Kind.PARAMETER: "parameters",
}
_UPDATED = (Kind.OPTIMIZER, Kind.MASTER, Kind.PARAMETER)


@dataclass(frozen=True)
class Facts:
    """What a diagnosis is made from. findings: at least one, origins first."""

    pairing: Pairing
    findings: Sequence[FirstDifference]
    origins: frozenset[int]
    links: Mapping[int, Link]
    logging_only: bool

    @property
    def first(self) -> FirstDifference:
        return self.findings[0]

    @property
    def kind(self) -> Kind:
        return self.first.item.site.kind

    @property
    def here(self) -> list[FirstDifference]:
        """First differences of the ranks that differ in the same block as the first."""
        return [finding for finding in self.findings if finding.at == self.first.at]

    def replicas(self, rank: int) -> set[int]:
        """Return the ranks that hold the same copy of the first item, this one included."""
        return self._replicas[_held(self.pairing.reference.manifest.ranks[rank].coordinates, self.is_expert)]

    @property
    def is_expert(self) -> bool:
        """Whether the first item belongs to an expert.

        Experts are spread over expert-parallel ranks, all other parameters are the same on them.
        """
        return ".experts." in f".{self.first.item.site.name}."

    @cached_property
    def _replicas(self) -> dict[tuple[int, ...], set[int]]:
        found: dict[tuple[int, ...], set[int]] = {}
        for file in self.pairing.reference.manifest.ranks:
            found.setdefault(_held(file.coordinates, self.is_expert), set()).add(file.rank)
        return found


def diagnose(facts: Facts) -> tuple[Symptom, str]:
    """Return the symptom and its explanation, one sentence."""
    symptom, why = _classify(facts)
    site = facts.first.item.site
    ours, theirs = facts.pairing.reference.manifest.plan.arm, facts.pairing.candidate.manifest.plan.arm
    head = f"{theirs} parts from {ours} {_when(facts)} on {_where(facts)}: {WORDS[site.kind]} "
    item = facts.first.item
    how = "is missing in it" if item.candidate is None else "is only in it" if item.reference is None else "differs"
    end = f" {how}; {why}."
    return symptom, shortened(head + shortened(site.name, max(20, LONGEST - len(head) - len(end))) + end, LONGEST)


def _classify(facts: Facts) -> tuple[Symptom, str]:  # noqa: PLR0911, PLR0912 (a list of rules, one after another)
    """Return the symptom and half a sentence on why. The first rule that fits decides, so their order matters."""
    first, kind = facts.first, facts.kind
    if facts.logging_only:
        return Symptom.LOGGING_ONLY, "only metrics differ, every state item is equal to the end"
    if first.pair.moment is Moment.RESTORED:
        if kind is Kind.RNG:
            return Symptom.RNG, "the stream was not restored as it was saved"
        if kind is Kind.POSITION:
            return Symptom.DATA, "the data position was not restored as it was saved"
        return Symptom.RESTORED_STATE, "it is not what memory held when the checkpoint was saved"
    if first.trail is not None and kind in TRACED:
        named = cause_rules.name(first.trail, first.item, facts.links[first.rank])
        return named.symptom, named.why
    if first.item.lone:
        return Symptom.CONTROL_FLOW, "the arms did not do the same things"
    if not first.item.same_form:
        return Symptom.CONTROL_FLOW, "its dtype or shape is another one, or one arm skipped its bytes"
    if kind is Kind.SCHEDULER:
        return Symptom.CONTROL_FLOW, "the schedule was stepped differently"
    if kind is Kind.BATCH:
        return Symptom.DATA, "other data was read, before any computation"
    if kind is Kind.POSITION:
        return Symptom.DATA, "the data was read on differently"
    equal = _equal(facts)
    if kind is Kind.RNG:
        return Symptom.RNG, "the stream was drawn from differently" + (f"; {equal}" if equal else "")
    if _is_between_steps(facts):
        return Symptom.HARDWARE_SUSPICION, "the end of that step was equal and nothing computes in between"
    # An optimizer's counter goes wrong though all that was restored was equal: how it is held is at fault.
    restarted = facts.pairing.candidate.manifest.plan.restore is not None
    counts = first.first.reference is not None and first.first.reference.value is not None
    if restarted and kind is Kind.OPTIMIZER and counts and Kind.GRADIENT in first.equal:
        why = "it was equal right after the restore, as gradients are here: it advances differently"
        return Symptom.RESTORED_STATE, why
    if hardware := _hardware(facts):
        return Symptom.HARDWARE_SUSPICION, hardware
    # Every replica differs. A backward pass that differs on one rank reaches all replicas as well, and is named, too.
    held = [facts.replicas(rank) for rank in facts.origins] if kind is Kind.GRADIENT else []
    if len(held) >= 2 and all(len(replicas) >= 2 and replicas <= facts.origins for replicas in held):
        return Symptom.COLLECTIVE, "all replicas differ, losses do not: the reduction, or a backward pass before it"
    if facts.pairing.rungs[1][first.rank, first.at] < RUNGS.index("state"):
        return Symptom.KERNEL, "no state was recorded there, so what came before it is not known"
    return Symptom.KERNEL, equal or "nothing recorded before it in that step differs"


def _is_between_steps(facts: Facts) -> bool:
    """Return whether saved or final state differs where the end of the same step, at full state, did not."""
    pairing, at, pair = facts.pairing, facts.first.at, facts.first.pair
    if pair.moment is Moment.STEP or at == 0 or pairing.pairs[at - 1].step != pair.step:
        return False
    full = (pairing.rungs[1][:, at - 1] >= RUNGS.index("state")) & pairing.same_rung[:, at - 1]
    return all(full[finding.rank] for finding in facts.here)


def _hardware(facts: Facts) -> str:
    """Return why one rank's hardware is suspected; empty where it is not.

    That rank alone differs in what should follow from equal inputs, or in what its replicas hold as well.
    """
    if len(facts.origins) != 1 or len(facts.pairing.reference.manifest.ranks) < 2:
        return ""
    first, kind = facts.first, facts.kind
    if kind is Kind.GRADIENT:
        peers = facts.replicas(first.rank) - {first.rank}
        touched = {finding.rank for finding in facts.here if Kind.GRADIENT in finding.changed}
        if peers and not peers & touched:
            return "its data-parallel replicas agree"
    alone = len(facts.here) == 1 and first.changed == {kind}
    return _equal(facts) if kind in _UPDATED and alone and Kind.GRADIENT in first.equal else ""


def _held(place: Coordinates, expert: bool) -> tuple[int, ...]:
    """Return which part of the model a rank holds."""
    return place.tensor, place.pipeline, place.context, place.expert if expert else 0


def _equal(facts: Facts) -> str:
    """Return `data, gradients and optimizer state of that step are equal`, or nothing."""
    names = [name for kind, name in _TOGETHER.items() if kind in facts.first.equal]
    return f"{listed(names, 'and')} of that step are equal" if names else ""


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _when(facts: Facts) -> str:
    step = facts.first.pair.step
    return {
        Moment.STEP: f"at step {step}",
        Moment.RESTORED: f"right after the restore at step {step}",
        Moment.SAVED: f"in the state saved at step {step}",
        Moment.FINAL: f"in the final state after step {step}",
    }[facts.first.pair.moment]


def _where(facts: Facts) -> str:
    ranks = sorted(facts.origins or (finding.rank for finding in facts.here))
    if len(ranks) == 1:
        return f"rank {ranks[0]} only" if len(facts.here) == 1 else f"rank {ranks[0]}"
    if len(ranks) == len(facts.pairing.reference.manifest.ranks):
        return "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
    return f"ranks {shortened(ranks_text(ranks), 40)}"
