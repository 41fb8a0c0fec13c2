"""The section of a recipe that says how the cost of determinism is measured, and what makes one run of it. Read as
`samebits.spec.sections` are.

A run is one training in fresh processes. Runs of several settings S0 S1 ... stand in blocks S0 S1 ... S1 S0, so that
whatever drifts linearly hits all settings alike; with two settings that is A B B A, or B A A B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samebits.spec.strict import Count, NonNegative, Positive, Section

Further = Literal["attribution", "capture"]
Experiment = Literal["overhead", "attribution", "capture", "null"]
"""`overhead`: deterministic against baseline. `attribution`: deterministic against itself without one setting each.
`capture`: each rung against capture off. `null`: baseline against itself, to test the instrument."""


@dataclass(frozen=True, kw_only=True)
class Overhead(Section):
    """How the cost of determinism is measured."""

    limit_percent: NonNegative
    """The gate `overhead` passes where the whole interval is at most this."""
    blocks: Count
    """A B B A blocks of fresh processes, fixed before the first run; fewer than 4 decide nothing."""
    steps: Count
    """Timed steps of each run."""
    warm_up: Count
    """Steps before them, dropped."""
    half_width_percent: Positive = 0.5
    """Wanted half-width of the interval; `samebits plan` says how many blocks that takes."""
    also: tuple[Further, ...] = ()
    """Further experiments of the pipeline: `attribution` of the cost to settings, cost of `capture` by rung."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one run of an experiment is.

    setting: what it is run with. block, position: from 1, in their order; block 0: the rehearsal. blocks: of the whole
    experiment. relaxed: determinism settings that it leaves off. slowdown_percent: of every step, artificial, to test
    the instrument.
    """

    experiment: Experiment
    setting: str
    block: int
    position: int
    blocks: int
    warm_up: int
    relaxed: tuple[str, ...] = ()
    slowdown_percent: float = 0.0
