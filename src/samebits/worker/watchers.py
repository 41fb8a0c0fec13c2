"""The watchers of one rank, the same for the built-in trainer and for a hooked training script."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from samebits.fingerprint.paths import Artifact
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.worker import jitter
from samebits.worker.faults import Planter
from samebits.worker.hooks import Training, Watcher
from samebits.worker.pins import observe
from samebits.worker.record import CaptureWatcher


def watchers_of(artifact: Artifact, plan: Plan, rank: int, launch: str) -> tuple[list[Watcher], CaptureWatcher]:
    """Return the watchers of a rank in the order in which they are called, and the one among them that captures.

    Planted faults stand before capture, so that it sees what they did; progress stands last, behind all work of a step.
    launch: identifier of this start of the arm.
    """
    capture = CaptureWatcher(artifact.fingerprint(rank), launch, observe)
    found: list[Watcher] = [
        *([Fence(artifact.launch / "job.json", launch)] if rank == 0 else []),
        *jitter.watchers(plan, rank, Path(artifact.folder)),
        *(_planter(fault, capture) for fault in plan.faults),
        capture,
        *([ProgressFile(artifact.progress)] if rank == 0 else []),
    ]
    return found, capture


def _planter(fault: Fault, capture: CaptureWatcher) -> Watcher:
    # Faults of chance are imported only where one is planted: they define an operator of torch.
    from samebits.worker.disorder import KINDS, Disorder

    kind = Disorder if fault.kind in KINDS else Planter
    return kind(fault, lambda: capture.recorder)


class SupersededError(RuntimeError):
    """Another start of this arm has the folder now."""


class Fence(Watcher):
    """Ends a rank whose start is no longer the one that its folder was given to.

    A node that the scheduler takes for lost may live on, and its ranks with it, while the arm begins again elsewhere in
    the same folder. Rank 0 looks; without it the other ranks end.

    record: file in which the launcher names the latest start. launch: identifier of this start.
    """

    def __init__(self, record: Path, launch: str) -> None:
        self._record = record
        self._launch = launch

    def on_step_begin(self, training: Training) -> None:
        self._check()

    def on_save(self, training: Training) -> None:
        self._check()

    def on_final(self, training: Training) -> None:
        self._check()

    def _check(self) -> None:
        try:
            latest = json.loads(self._record.read_text(encoding="utf-8"))["launch"]
        except (OSError, ValueError, KeyError, TypeError):
            # Absent, or being replaced: nothing says that another start has the folder.
            return
        if latest != self._launch:
            raise SupersededError(
                f"this is start {self._launch}, and {self._record} names {latest}: it has the folder now"
            )


class ProgressFile(Watcher):
    """Appends a line `STEP FIRST LAST SECONDS` for every step, for whoever waits for the arm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = time.monotonic()

    def on_start(self, training: Training) -> None:
        self._append(training, training.plan.first_step - 1)

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._append(training, training.step)

    def _append(self, training: Training, step: int) -> None:
        plan = training.plan
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(f"{step} {plan.first_step} {plan.last_step} {time.monotonic() - self._started:.3f}\n")
