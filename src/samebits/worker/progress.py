"""One line a step for whoever waits: `STEP FIRST LAST SECONDS`, appended by rank 0."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from samebits.worker.hooks import Training, Watcher


class Progress(Watcher):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = time.monotonic()

    def on_start(self, training: Training) -> None:
        self._say(training, training.plan.first_step - 1)

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._say(training, training.step)

    def _say(self, training: Training, step: int) -> None:
        plan = training.plan
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(f"{step} {plan.first_step} {plan.last_step} {time.monotonic() - self._started:.3f}\n")
