"""The watchers of one rank of a foreign loop: those that the built-in trainer's rank has, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from samebits.fingerprint.clock import Clocks
from samebits.fingerprint.paths import Artifact
from samebits.spec.command import FAULTS
from samebits.spec.plan import Plan
from samebits.worker import unrest
from samebits.worker.faults import FaultError, Planter
from samebits.worker.fence import Fence
from samebits.worker.hooks import Watcher
from samebits.worker.pins import observe
from samebits.worker.progress import Progress
from samebits.worker.record import Capture


def watchers(artifact: Artifact, plan: Plan, rank: int, launch: str) -> tuple[list[Watcher], Callable[[Clocks], None]]:
    """With what seals the fingerprint file, given where the time of each step went. Raises FaultError for a fault that
    cannot be planted in a foreign loop: one that never strikes would prove nothing."""
    for fault in plan.faults:
        if fault.kind not in FAULTS:
            raise FaultError(f"fault {fault.kind}: must be one of {', '.join(FAULTS)} with workload command")
    capture = Capture(artifact.fingerprint(rank), launch, observe)
    job = artifact.launch / "job.json"

    def seal(clocks: Clocks) -> None:
        capture.recorder.time(clocks)
        capture.recorder.seal()

    found: list[Watcher] = [
        *([Fence(job, launch)] if rank == 0 else []),
        *unrest.watchers(plan, rank, Path(artifact.folder)),
        *(Planter(fault, lambda: capture.recorder) for fault in plan.faults),
        capture,
        *([Progress(artifact.progress)] if rank == 0 else []),
    ]
    return found, seal
