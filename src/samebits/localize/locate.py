"""From a traced pair that differs to what made it differ: the cause, the ranks, and the evidence beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from samebits.compare import cause_rules, divergence, op_traits
from samebits.compare.align import Pairing
from samebits.compare.cause_rules import Named
from samebits.compare.cross_rank import DifferenceSource, Link
from samebits.compare.divergence import DivergenceSearch, FirstDifference, nothing_ignored, search
from samebits.compare.results import Before, Cause, Cell, Located, Origin, Symptom
from samebits.compare.traced_block import Trail
from samebits.fingerprint import stacks
from samebits.fingerprint.format import Coordinates, ranks_text
from samebits.fingerprint.records import TRACED, Flag, Kind, Site

MOST_CELLS = 8
AROUND = 2
"""Records that are shown on either side of one without counterpart."""
_AXES = ("tensor", "pipeline", "data", "expert", "context")


@dataclass(frozen=True, kw_only=True)
class LocatedPair(Located):
    """A located difference, of the largest group of origins. unseen: ranks that were not traced and may have brought
    it."""

    unseen: frozenset[int]


@dataclass(frozen=True)
class Untraced:
    """A pair that differs first where no operation was traced: at this step, on these ranks."""

    step: int
    moment: str
    ranks: frozenset[int]


def locate(pairing: Pairing) -> LocatedPair | Untraced | None:
    """Return where a traced pair differs; None where it agrees.

    Raises ArtifactError where a file is not what its table says.
    """
    found = search(pairing, nothing_ignored)
    if not found.findings:
        return None
    at = min(one.at for one in found.findings.values())
    here = {rank: one for rank, one in found.findings.items() if one.at == at}
    links = divergence.linked(found)
    origins = divergence.origin_ranks(here.values(), links)
    if not all(pairing.is_traced(rank, at, "op") for rank in origins):
        pair = pairing.pairs[at]
        return Untraced(pair.step, pair.moment.name.lower(), frozenset(here))
    named = {rank: _named(found, here[rank], links[rank]) for rank in origins}
    # Ranks by what is named on them: the largest group first, then what happens earliest.
    by_cause: dict[tuple[Site | None, str], list[int]] = {}
    for rank in sorted(named):
        by_cause.setdefault((named[rank].site, named[rank].refused), []).append(rank)
    groups = sorted(by_cause.values(), key=lambda ranks: (-len(ranks), named[ranks[0]].row or 0, ranks[0]))
    first = here[groups[0][0]]
    chosen, trail = named[first.rank], _trail(first)
    # Of ranks that were not traced it is not known whether they part.
    places = {
        file.rank: file.coordinates
        for file in pairing.reference.manifest.ranks
        if pairing.is_traced(file.rank, at, "op")
    }
    # Where an origin made the difference for sure, ranks that were not traced are not to blame.
    unseen: frozenset[int] = frozenset()
    if not any(links[rank].source in (DifferenceSource.OWN, DifferenceSource.SHARED) for rank in origins):
        untraced = (link.ranks for link in links.values() if link.source is DifferenceSource.UNSEEN)
        unseen = frozenset(rank for ranks in untraced for rank in ranks)
    return LocatedPair(
        step=first.pair.step,
        moment=first.pair.moment.name.lower(),
        symptom=chosen.symptom,
        why=chosen.why,
        cause=_cause(trail, chosen),
        refused=chosen.refused,
        suspect=_text(chosen.suspect) if chosen.suspect else "",
        inputs=trail.inputs_at(chosen.only, chosen.row) if chosen.row is not None else None,
        before=_before(trail, first),
        origins=tuple(_origin(ranks, named[ranks[0]]) for ranks in groups),
        receivers=ranks_text(rank for rank in here if rank not in origins),
        pattern=pattern(groups[0], places),
        cells=tuple(_cells(trail, chosen)),
        around=tuple(_around(trail, chosen)),
        unseen=unseen,
    )


def _named(found: DivergenceSearch, first: FirstDifference, link: Link) -> Named:
    """Return what is named on one rank. What is not traced (data, state) is named by its kind."""
    trail, item = _trail(first), first.item
    if item.site.kind in TRACED:
        return cause_rules.name(trail, item, link)
    alone = DivergenceSearch(found.pairing, {first.rank: first}, found.differing, found.ignored)
    described = divergence.describe(alone)
    symptom = described.symptom if described else Symptom.KERNEL
    return Named(symptom, "no operation recorded before it differs", item.site, item.occurrence, trail.at(item)[1])


def _trail(first: FirstDifference) -> Trail:
    if first.trail is None:
        raise ValueError(f"rank {first.rank}: its block was not traced")
    return first.trail


def _origin(ranks: list[int], named: Named) -> Origin:
    place = _text(named.site) if named.site else named.refused
    return Origin(ranks=ranks_text(ranks), count=len(ranks), place=place, why=named.why)


def _text(site: Site) -> str:
    return f"{site.kind}:{site.name}" + (f" in {site.scope}" if site.scope else "")


def _cause(trail: Trail, named: Named) -> Cause | None:
    site = named.site
    if site is None or named.row is None:
        return None
    side = trail.side(named.only)
    return Cause(
        phase=site.phase,
        kind=site.kind,
        name=site.name,
        scope=site.scope,
        occurrence=named.occurrence,
        form=str(side.form(named.row)),
        stack=tuple(map(str, reversed(stacks.stack_of(stacks.read_stacks(side.file.notes), site)))),
    )


def _before(trail: Trail, first: FirstDifference) -> Before:
    sites = list(trail.sites_before(first.item))
    operations = [site for site in sites if site.kind is Kind.OP]
    messages = sum(site.kind in (Kind.COLLECTIVE, Kind.SEND, Kind.RECEIVE) for site in sites)
    return Before(
        operations=len(operations),
        gemms=sum(op_traits.is_gemm(site.name) for site in operations),
        collectives=messages,
        others=len(sites) - len(operations) - messages,
    )


def _cells(trail: Trail, named: Named) -> Iterator[Cell]:
    """Count equal and differing outputs of the same operation by dtype, shape and layout; nothing for a single one."""
    if named.site is None or named.site.kind not in (Kind.OP, Kind.CALL):
        return
    counts: dict[tuple[str, str, str], list[int]] = {}
    for row, differs in trail.alike(named.site):
        form, flags = trail.reference.form(row), int(trail.reference.records[row]["flags"])
        layout = "strided" if flags & Flag.STRIDED else "contiguous"
        counts.setdefault((form.dtype, str(list(form.shape)), layout), [0, 0])[differs] += 1
    if sum(map(sum, counts.values())) > 1:
        ordered = sorted(counts.items(), key=lambda cell: (-cell[1][1], -cell[1][0], cell[0]))
        for (dtype, shape, layout), (same, differing) in ordered[:MOST_CELLS]:
            yield Cell(dtype=dtype, shape=shape, layout=layout, same=same, differing=differing)


def _around(trail: Trail, named: Named) -> Iterator[str]:
    """Yield the records around one without counterpart: what stands before it, itself, and what stands behind."""
    if named.only is None or named.row is None:
        return
    side, row = trail.side(named.only), named.row
    for number in range(max(0, row - AROUND), min(len(side.records), row + AROUND + 1)):
        yield f"{_text(side.site(number))}{f'  <- only in the {named.only}' if number == row else ''}"


def pattern(origins: Collection[int], places: Mapping[int, Coordinates]) -> str:
    """Return one sentence on what the set of origin ranks suggests: the operation, a part of the layout, or one rank.

    places: of all traced ranks.
    """
    world = len(places)
    if not origins:
        return "No rank parts by itself: the cause lies outside the traced ranks or steps."
    if world == 1:
        return "There is one rank: whether others would part as well is not known."
    if len(origins) == world:
        return f"All {world} ranks part at this place by themselves: it is the operation, not a rank or a node."
    if len(origins) == 1:
        alone = f"Rank {next(iter(origins))} alone parts by itself: what only this rank does, or its hardware."
        return f"{alone} A run on other nodes tells the two apart."
    for axis in _AXES:
        values = {getattr(places[rank], axis) for rank in origins}
        if len(values) == 1 and {rank for rank in places if getattr(places[rank], axis) in values} == set(origins):
            shared = f"{axis} rank {values.pop()}"
            return f"Exactly the ranks of {shared} part by themselves: their part of the model, or where they run."
    text = ranks_text(origins)
    return f"Ranks {text} of {world} part by themselves: topology, placement, or the order of a reduction."
