"""Synthetic artifacts of ranks split over tensor, pipeline and data, whose ranks have alike what they must have alike.

Eight ranks: rank = tensor + 2 data + 4 pipeline; each data-parallel rank has experts of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import artifacts
from artifacts import At, Change
from entries import Entry, tensor
from samebits.compare.collect import collect
from samebits.fingerprint.format import Coordinates, ranks_text
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Flag, Kind, Moment, Phase
from samebits.spec.questions import Capture, Rung

WORLD = 8
SPLIT = {"world": WORLD, "tensor": 2, "pipeline": 2, "data": 2, "expert": 2}
STEPS = 3


def coordinates(rank: int, world: int) -> Coordinates:
    tensor_rank, data, pipeline = rank % 2, rank // 2 % 2, rank // 4
    return Coordinates(rank=rank, world=world, tensor=tensor_rank, pipeline=pipeline, data=data, expert=data, context=0)


def note(rank: int) -> dict[str, Any]:
    """As a rank writes it when it starts; step: of no block."""
    tied = "output_layer.weight" if coordinates(rank, WORLD).pipeline else "embedding.weight"
    found = {"type": "parameters", "experts": ["mlp.experts.w"], "whole": ["norm.weight"], "tied": [tied]}
    return {**found, "rank": rank, "step": 0}


def written(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *changes: Change,
    rung: Rung = "boundary",
    notes: Iterable[dict[str, Any]] | None = None,
) -> Artifact:
    """A collected artifact. notes: besides those of the parameters; None: these are missing, too."""
    monkeypatch.setattr(artifacts, "coordinates", coordinates)
    own = [] if notes is None else [*map(note, range(WORLD)), *notes]
    plan = artifacts.make_plan(world=WORLD, steps=STEPS, every=9, parallel=SPLIT)
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, capture=Capture(rung=rung)))
    artifact = artifacts.write_artifact(folder, plan=plan, change=[contents, *changes], notes=own)
    collect(artifact.folder)
    return artifact


def contents(at: At, _entries: list[Entry]) -> list[Entry]:
    """In place of what usually stands in a block."""
    place = coordinates(at.rank, WORLD)
    traced = [*_traffic(at, place)] if at.rung == "boundary" else []
    batches = [*_batches(at, place)] if at.moment is Moment.STEP and at.rung != "metrics" else []
    return [*batches, *traced, *(_state(at, place) if at.rung != "metrics" else ())]


def _batches(at: At, place: Coordinates) -> Iterator[Entry]:
    for micro_batch in range(2):
        yield tensor(Phase.DATA, Kind.BATCH, "tokens", (2, 8), place.data, at.step, micro_batch, dtype="int64")


def _traffic(at: At, place: Coordinates) -> Iterator[Entry]:
    """Two micro-batches; all of it of the tensor-parallel group, but for the messages."""
    group = at.rank // 2 * 2
    scope = f"ranks {ranks_text([group, group + 1])}"
    for micro_batch in range(2):
        key = group, at.step, micro_batch
        yield tensor(Phase.FORWARD, Kind.MODULE, "layer", (4, 4), at.rank, at.step, micro_batch)
        for name in ("all_reduce", "all_gather_into_tensor", "broadcast"):
            yield tensor(Phase.FORWARD, Kind.COLLECTIVE, name, (4, 4), *key, scope=scope)
        yield tensor(Phase.FORWARD, Kind.COLLECTIVE, "reduce_scatter_tensor", (4,), at.rank, *key, scope=scope)
        yield _message(at, place, micro_batch)
    for micro_batch in (1, 0):
        found = tensor(Phase.BACKWARD, Kind.RECOMPUTE, "layer", (4, 4))
        first = tensor(Phase.FORWARD, Kind.MODULE, "layer", (4, 4), at.rank, at.step, micro_batch)
        yield Entry(found.site, found.form, first.output)


def _message(at: At, place: Coordinates, number: int) -> Entry:
    """From the first stage to the second."""
    sends, key = place.pipeline == 0, (at.rank % 4, at.step, number)
    kind, name, scope = (
        (Kind.SEND, "send", f"to {at.rank + 4}") if sends else (Kind.RECEIVE, "recv", f"from {at.rank - 4}")
    )
    entry, bytes_of = (
        tensor(Phase.FORWARD, kind, name, (4, 4), scope=scope),
        tensor(Phase.FORWARD, Kind.SEND, "m", (), *key),
    )
    return Entry(entry.site, entry.form, bytes_of.output, Flag.INPUT, 1000 + number)


def _state(at: At, place: Coordinates) -> Iterator[Entry]:
    share = place.tensor, place.pipeline, at.step
    yield _parameter("linear.weight", *share)
    yield _parameter("norm.weight", place.pipeline, at.step)
    yield _parameter("mlp.experts.w", place.expert, *share)
    tied = _parameter("tied", place.tensor, at.step)
    named = _parameter("output_layer.weight" if place.pipeline else "embedding.weight")
    yield Entry(named.site, named.form, tied.output)
    streams = {
        "torch": (),
        "megatron/data-parallel-rng": (),
        "megatron/model-parallel-rng": (place.tensor,),
        "megatron/expert-parallel-rng": (place.expert,),
    }
    for name, own in streams.items():
        yield tensor(Phase.STATE, Kind.RNG, name, (16,), place.pipeline, at.step, *own, dtype="uint8")


def _parameter(name: str, *key: int) -> Entry:
    return tensor(Phase.STATE, Kind.PARAMETER, name, (8, 8), *key)
