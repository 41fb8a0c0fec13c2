"""Entry point of the built-in Megatron Core workload in one rank.

    train(plan, checkpoints, watchers)

in every rank, with the environment that torch.distributed expects. It says nothing about the result: watchers look.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from samebits.fingerprint.clock import Clocks
from samebits.spec.plan import Plan
from samebits.worker import clock
from samebits.worker.hooks import Watcher
from samebits.worker.trainer import cpu_backend


def train(plan: Plan, checkpoints: Path, watchers: Sequence[Watcher]) -> Clocks:
    """Run the steps `plan.first_step` to `plan.last_step` and write checkpoints below `checkpoints`; return where
    the time of each step went.

    Raises UpstreamError, LayoutError, DataError, CheckpointError or ValueError for a plan that does not fit, and lets
    errors of Megatron through.
    """
    cpu_backend.install()
    clock.time_collectives()
    # Not at the top: megatron binds names of torch.cuda at import.
    from samebits.worker.trainer import loop

    return loop.run(plan, checkpoints, watchers)
