"""One rank of a run that computes parts of its forward pass again: `recompute_rank.py PLAN OUT SETTINGS`.

SETTINGS: JSON of Megatron's configuration, put over the one that the workload makes. Leaves `rank-00000.fp` in OUT.
Imported by nobody: Megatron's checkpoint starts a process that would import it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace


def main(plan_file: Path, out: Path, settings: str) -> None:
    from samebits.spec.plan import Plan
    from samebits.worker import clock
    from samebits.worker.pins import observe
    from samebits.worker.record import CaptureWatcher
    from samebits.worker.trainer import cpu_backend

    cpu_backend.install()
    clock.time_collectives()
    from megatron.core.tensor_parallel import random

    from samebits.worker.trainer import loop, model

    if not hasattr(random, "FP8GlobalStateManager"):
        # Without Transformer Engine megatron-core 0.16.1 asks for these all the same.
        random.FP8GlobalStateManager = SimpleNamespace(is_fp8_enabled=lambda: False)
        random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()
    model._UNFUSED.update(json.loads(settings))
    capture = CaptureWatcher(out / "rank-00000.fp", "launch", observe)
    loop.run(Plan.from_json(plan_file.read_text()), out / "checkpoints", [capture])
    capture.recorder.seal()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
