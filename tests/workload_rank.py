"""One rank of a test run: trains and writes what its state hashes to. Imported by `workload` in rank processes only."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from samebits.spec.plan import Plan
from samebits.worker.capture import state as rng
from samebits.worker.hooks import Training, Watcher
from samebits.worker.trainer.train import train


class Dump(Watcher):
    """Hashes the state at the end, after a restore and at every save, and keeps all metrics."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._restored: dict[str, str] = {}
        self._saved: dict[int, dict[str, str]] = {}
        self._metrics: dict[int, dict[str, str]] = {}

    def on_restored(self, training: Training) -> None:
        self._restored = digests(training)

    def on_loss(self, training: Training, micro_batch: int, loss: torch.Tensor) -> torch.Tensor:
        planted = any(fault.kind == "nan-loss" and fault.step == training.step for fault in training.plan.faults)
        return loss * float("nan") if planted else loss

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._metrics[training.step] = {name: float(value).hex() for name, value in metrics.items()}

    def on_save(self, training: Training) -> None:
        self._saved[training.step] = digests(training)

    def on_final(self, training: Training) -> None:
        body = {
            "state": digests(training),
            "restored": self._restored,
            "saved": self._saved,
            "metrics": self._metrics,
        }
        (self._out / f"rank-{training.coordinates.rank}.json").write_text(json.dumps(body))


def run(plan: Plan, checkpoints: Path, out: Path) -> None:
    """Trains; a rank that fails ends at once, whatever threads it has left."""
    try:
        train(plan, checkpoints, [Dump(out)])
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def digests(training: Training) -> dict[str, str]:
    """sha256 of each parameter, buffer, optimizer tensor, random stream, and of the schedule and data position."""
    items: dict[str, Any] = {}
    for number, chunk in enumerate(training.chunks):
        items.update({f"parameter {number} {name}": value for name, value in chunk.named_parameters()})
        items.update({f"buffer {number} {name}": value for name, value in chunk.named_buffers()})
    for number, part in enumerate(training.optimizer.chained_optimizers):
        for index, parameter in enumerate(part.get_parameters()):
            items[f"main {number} {index}"] = parameter
            state = part.optimizer.state[parameter]
            items.update({f"{key} {number} {index}": value for key, value in state.items()})
    items.update({f"rng {name}": value for name, value in rng.rng_states(training).items()})
    items["scheduler"] = repr(sorted(training.scheduler.state_dict().items())).encode()
    items["sampler"] = repr(sorted(training.sampler.state().items())).encode()
    return {name: _hash(value) for name, value in items.items()}


def _hash(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        value = f"{value.dtype}{tuple(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()
