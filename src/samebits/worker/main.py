"""Entry of one rank: `python -m samebits.worker.main ARTIFACT`, with torch.distributed's usual environment.

Light and guarded: Megatron's checkpoint save spawns a helper process that imports this module again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.worker import rendezvous

if TYPE_CHECKING:
    from samebits.fingerprint.writer import Recorder
    from samebits.spec.questions import Fault
    from samebits.worker.hooks import Watcher


def main(folder: Path) -> None:
    """Runs the plan that lies in the folder and seals this rank's fingerprint file."""
    from samebits.fingerprint.paths import Artifact
    from samebits.spec.plan import Plan
    from samebits.worker.fence import Fence
    from samebits.worker.pins import observe
    from samebits.worker.progress import Progress
    from samebits.worker.record import Capture
    from samebits.worker.trainer.train import train
    from samebits.worker.unrest import watchers as unrest

    artifact = Artifact(folder)
    plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    capture = Capture(artifact.fingerprint(rank), os.environ["SAMEBITS_LAUNCH"], observe)
    planters = _planters(plan.faults, lambda: capture.recorder) if plan.faults else []
    first = [Fence(artifact.launch / "job.json", os.environ["SAMEBITS_LAUNCH"])] if rank == 0 else []
    watchers = [
        *first,
        *unrest(plan, rank, folder),
        *planters,
        capture,
        *([Progress(artifact.progress)] if rank == 0 else []),
    ]
    if plan.capture and plan.recipe.capture.rung == "op":
        from samebits.worker.trace import library_calls

        library_calls.install()
    clocks = train(plan, artifact.checkpoints, watchers)
    capture.recorder.time(clocks)
    capture.recorder.seal()


def _planters(faults: Sequence[Fault], recorder: Callable[[], Recorder]) -> list[Watcher]:
    from samebits.worker.disorder import KINDS, Disorder
    from samebits.worker.faults import Planter

    return [(Disorder if fault.kind in KINDS else Planter)(fault, recorder) for fault in faults]


def run() -> None:
    """Ends the process at once where the rank fails: peers that wait for it must not keep it alive."""
    started = time.monotonic()
    # A launcher that sees no progress asks for the stacks of all threads; they appear in this rank's log.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        rendezvous.complete(os.environ)
        main(Path(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    print(f"rank {os.environ['RANK']}: sealed after {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    run()
