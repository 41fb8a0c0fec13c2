"""Entry point of one rank: `python -m samebits.worker.main ARTIFACT`, with torch.distributed's usual environment.

Light and guarded: Megatron's checkpoint save spawns a helper process that imports this module again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from samebits.worker import rendezvous


def main(folder: Path) -> None:
    """Run the plan in the folder and seal this rank's fingerprint file."""
    from samebits.fingerprint.paths import Artifact
    from samebits.spec.plan import Plan
    from samebits.worker.trainer.train import train
    from samebits.worker.watchers import watchers_of

    artifact = Artifact(folder)
    plan = Plan.from_json(artifact.plan.read_text(encoding="utf-8"))
    watchers, capture = watchers_of(artifact, plan, int(os.environ["RANK"]), os.environ["SAMEBITS_LAUNCH"])
    if plan.capture and plan.recipe.capture.rung == "op":
        from samebits.worker.trace import library_calls

        library_calls.install()
    clocks = train(plan, artifact.checkpoints, watchers)
    capture.recorder.time(clocks)
    capture.recorder.seal()


def run() -> None:
    """Run the rank; on failure end the process at once, for peers that wait for it must not keep it alive."""
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
