"""Where two arms part: the first differing record of each rank, which ranks are origins, and how they group.

An origin is a rank whose bits differ by themselves; a receiver was brought the difference by other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from samebits.compare.align import Mask, Pair, Pairing
from samebits.compare.certify import Certified
from samebits.compare.cross_rank import DifferenceSource, Link, Links
from samebits.compare.diagnosis import Facts, diagnose
from samebits.compare.nodes import UNKNOWN
from samebits.compare.records import Ignored, Item, RankRecords
from samebits.compare.results import Difference, Divergence, RankDivergence, RankGroup, Role
from samebits.compare.traced_block import Trail
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.paths import ArtifactError
from samebits.fingerprint.records import RUNGS, Kind

SPELLED_OUT = 64
"""Ranks that a divergence lists one by one."""


@dataclass(frozen=True)
class FirstDifference:
    """The first block of one rank with a difference that counts.

    at: its index among the pairs. changed, equal: kinds in that block with and without a difference. before: records of
    the rank in earlier blocks. trail: of that block, where it was traced.
    """

    rank: int
    at: int
    pair: Pair
    item: Item
    first: Difference
    differing: int
    compared: int
    changed: frozenset[Kind]
    equal: frozenset[Kind]
    before: int
    trail: Trail | None = None


@dataclass(frozen=True)
class DivergenceSearch:
    """The first differences of two arms.

    findings: by rank. differing: blocks with any difference, ignored ones included; up to a rank's finding it rests on
    records, behind it on digests alone. ignored: items that were passed over, as `kind:name`.
    """

    pairing: Pairing
    findings: dict[int, FirstDifference]
    differing: Mask
    ignored: frozenset[str]


def nothing_ignored(item: Item) -> bool:
    return False


def search(pairing: Pairing, ignored: Ignored) -> DivergenceSearch:
    """Go through each rank's suspect blocks up to its first difference that is not ignored.

    Raises ArtifactError where a file is not what its table says.
    """
    findings: dict[int, FirstDifference] = {}
    differing = pairing.suspects.copy()
    passed: set[str] = set()
    for rank in map(int, np.flatnonzero(pairing.suspects.any(axis=1))):
        records = RankRecords(pairing, rank)
        for at in map(int, np.flatnonzero(pairing.suspects[rank])):
            pair = pairing.pairs[at]
            block = records.compare(pair)
            if not block.items and pair.same_moment:
                raise ArtifactError(
                    f"{pairing.candidate.artifact.folder}: block digests of step {pair.step} differ from the "
                    "reference's and no record does; one of the two was written by something else: run both arms again"
                )
            differing[rank, at] = bool(block.items)
            counting = []
            for item in block.items:
                if ignored(item):
                    passed.add(f"{item.site.kind}:{item.site.name}")
                else:
                    counting.append(item)
            if not counting:
                continue
            changed = frozenset(item.site.kind for item in block.items)
            findings[rank] = FirstDifference(
                rank=rank,
                at=at,
                pair=pair,
                item=counting[0],
                first=block.view(counting[0]),
                differing=len(block.items),
                compared=block.compared,
                changed=changed,
                equal=frozenset(site.kind for site in block.sites) - changed,
                before=records.count(pairing.pairs[:at]),
                trail=Trail(block) if pairing.is_traced(rank, at) else None,
            )
            break
    return DivergenceSearch(pairing, findings, differing, frozenset(passed))


def describe(found: DivergenceSearch) -> Divergence | None:
    """Return where the arms part, with a diagnosis; None where no rank has a difference that counts."""
    if not found.findings:
        return None
    pairing, findings = found.pairing, found.findings.values()
    links = linked(found)
    origins = origin_ranks(findings, links)
    ordered = sorted(findings, key=lambda finding: (finding.rank not in origins, finding.at, finding.rank))
    first = min(findings, key=lambda finding: finding.at)
    facts = Facts(pairing=pairing, findings=ordered, origins=origins, links=links, logging_only=only_logging(found))
    symptom, explanation = diagnose(facts)
    ranks: list[RankDivergence] = []
    # Origins come first, then by time: so come the groups.
    members: dict[tuple[str, int, str, Role], list[int]] = {}
    for finding in ordered:
        moment, step, rank = finding.pair.moment.name.lower(), finding.pair.step, finding.rank
        role: Role = "origin" if rank in origins else "receiver"
        members.setdefault((moment, step, finding.first.item, role), []).append(rank)
        if len(ranks) < SPELLED_OUT:
            # Both hosts, where the arms ran this rank on two.
            hosts = dict.fromkeys(host(arm, rank) for arm in (pairing.reference, pairing.candidate))
            ranks.append(
                RankDivergence(
                    rank=rank,
                    moment=moment,
                    step=step,
                    first=finding.first,
                    differing=finding.differing,
                    compared=finding.compared,
                    role=role,
                    host=" / ".join(hosts),
                )
            )
    groups = tuple(
        RankGroup(ranks=ranks_text(group), count=len(group), moment=moment, step=step, item=item, role=role)
        for (moment, step, item, role), group in members.items()
    )
    world = len(pairing.reference.manifest.ranks)
    return Divergence(
        moment=first.pair.moment.name.lower(),
        step=first.pair.step,
        symptom=symptom,
        explanation=explanation,
        ranks=tuple(ranks),
        groups=groups,
        agreeing=ranks_text(rank for rank in range(world) if rank not in found.findings),
        identical_before=sum(finding.before for finding in ordered),
        differing_blocks=int(np.count_nonzero(found.differing)),
    )


def linked(found: DivergenceSearch) -> dict[int, Link]:
    """Return where the first difference of each rank comes from, for ranks that part first and were traced there."""
    earliest = min(finding.at for finding in found.findings.values())
    here = {rank: finding for rank, finding in found.findings.items() if finding.at == earliest}
    trails = {rank: finding.trail for rank, finding in here.items() if finding.trail is not None}
    links = Links(found.pairing, earliest, trails)
    return {rank: links.of(rank, here[rank].item) for rank in trails}


def origin_ranks(findings: Iterable[FirstDifference], links: Mapping[int, Link]) -> frozenset[int]:
    """Return the ranks at fault among those that part at the earliest moment.

    Where they were traced: those whose difference no other rank brought them. Otherwise those in the earliest phase of
    that step whose inputs are not known to differ.
    """
    everywhere = list(findings)
    earliest = min(finding.at for finding in everywhere)
    here = [finding for finding in everywhere if finding.at == earliest]
    for sources in (
        (DifferenceSource.OWN, DifferenceSource.SHARED),
        (DifferenceSource.FOUND,),
        (DifferenceSource.UNSEEN,),
    ):
        if traced := [one for one in here if one.rank in links and links[one.rank].source in sources]:
            # What was found there may have come from who found it in an earlier phase.
            first = min(one.item.phase for one in traced) if DifferenceSource.FOUND in sources else None
            return frozenset(one.rank for one in traced if first in (None, one.item.phase))
    phase = min(finding.item.phase for finding in here)
    return frozenset(
        finding.rank for finding in here if finding.item.phase == phase and finding.item.same_input is not False
    )


def host(certified: Certified, rank: int) -> str:
    return certified.manifest.ranks[rank].pins.node or UNKNOWN


def only_logging(found: DivergenceSearch) -> bool:
    """Return whether only metrics differ, in any block of any rank, and each rank's last block is full state."""
    pairing = found.pairing
    if any(finding.changed != {Kind.METRIC} for finding in found.findings.values()):
        return False
    full = (pairing.rungs[1][:, -1] >= RUNGS.index("state")) & pairing.same_rung[:, -1]
    if not pairing.same_rung.all() or not all(full[rank] for rank in found.findings):
        return False
    return not search(pairing, lambda item: item.site.kind is Kind.METRIC).findings
