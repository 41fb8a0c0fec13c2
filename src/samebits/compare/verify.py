"""Verifies one rank's fingerprint file against the plan, and summarizes it for the manifest.

The blocks that a plan demands of every rank, in order: what a run records, and what collect insists on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from samebits.fingerprint import reader
from samebits.fingerprint.clock import Clocks
from samebits.fingerprint.format import Header
from samebits.fingerprint.manifest import Planted, RankFile, Unhealthy
from samebits.fingerprint.reader import Block, FingerprintFile, block_text
from samebits.fingerprint.records import Moment
from samebits.spec.plan import Plan, PlanError, decode


def expected_blocks(plan: Plan) -> Iterator[tuple[Moment, int]]:
    """(moment, step): RESTORED, then each STEP and right after it SAVED where it saves, then FINAL.

    An arm without capture records FINAL only.
    """
    if plan.capture:
        if plan.restore is not None:
            yield Moment.RESTORED, plan.first_step - 1
        for step in range(plan.first_step, plan.last_step + 1):
            yield Moment.STEP, step
            if plan.saves_at(step):
                yield Moment.SAVED, step
    yield Moment.FINAL, plan.last_step


def expected_rung(plan: Plan, rank: int, moment: Moment, step: int) -> str:
    """A step's as the capture limits say; state that is saved, restored or final is recorded whole."""
    return plan.rung_at(rank, step) if moment is Moment.STEP else "state"


_MOST_NAMED = 4
"""Blocks that a message lists."""


class RankProblemError(ValueError):
    """A rank's file cannot be used, with the reason and the way out. The caller adds the rank and the file's name."""


@dataclass(frozen=True)
class RankSummary:
    """What collecting keeps of one rank's file. The blocks are without their records."""

    file: RankFile
    header: Header
    blocks: tuple[Block, ...]
    planted: tuple[Planted, ...]
    unhealthy: tuple[Unhealthy, ...]
    clocks: Clocks


def summarize(path: Path, plan: Plan, rank: int, *, deep: bool) -> RankSummary:
    """Read a rank's file and hold it against the plan.

    deep: whether records are re-read. Raises RankProblemError where the file is not a whole one that this rank made
    under this plan.
    """
    file = read_whole(path, deep=deep)
    if (header := file.header) is None:
        raise RankProblemError("has no header; run the arm again")
    if problem := _foreign(header, plan, rank) or _unplanned(file.blocks, plan, rank) or _untimed(file.clocks, plan):
        raise RankProblemError(problem)
    return RankSummary(
        file=RankFile(
            rank=rank,
            bytes=len(file.data),
            check=file.check.hex(),
            records=sum(block.records for block in file.blocks),
            skipped=sum(block.skipped for block in file.blocks),
            deep=deep,
            coordinates=header.coordinates,
            pins=header.pins,
        ),
        header=header,
        blocks=tuple(file.blocks),
        planted=tuple(_notes(file.notes, "planted", Planted, rank)),
        unhealthy=tuple(_notes(file.notes, "unhealthy", Unhealthy, rank)),
        clocks=np.array(file.clocks),
    )


def read_whole(path: Path, *, deep: bool) -> FingerprintFile:
    """Read a rank's file. Raises RankProblemError where it is damaged, cut, unsealed or cannot be opened."""
    try:
        file = reader.read(path, deep=deep)
    except OSError as error:
        raise RankProblemError(f"cannot be read ({error.strerror}); restore it or run the arm again") from error
    if file.fault is not None:
        raise RankProblemError(f"{file.fault}; run the arm again")
    return file


def _foreign(header: Header, plan: Plan, rank: int) -> str | None:
    place = header.coordinates
    if place.rank != rank:
        known = "" if 0 <= place.rank < plan.world else f", and the plan has {plan.world} ranks"
        return f"was written by rank {place.rank}{known}; put each rank's own file back or run the arm again"
    if header.plan != plan:
        return (
            f"was recorded under another plan (arm {header.plan.arm}, digest {header.plan.digest()}) than plan.json "
            f"(arm {plan.arm}, digest {plan.digest()}); restore the file or plan that belongs here or run the arm again"
        )
    if place.world != plan.world:
        return f"says {place.world} ranks, the plan has {plan.world}; run the arm again"
    return None


def _untimed(clocks: Clocks, plan: Plan) -> str | None:
    """Check that every step was timed, which only a run that measures time must have done."""
    wanted = np.arange(plan.first_step, plan.last_step + 1)
    if plan.timing is None or np.array_equal(clocks["step"], wanted):
        return None
    missing = sorted(set(wanted.tolist()) - set(clocks["step"].tolist()))
    lacks = f"lacks the clock of step {missing[0]}" if missing else "has timed other steps than the plan has"
    return f"{lacks}, by which its time is measured; run the arm again"


def _unplanned(blocks: list[Block], plan: Plan, rank: int) -> str | None:
    """Check that the blocks are those of the plan, in its order, at its rungs, and none is empty."""
    found, expected = [(block.moment, block.step) for block in blocks], list(expected_blocks(plan))
    if found != expected:
        parts = []
        there, wanted = set(found), set(expected)
        if missing := [block_text(*place) for place in expected if place not in there]:
            parts.append(f"lacks {_few(missing)}, which the plan demands")
        if surplus := [block_text(*place) for place in found if place not in wanted]:
            parts.append(f"has {_few(surplus)}, which the plan does not have")
        return f"{' and '.join(parts) or 'has its blocks in another order than the plan'}; run the arm again"
    rungs = [(block, expected_rung(plan, rank, block.moment, block.step)) for block in blocks]
    if wrong := [f"{block} at rung {block.rung} instead of {rung}" for block, rung in rungs if block.rung != rung]:
        return f"has {_few(wrong)}, against the plan; run the arm again"
    if empty := [str(block) for block in blocks if block.records == 0]:
        return f"has no records for {_few(empty)}; nothing could be compared: run the arm again"
    return None


def _few(texts: list[str]) -> str:
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


Note = TypeVar("Note", Planted, Unhealthy)


def _notes(notes: list[dict[str, Any]], kind: str, shape: type[Note], rank: int) -> Iterator[Note]:
    """Decode the notes of one kind, all of which must be of this rank."""
    for note in notes:
        if note.get("type") != kind:
            continue
        try:
            found = decode(shape, {key: value for key, value in note.items() if key != "type"})
        except PlanError as error:
            raise RankProblemError(f"has a note `{kind}` that cannot be read ({error}); run the arm again") from error
        if found.rank != rank:
            raise RankProblemError(f"has a note `{kind}` of rank {found.rank}; run the arm again")
        yield found
