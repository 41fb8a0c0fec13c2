"""The blocks that a plan demands of every rank, in order: what a run records, and what collect insists on."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.fingerprint.records import Moment
from samebits.spec.plan import Plan


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
