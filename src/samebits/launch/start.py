"""What is handed to an executor: which arms are started, with what, and on which nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samebits.fingerprint.paths import Artifact
from samebits.spec.plan import Plan

SPARE_MINUTES = 5
"""A job ends its ranks when their time is over and says so; only so much later would its scheduler."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of one arm. launch: its id, also in every rank's header; `JOB`, or `JOB-N` for the Nth of several arms
    of one job. A job that Slurm starts again appends `.N`."""

    plan: Plan
    artifact: Artifact
    launch: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One job. starts: run one after the other; all of one recipe. inherited: what the ranks take over from the
    surroundings of whoever starts them. command: starts one rank, the artifact's folder is appended; None: the
    executor's own. on: nodes to run on; off: nodes to avoid; empty: any."""

    starts: tuple[Start, ...]
    inherited: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


def base(launch: str) -> str:
    """The job's part of a launch id."""
    return launch.partition(".")[0].partition("-")[0]


def first(launch: str) -> str:
    """The launch id as it was submitted, whatever was started again since."""
    return launch.partition(".")[0]
