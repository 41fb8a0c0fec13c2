"""Invariants of what ranks hold: parameters that several have, random streams, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from samebits.checks.invariants import BrokenPlace, Invariant, RankRows, Rows, Tally, digest_text, outcome
from samebits.fingerprint.format import Coordinates
from samebits.fingerprint.records import Kind, Moment, Site

NO_NOTE = "no rank noted which parameters it holds whole or shares: capture with this version"


@dataclass(frozen=True)
class Held:
    """What the first rank of several holds."""

    rank: int
    rows: Rows


class Replicas:
    """Ranks that hold the same share of the model hold the same bits."""

    def __init__(self) -> None:
        meaning = "data-parallel replicas hold equal parameters; experts, those of one expert-parallel rank"
        self._tally = Tally("replicas", meaning, "no two ranks hold the same parameters, or none were recorded")
        self._first: dict[Hashable, Held] = {}

    def see(self, rank: RankRows) -> None:
        at = rank.coordinates
        for place, block in rank.blocks:
            rows = rank.rows(block, Kind.PARAMETER)
            shared = rank.chosen(rows, "shared", lambda site: not is_expert(rank, site))
            experts = rank.chosen(rows, "experts", lambda site: is_expert(rank, site))
            self._hold((place, at.tensor, at.pipeline), place, rank, shared)
            self._hold((place, at.tensor, at.pipeline, at.expert), place, rank, experts)

    def _hold(self, key: Hashable, place: BrokenPlace, rank: RankRows, rows: Rows) -> None:
        if len(rows):
            first = self._first.setdefault(key, Held(rank.rank, rows))
            compare(self._tally, place, first, Held(rank.rank, rows), rank)

    def results(self) -> Iterator[Invariant]:
        yield self._tally.result()


class TensorReplicas:
    """What tensor-parallel ranks do not split, each of them has."""

    def __init__(self) -> None:
        meaning = "parameters that tensor-parallel ranks do not split are equal on them"
        self._tally = Tally("tensor-replicas", meaning, "there is one tensor-parallel rank")
        self._noteless = Tally("tensor-replicas", meaning, NO_NOTE)
        self._first: dict[Hashable, Held] = {}
        self._noted = False

    def see(self, rank: RankRows) -> None:
        whole = set(rank.note.get("whole", ()))
        self._noted |= bool(rank.note)
        at = rank.coordinates
        for place, block in rank.blocks if whole else ():
            rows = rank.chosen(rank.rows(block, Kind.PARAMETER), "whole", lambda site: full_name(site) in whole)
            first = self._first.setdefault((place, at.pipeline, at.data, at.context), Held(rank.rank, rows))
            compare(self._tally, place, first, Held(rank.rank, rows), rank)

    def results(self) -> Iterator[Invariant]:
        yield (self._tally if self._noted else self._noteless).result()


class Tied:
    """An embedding that the first and the last pipeline stage both have."""

    def __init__(self) -> None:
        meaning = "tied embeddings are equal on all pipeline stages that have them"
        self._tally = Tally("tied-embeddings", meaning, "no two pipeline stages share an embedding")
        self._noteless = Tally("tied-embeddings", meaning, NO_NOTE)
        self._first: dict[Hashable, Held] = {}
        self._noted = False

    def see(self, rank: RankRows) -> None:
        tied = set(rank.note.get("tied", ()))
        self._noted |= bool(rank.note)
        at = rank.coordinates
        for place, block in rank.blocks if tied else ():
            rows = rank.rows(block, Kind.PARAMETER)
            for row in rank.chosen(rows, "tied", lambda site: full_name(site) in tied):
                key = place, at.tensor, at.data, at.context
                first = self._first.setdefault(key, Held(rank.rank, np.array([row])))
                self._compare(place, first, rank, row)

    def _compare(self, place: BrokenPlace, first: Held, rank: RankRows, row: np.void) -> None:
        if first.rank == rank.rank:
            return
        if outcome(first.rows[0]) == outcome(row):
            self._tally.held()
        else:
            item = " and ".join(sorted({full_name(rank.site(first.rows[0])), full_name(rank.site(row))}))
            self._tally.broken(place, (first.rank, rank.rank), item, _apart(first, first.rows[0], rank.rank, row))

    def results(self) -> Iterator[Invariant]:
        yield (self._tally if self._noted else self._noteless).result()


Where = Callable[[Coordinates], Hashable]


@dataclass(frozen=True)
class Stream:
    """Of Megatron's seeding (`model_parallel_cuda_manual_seed`). group: ranks with an equal one are looked at together.
    own: ranks of a group with an equal one may have the same state; with another one they must not."""

    name: str
    group: Where
    own: Where | None = None


STREAMS = (
    Stream("cuda", lambda at: (at.pipeline, at.data, at.context)),
    Stream("torch", lambda at: (at.pipeline, at.data, at.context)),
    Stream("megatron/data-parallel-rng", lambda at: (at.pipeline, at.data, at.context)),
    Stream("megatron/model-parallel-rng", lambda at: (at.pipeline, at.data, at.context), lambda at: at.tensor),
    Stream("megatron/expert-parallel-rng", lambda at: (at.pipeline, at.context), lambda at: at.expert),
)


class RandomStreams:
    """default: the stream of the device that trains."""

    def __init__(self, default: str | None) -> None:
        none = "no two ranks have streams of which this is known"
        meaning = "tensor-parallel ranks draw alike what they compute alike"
        self._equal = Tally("random-streams-equal", meaning, none)
        meaning = "tensor-parallel and expert-parallel ranks have streams of their own for what they compute apart"
        self._apart = Tally("random-streams-apart", meaning, none)
        self._streams = {one.name: one for one in STREAMS if one.name not in {"cuda", "torch"} - {default}}
        self._first: dict[Hashable, Held] = {}
        self._seen: dict[Hashable, dict[tuple[int, int, int], tuple[int, Hashable]]] = {}

    def see(self, rank: RankRows) -> None:
        for place, block in rank.blocks:
            for row in rank.rows(block, Kind.RNG):
                if stream := self._streams.get(rank.site(row).name):
                    self._look(place, stream, rank, row)

    def _look(self, place: BrokenPlace, stream: Stream, rank: RankRows, row: np.void) -> None:
        key = place, stream.name, stream.group(rank.coordinates)
        if stream.own is None:
            rows = np.array([row])
            first = self._first.setdefault(key, Held(rank.rank, rows))
            compare(self._equal, place, first, Held(rank.rank, rows), rank)
            return
        seen, own = self._seen.setdefault(key, {}), stream.own(rank.coordinates)
        other = seen.setdefault(outcome(row), (rank.rank, own))
        if other[1] != own:
            ranks = other[0], rank.rank
            self._apart.broken(place, ranks, f"rng:{stream.name}", "have the same state, and must not")
        elif any(before != own for _, before in seen.values()):
            self._apart.held()

    def results(self) -> Iterator[Invariant]:
        yield self._equal.result()
        yield self._apart.result()


class Samples:
    """Token ids of the micro-batches of a step."""

    def __init__(self) -> None:
        meaning = "ranks of one data-parallel replica read the same tokens"
        self._equal = Tally("batches", meaning, "no two ranks of a replica recorded a batch")
        meaning = "data-parallel replicas read different samples"
        self._apart = Tally("samples", meaning, "no two replicas recorded a batch")
        self._read: dict[tuple[BrokenPlace, int, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self._named_otherwise = False

    def see(self, rank: RankRows) -> None:
        for place, block in rank.blocks:
            if place.moment is Moment.STEP:
                rows = rank.rows(block, Kind.BATCH)
                tokens = [outcome(row) for row in rows if rank.site(row).name == "tokens"]
                self._named_otherwise |= len(rows) > len(tokens) == 0
                if tokens:
                    self._hold(place, rank, tokens)

    def _hold(self, place: BrokenPlace, rank: RankRows, tokens: list[tuple[int, int, int]]) -> None:
        at = rank.coordinates
        first, expected = self._read.setdefault((place, at.context, at.data), (rank.rank, tokens))
        if first == rank.rank:
            return
        if tokens == expected:
            self._equal.held()
        else:
            self._equal.broken(place, (first, rank.rank), "batch:tokens", "ranks of one replica read other tokens")

    def results(self) -> Iterator[Invariant]:
        if not self._read:
            reason = (
                "no part of a batch is called tokens"
                if self._named_otherwise
                else "no batch was recorded: needs rung state"
            )
            self._equal.unchecked = self._apart.unchecked = reason
        yield self._equal.result()
        repeated = self._repeats_itself()
        beside: dict[Hashable, dict[Hashable, int]] = {}
        for (place, context, _), (rank, tokens) in self._read.items():
            seen = beside.setdefault((place, context), {})
            # Where one replica reads a micro-batch twice anyway, only a whole step can show that two read the same.
            for sample in [tuple(sorted(tokens))] if repeated else tokens:
                other = seen.setdefault(sample, rank)
                if other != rank:
                    self._apart.broken(place, (other, rank), "batch:tokens", "both replicas read the same samples")
                elif len(set(seen.values())) > 1:
                    self._apart.held()
        yield self._apart.result()

    def _repeats_itself(self) -> bool:
        counts = Counter(
            (context, data, sample) for (_, context, data), (_, tokens) in self._read.items() for sample in tokens
        )
        return any(count > 1 for count in counts.values())


def compare(tally: Tally, place: BrokenPlace, first: Held, other: Held, rank: RankRows) -> None:
    """Of two ranks that must hold the same. What one of them does not have is broken, too."""
    if first.rank == other.rank:
        return
    if _same(first.rows, other.rows):
        tally.held(len(first.rows))
        return
    ours, theirs = _by_item(first.rows), _by_item(other.rows)
    for key in dict.fromkeys([*ours, *theirs]):
        one, two = ours.get(key), theirs.get(key)
        ranks, item = (first.rank, other.rank), str(rank.names.site_of[key[0]])
        if one is None or two is None:
            tally.broken(place, ranks, item, f"rank {ranks[one is None]} has it, rank {ranks[two is None]} does not")
        elif outcome(one) == outcome(two):
            tally.held()
        else:
            tally.broken(place, ranks, item, _apart(first, one, other.rank, two))


def _same(ours: Rows, theirs: Rows) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(ours[part], theirs[part]) for part in ("site", "form", "occurrence", "output")
    )


def _by_item(rows: Iterable[np.void]) -> dict[tuple[int, int], np.void]:
    return {(int(row["site"]), int(row["occurrence"])): row for row in rows}


def _apart(first: Held, one: np.void, rank: int, two: np.void) -> str:
    if one["form"] != two["form"]:
        return f"ranks {first.rank} and {rank} have other dtypes or shapes"
    return f"rank {first.rank} has {digest_text(one)}, rank {rank} has {digest_text(two)}"


def full_name(site: Site) -> str:
    return f"{site.scope}.{site.name}" if site.scope else site.name


def is_expert(rank: RankRows, site: Site) -> bool:
    """As the rank noted it; else by Megatron's names."""
    if "experts" in rank.note:
        return full_name(site) in rank.note["experts"]
    return ".experts." in site.name
