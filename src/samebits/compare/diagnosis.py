"""What kind of fault a divergence looks like, and one sentence about it. Claims no more than the records show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from samebits.compare import cause_rules
from samebits.compare.cross_rank import Link
from samebits.compare.results import Symptom
from samebits.fingerprint.header import Coordinates
from samebits.fingerprint.ranks import ranks_text
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
    """findings: origins first, at least one."""

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
        """Ranks that differ in the same block as the first."""
        return [finding for finding in self.findings if finding.at == self.first.at]

    @property
    def at_restore(self) -> bool:
        return self.first.pair.moment is Moment.RESTORED

    def replicas(self, rank: int) -> set[int]:
        """Ranks that hold the same copy of the first item, this one included."""
        return self._replicas[_held(self.pairing.reference.manifest.ranks[rank].coordinates, self.is_expert)]

    @property
    def is_expert(self) -> bool:
        """Experts are spread over expert-parallel ranks, all other parameters are the same on them."""
        return ".experts." in f".{self.first.item.site.name}."

    @cached_property
    def _replicas(self) -> dict[tuple[int, ...], set[int]]:
        found: dict[tuple[int, ...], set[int]] = {}
        for file in self.pairing.reference.manifest.ranks:
            found.setdefault(_held(file.coordinates, self.is_expert), set()).add(file.rank)
        return found


Diagnosis = tuple[Symptom, str]


def diagnose(facts: Facts) -> Diagnosis:
    """(symptom, explanation). The first rule that fits decides."""
    symptom, tail = next(found for rule in _RULES if (found := rule(facts)))
    return symptom, _sentence(facts, tail)


def _logging(facts: Facts) -> Diagnosis | None:
    if not facts.logging_only:
        return None
    return Symptom.LOGGING_ONLY, "only metrics differ, every state item is equal to the end"


def _restored(facts: Facts) -> Diagnosis | None:
    if not facts.at_restore:
        return None
    if facts.kind is Kind.RNG:
        return Symptom.RNG, "the stream was not restored as it was saved"
    if facts.kind is Kind.POSITION:
        return Symptom.DATA, "the data position was not restored as it was saved"
    return Symptom.RESTORED_STATE, "it is not what memory held when the checkpoint was saved"


def _traced(facts: Facts) -> Diagnosis | None:
    first = facts.first
    if first.trail is None or facts.kind not in TRACED:
        return None
    named = cause_rules.name(first.trail, first.item, facts.links[first.rank])
    return named.symptom, named.why


def _control_flow(facts: Facts) -> Diagnosis | None:
    item = facts.first.item
    if item.lone:
        return Symptom.CONTROL_FLOW, "the arms did not do the same things"
    if not item.same_form:
        return Symptom.CONTROL_FLOW, "its dtype or shape is another one, or one arm skipped its bytes"
    if facts.kind is Kind.SCHEDULER:
        return Symptom.CONTROL_FLOW, "the schedule was stepped differently"
    return None


def _data(facts: Facts) -> Diagnosis | None:
    if facts.kind is Kind.BATCH:
        return Symptom.DATA, "other data was read, before any computation"
    if facts.kind is Kind.POSITION:
        return Symptom.DATA, "the data was read on differently"
    return None


def _rng(facts: Facts) -> Diagnosis | None:
    if facts.kind is not Kind.RNG:
        return None
    return Symptom.RNG, "the stream was drawn from differently" + _equal(facts)


def _held_after_restore(facts: Facts) -> Diagnosis | None:
    """An optimizer's counter goes wrong though all that was restored was equal: how it is held is at fault."""
    started = facts.pairing.candidate.manifest.plan.restore is not None
    view = facts.first.first.reference
    if not (started and facts.kind is Kind.OPTIMIZER and view is not None and view.value is not None):
        return None
    if Kind.GRADIENT not in facts.first.equal:
        return None
    return (
        Symptom.RESTORED_STATE,
        "it was equal right after the restore, as gradients are here: it advances differently",
    )


def _between_steps(facts: Facts) -> Diagnosis | None:
    """Saved or final state differs where the end of the same step, at full state, did not: nothing computes between."""
    at, pair = facts.first.at, facts.first.pair
    if pair.moment is Moment.STEP or at == 0 or facts.pairing.pairs[at - 1].step != pair.step:
        return None
    if not all(_full_state(facts, finding.rank, at - 1) for finding in facts.here):
        return None
    return Symptom.HARDWARE_SUSPICION, "the end of that step was equal and nothing computes in between"


def _full_state(facts: Facts, rank: int, at: int) -> bool:
    return bool(facts.pairing.rungs[1][rank, at] >= RUNGS.index("state") and facts.pairing.same_rung[rank, at])


def _hardware(facts: Facts) -> Diagnosis | None:
    """One rank alone differs in what should follow from equal inputs, or in what its replicas have, too."""
    if len(facts.origins) != 1 or len(facts.pairing.reference.manifest.ranks) < 2:
        return None
    if facts.kind is Kind.GRADIENT:
        peers = facts.replicas(facts.first.rank) - {facts.first.rank}
        touched = {finding.rank for finding in facts.here if Kind.GRADIENT in finding.changed}
        if peers and not peers & touched:
            return Symptom.HARDWARE_SUSPICION, "its data-parallel replicas agree"
    alone = len(facts.here) == 1 and facts.first.changed == {facts.kind}
    if facts.kind in _UPDATED and alone and Kind.GRADIENT in facts.first.equal:
        return Symptom.HARDWARE_SUSPICION, _equal(facts)[2:]
    return None


def _collective(facts: Facts) -> Diagnosis | None:
    """Every replica differs. A backward pass that differs on one rank reaches all replicas as well, and is named."""
    if facts.kind is not Kind.GRADIENT or len(facts.origins) < 2:
        return None
    if any(len(facts.replicas(rank)) < 2 or not facts.replicas(rank) <= facts.origins for rank in facts.origins):
        return None
    return Symptom.COLLECTIVE, "all replicas differ, losses do not: the reduction, or a backward pass before it"


def _held(place: Coordinates, expert: bool) -> tuple[int, ...]:
    """Part of the model that a rank holds."""
    return place.tensor, place.pipeline, place.context, place.expert if expert else 0


def _kernel(facts: Facts) -> Diagnosis:
    if facts.pairing.rungs[1][facts.first.rank, facts.first.at] < RUNGS.index("state"):
        return Symptom.KERNEL, "no state was recorded there, so what came before it is not known"
    return Symptom.KERNEL, _equal(facts)[2:] or "nothing recorded before it in that step differs"


_RULES: tuple[Callable[[Facts], Diagnosis | None], ...] = (
    _logging,
    _restored,
    _traced,
    _control_flow,
    _data,
    _rng,
    _between_steps,
    _held_after_restore,
    _hardware,
    _collective,
    _kernel,
)


def _equal(facts: Facts) -> str:
    """`; data, gradients and optimizer state of that step are equal`, or nothing."""
    names = [name for kind, name in _TOGETHER.items() if kind in facts.first.equal]
    if not names:
        return ""
    return f"; {listed(names, 'and')} of that step are equal"


def _sentence(facts: Facts, tail: str) -> str:
    site = facts.first.item.site
    ours, theirs = facts.pairing.reference.manifest.plan.arm, facts.pairing.candidate.manifest.plan.arm
    head = f"{theirs} parts from {ours} {_when(facts)} on {_where(facts)}: {WORDS[site.kind]} "
    end = f" {_how(facts)}; {tail}."
    return shortened(head + shortened(site.name, max(20, LONGEST - len(head) - len(end))) + end, LONGEST)


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


def _how(facts: Facts) -> str:
    item = facts.first.item
    if item.candidate is None:
        return "is missing in it"
    if item.reference is None:
        return "is only in it"
    return "differs"
