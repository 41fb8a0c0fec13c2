"""The sections of a recipe that say what is observed and what is asked: capture, gates, controls, waivers. Read as
`samebits.spec.sections` are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samebits.spec.strict import Count, Probability, Section, Whole

Rung = Literal["metrics", "state", "boundary", "op"]


@dataclass(frozen=True, kw_only=True)
class Capture(Section):
    """How much is fingerprinted. Where a step or rank falls outside the limits, the rung `metrics` is recorded."""

    rung: Rung
    """`metrics`: scalars as logged. `state`: also batch, gradients, parameters, optimizer, random streams. `boundary`:
    also modules, collectives and messages. `op`: also every operation."""
    every: Count = 1
    """Full rung at steps divisible by this, and at the last step."""
    windows: tuple[tuple[int, int], ...] | None = None
    """Closed intervals of steps at the full rung; absent: all."""
    ranks: tuple[int, ...] | None = None
    """Ranks at the full rung; absent: all."""
    max_tensor_bytes: Count | None = None
    """Larger tensors keep shape and dtype, not bytes; they are counted in the scope. Absent: no limit."""


FaultKind = Literal[
    "ulp",
    "batch-swap",
    "gradient",
    "loss-logging",
    "nan-loss",
    "moment-drop",
    "rng-skip",
    "position-skip",
    "upstream",
    "reduction-order",
    "scatter-order",
    "uninitialised",
    "combine-order",
    "collective-output",
    "random-split",
    "wrong-stream",
    "hash-shuffle",
    "branch",
    "hidden-write",
    "hidden-call",
    "unstable-gemm",
    "backward-order",
    "message",
    "update-order",
]
"""Down to `upstream`: the same in every run. From `reduction-order` on: another result in every run, by chance."""


@dataclass(frozen=True, kw_only=True)
class Fault(Section):
    """One planted fault."""

    kind: FaultKind
    """What is planted."""
    rank: Whole | None = None
    """Where; absent: the last rank. `nan-loss` and `upstream` strike every rank."""
    step: Count | None = None
    """When; absent: the step after `checkpoint.resume_from`. Restore faults strike at the restore."""
    target: str | None = None
    """Parameter, RNG stream, module or upstream workaround, by name; absent: the first one on that rank."""
    probability: Probability = 1.0
    """That it strikes at all in a run; of the kinds that differ from run to run."""


Gate = Literal["repeatability", "resume", "control", "observer", "overhead"]


@dataclass(frozen=True, kw_only=True)
class Control(Section):
    """A named arm with one planted fault, which must be found at exactly the planted place."""

    name: str
    """The arm is `control-NAME`."""
    fault: Fault
    """Rank, step and target have defaults."""


@dataclass(frozen=True, kw_only=True)
class Waiver(Section):
    """A difference that may stand, while it reaches nothing else."""

    item: str
    """KIND:NAME of a state item, for example `rng:python`."""
    reason: str
    """Printed beside the scope of the verdict."""
