"""A restored arm: the state right after the restore is held against the state that was saved, before any step.

The two blocks differ by their moment, so their digests always do; their records are compared one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

from samebits.fingerprint.records import Moment
from samebits.spec.plan import Plan


def saved_counterpart(columns: Mapping[tuple[Moment, int], int], moment: Moment, step: int) -> int | None:
    """Column of the reference's state saved at the step from which the candidate was restored."""
    return columns.get((Moment.SAVED, step)) if moment is Moment.RESTORED else None


def restart(plan: Plan) -> int | None:
    """Step whose checkpoint an arm started from; None: from scratch."""
    return None if plan.restore is None else plan.first_step - 1
