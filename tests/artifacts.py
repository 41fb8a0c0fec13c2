"""Whole synthetic artifacts for tests: no torch, no training, but every block that a plan demands.

    write_artifact(tmp_path / "a")
    write_artifact(tmp_path / "b", arm="twin-1", change=altered("parameter:w0", rank=1, step=3))
    write_artifact(tmp_path / "r", arm="resumed", restored=2)

State depends on rank, step and item only: what is restored equals what was saved, and FINAL equals the last step.
Everything is equal between two artifacts unless a test changes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import builders
from entries import Entry, metric, scalar, tensor
from samebits.compare.verify import expected_blocks, expected_rung
from samebits.fingerprint.clock import Clocks
from samebits.fingerprint.format import Coordinates, Header
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Flag, Kind, Moment, Phase
from samebits.fingerprint.writer import Recorder
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan

DIGEST = "test-digest-1"
LAUNCH = "launch-of-"


@dataclass(frozen=True)
class At:
    """Which block a change looks at."""

    rank: int
    moment: Moment
    step: int
    rung: str


Change = Callable[[At, list[Entry]], list[Entry]]
"""Gets the records of one block of one rank, gives back those that are to be written."""


def write_artifact(
    folder: Path,
    *,
    world: int = 2,
    steps: int = 4,
    change: Change | Iterable[Change] = (),
    plan: Plan | None = None,
    pins: Callable[[int], Pins] | None = None,
    notes: Iterable[dict[str, Any]] = (),
    digest: str = DIGEST,
    launch: str | None = None,
    clocks: Callable[[int], Clocks] | None = None,
    sealed: bool = True,
    epoch: int = 0,
    **arm: Any,
) -> Artifact:
    """Writes plan, outcome and the fingerprint files of all ranks; collects nothing.

    arm: see `make_plan`. clocks: of each rank. notes: each goes to the rank that it names. launch: one id, else made
    from the arm. epoch: second at which it began.
    """
    artifact = Artifact(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plan = plan or make_plan(world=world, steps=steps, **arm)
    artifact.plan.write_text(plan.to_json(), encoding="utf-8")
    artifact.outcome.write_text('{"ok": true, "message": ""}\n', encoding="utf-8")
    changes = [change] if callable(change) else list(change)
    for rank in range(plan.world):
        header = Header(
            digest=digest,
            launch=launch or LAUNCH + plan.arm,
            coordinates=coordinates(rank, plan.world),
            plan=plan,
            pins=(pins or make_pins)(rank),
        )
        recorder = Recorder(artifact.fingerprint(rank), header)
        own = [note for note in notes if note["rank"] == rank]
        record_rank(recorder, plan, rank, changes, own, epoch=epoch)
        if clocks is not None:
            recorder.time(clocks(rank))
        if sealed:
            recorder.seal()
    return artifact


def rewrite(artifact: Artifact, rank: int, plan: Plan, notes: Iterable[dict[str, Any]] = (), **kind: str) -> None:
    """One rank's file anew: its header says the artifact's plan, its blocks are those of `plan`.

    kind: in the header, `writer` (its rank), `world`, `digest`, `launch`.
    """
    path = artifact.fingerprint(rank)
    path.unlink(missing_ok=True)
    said = Plan.from_json(artifact.plan.read_text())
    place = coordinates(int(kind.get("writer", rank)), int(kind.get("world", said.world)))
    header = Header(
        digest=kind.get("digest", DIGEST),
        launch=kind.get("launch", LAUNCH + said.arm),
        coordinates=place,
        plan=said,
        pins=make_pins(rank),
    )
    recorder = Recorder(path, header)
    record_rank(recorder, plan, rank, [], list(notes))
    recorder.seal()


def make_plan(
    *,
    world: int = 2,
    steps: int = 4,
    every: int = 2,
    arm: str = "reference",
    restored: int | None = None,
    capture: bool = True,
    faults: tuple[Any, ...] = (),
    **recipe: Any,
) -> Plan:
    """every: steps between two checkpoints. restored: step whose checkpoint the arm starts from. recipe: changes to
    the recipe's document (see builders)."""
    sections = {"parallel": {"world": world, "data": world}, "checkpoint": {"every": every, "resume_from": every}}
    plan = builders.plan(arm, steps=steps, **{**sections, **recipe})
    restore = None if restored is None else f"/results/smoke/arms/reference/checkpoints/step-{restored:06d}"
    first = 1 if restored is None else restored + 1
    return dataclasses.replace(plan, restore=restore, first_step=first, capture=capture, faults=faults)


def coordinates(rank: int, world: int) -> Coordinates:
    """Data parallel only."""
    return Coordinates(rank=rank, world=world, tensor=0, pipeline=0, data=rank, expert=0, context=0)


def make_pins(rank: int = 0, **groups: dict[str, str]) -> Pins:
    """groups: entries added to those of a group, for example `software={"torch": "2.14.0"}`."""
    usual: dict[str, dict[str, str]] = {
        "software": {"torch": "2.13.0", "numpy": "2.3.0", "megatron-core": "0.16.1"},
        "hardware": {"cpu": "Test CPU"},
        "runtime": {"threads": "1", "backend": "gloo"},
        "environment": {"OMP_NUM_THREADS": "1"},
        "code": {"samebits": "c0de"},
        "data": {"stream": "da7a"},
        "placement": {"host": f"node-{rank // 8}", "local_rank": str(rank % 8)},
    }
    return Pins(**{group: {**usual.get(group, {}), **groups.get(group, {})} for group in usual.keys() | groups.keys()})


def record_rank(
    recorder: Recorder,
    plan: Plan,
    rank: int,
    changes: list[Change],
    notes: list[dict[str, Any]],
    *,
    epoch: int = 0,
) -> None:
    """All blocks of one rank; each note follows the block of its step, where there is one."""
    blocks = [(moment.name.lower(), step) for moment, step in expected_blocks(plan)]
    for note in notes:
        if (note.get("moment", "step"), note["step"]) not in blocks:
            recorder.note(note)
    for moment, step in expected_blocks(plan):
        at = At(rank, moment, step, expected_rung(plan, rank, moment, step))
        entries = list(block_entries(at))
        for change in changes:
            entries = change(at, entries)
        write_block(recorder, at, entries, epoch)
        for note in [
            note for note in notes if note["step"] == step and note.get("moment", "step") == moment.name.lower()
        ]:
            recorder.note(note)


def write_block(recorder: Recorder, at: At, entries: list[Entry], epoch: int = 0) -> bytes:
    """Times: step s runs from second s to s + 0.5, after `epoch`."""
    recorder.begin(at.moment, at.step, at.rung)
    for entry in entries:
        recorder.record(recorder.site(entry.site), recorder.form(entry.form), entry.output, entry.flags, entry.source)
    return recorder.end((epoch + at.step) * 10**9, (epoch + at.step) * 10**9 + 5 * 10**8)


def block_entries(at: At) -> Iterator[Entry]:
    """The unchanged records of a block, in causal order."""
    step, full = at.step, at.rung == "state"
    if at.moment is Moment.STEP:
        if full:
            for micro_batch in range(2):
                for name in ("tokens", "labels"):
                    yield tensor(Phase.DATA, Kind.BATCH, name, (2, 64), at.rank, step, micro_batch, dtype="int64")
        yield metric("lm loss", 5.0 - 0.1 * step)
        if full:
            for name in _PARAMETERS:
                yield tensor(Phase.BACKWARD, Kind.GRADIENT, name, (8, 8), at.rank, step)
        yield metric("grad-norm", 1.0 + 0.01 * step, Phase.UPDATE)
        yield metric("learning-rate", 1e-3 / step, Phase.UPDATE)
    if full:
        yield from _state(at.rank, step)


_PARAMETERS = ("w0", "w1")


def _state(rank: int, step: int) -> Iterator[Entry]:
    for name in _PARAMETERS:
        for moment in ("exp_avg", "exp_avg_sq"):
            yield tensor(Phase.STATE, Kind.OPTIMIZER, f"{name}.{moment}", (64,), rank, step)
        yield scalar(Kind.OPTIMIZER, f"{name}.step", step)
        yield tensor(Phase.STATE, Kind.MASTER, name, (64,), rank, step)
    for name in _PARAMETERS:
        yield tensor(Phase.STATE, Kind.PARAMETER, name, (8, 8), rank, step, dtype="bfloat16")
    yield scalar(Kind.SCHEDULER, "num_steps", step)
    yield scalar(Kind.POSITION, "position", step * 8)
    for name in ("python", "numpy", "torch"):
        yield tensor(Phase.STATE, Kind.RNG, name, (5056,), rank, step, dtype="uint8")


def altered(
    item: str, *, rank: int, step: int, moment: Moment = Moment.STEP, occurrence: int = 0, bit: int = 0
) -> Change:
    """One flipped bit in one record of one block."""
    return _edited(item, _at(rank, moment, step), lambda entry: [_flipped(entry, bit)], occurrence)


def altered_from(item: str, *, rank: int, step: int) -> Change:
    """One flipped bit in every block from the one of `step` on: a difference that stays."""
    return _edited(item, lambda at: at.rank == rank and at.step >= step, lambda entry: [_flipped(entry, 0)], None)


def dropped(item: str, *, rank: int, step: int, moment: Moment = Moment.STEP) -> Change:
    """A record without its counterpart: control flow differed."""
    return _edited(item, _at(rank, moment, step), lambda _: [], None)


def repeated(item: str, *, rank: int, step: int, moment: Moment = Moment.STEP) -> Change:
    """One occurrence more."""
    return _edited(item, _at(rank, moment, step), lambda entry: [entry, entry], None)


def skipped(item: str) -> Change:
    """Too large to be fingerprinted, everywhere."""
    return _edited(
        item, lambda _: True, lambda entry: [dataclasses.replace(entry, output=(0, 0), flags=Flag.SKIPPED)], None
    )


def diverged(*, step: int, ranks: tuple[int, ...] | None = None) -> Change:
    """Everything but counters differs in every block after `step`: what a real difference spreads to."""

    def change(at: At, entries: list[Entry]) -> list[Entry]:
        if at.step <= step or (ranks is not None and at.rank not in ranks):
            return entries
        return [_flipped(entry, 0) if entry.form.dtype != "int" else entry for entry in entries]

    return change


def valued(name: str, value: float, *, step: int, ranks: tuple[int, ...] | None = None) -> Change:
    """A metric of another value, for example NaN."""

    def change(at: At, entries: list[Entry]) -> list[Entry]:
        if at.step != step or at.moment is not Moment.STEP or (ranks is not None and at.rank not in ranks):
            return entries
        return [metric(name, value, e.site.phase) if e.item == f"metric:{name}" else e for e in entries]

    return change


def reordered(at: At, entries: list[Entry]) -> list[Entry]:
    """Another order of the same records, occurrences kept."""
    return sorted(entries, key=lambda entry: (entry.site.name, entry.site.kind), reverse=True)


def planted(fault: str, item: str, *, rank: int, step: int, moment: str = "step", scope: str = "") -> dict[str, Any]:
    """The note of a planted fault."""
    kind, _, name = item.partition(":")
    place = {"rank": rank, "moment": moment, "step": step}
    return {"type": "planted", **place, "fault": fault, "kind": kind, "name": name, "scope": scope}


def unhealthy(*, rank: int, step: int, name: str = "lm loss", value: str = "nan") -> dict[str, Any]:
    return {"type": "unhealthy", "rank": rank, "step": step, "name": name, "value": value}


def _at(rank: int, moment: Moment, step: int) -> Callable[[At], bool]:
    return lambda at: (at.rank, at.moment, at.step) == (rank, moment, step)


def _flipped(entry: Entry, bit: int) -> Entry:
    first, second = entry.output
    output = (first ^ (1 << bit), second) if bit < 64 else (first, second ^ (1 << (bit - 64)))
    return dataclasses.replace(entry, output=output)


def _edited(
    item: str, where: Callable[[At], bool], edit: Callable[[Entry], list[Entry]], occurrence: int | None
) -> Change:
    """occurrence: only that one of the item's records; None: all of them. The item must be there."""

    def change(at: At, entries: list[Entry]) -> list[Entry]:
        if not where(at):
            return entries
        hits = [index for index, entry in enumerate(entries) if entry.item == item]
        if occurrence is not None:
            hits = [hits[occurrence]]
        return [new for index, old in enumerate(entries) for new in (edit(old) if index in hits else [old])]

    return change
