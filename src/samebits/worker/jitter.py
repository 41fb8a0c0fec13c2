"""Disturbances inside a rank of a stress run: pauses, odd allocations, data drawn ahead. None may change a number."""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch

from samebits.fingerprint.conditions import Condition, note
from samebits.spec.plan import Plan
from samebits.worker.hooks import Training, Watcher

LOADER_THREADS = 3
_PAUSED = 0.25
"""Share of the points at which a delayed rank pauses."""
_SHORTEST, _LONGEST = 0.002, 0.040
"""Bounds of one pause, in seconds."""
_ODD_BYTES = (1, 37, 511, 4_099, 65_539, 262_147, 1_048_583)


def watchers(plan: Plan, rank: int, artifact: Path) -> list[Watcher]:
    """Return the watchers that disturb this rank; none in an arm that is not stressed."""
    found: list[Watcher] = []
    if "addresses" in plan.stress:
        found.append(OddAllocations(rank))
    if "loader-threads" in plan.stress:
        found.append(DrawnAhead(rank, artifact))
    if "delayed-rank" in plan.stress and rank == delayed_rank(plan):
        found.append(Delay(plan, rank, artifact))
    return found


def delayed_rank(plan: Plan) -> int:
    """Return the rank that is delayed, the same one in every run of a recipe."""
    return random.Random(f"delayed rank of {plan.recipe.name}").randrange(plan.world)


class Delay(Watcher):
    """Watcher that sleeps at random points, the same ones in every run of a recipe; it has its own random stream."""

    def __init__(self, plan: Plan, rank: int, artifact: Path) -> None:
        self._chance = random.Random(f"delays of {plan.recipe.name}")
        self._rank = rank
        self._artifact = artifact
        self._pauses = 0
        self._seconds = 0.0

    def on_step_begin(self, training: Training) -> None:
        if training.step == training.plan.first_step:
            self._sleep()
        self._perhaps()

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        self._perhaps()

    def on_loss(self, training: Training, micro_batch: int, loss: torch.Tensor) -> torch.Tensor:
        self._perhaps()
        return loss

    def on_gradients(self, training: Training) -> None:
        self._perhaps()

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        self._perhaps()

    def on_final(self, training: Training) -> None:
        how = f"slept {self._pauses} times, {self._seconds:.2f} s in all"
        note(self._artifact, Condition("delayed-rank", self._rank, True, how))

    def _perhaps(self) -> None:
        if self._chance.random() < _PAUSED:
            self._sleep()

    def _sleep(self) -> None:
        pause = self._chance.uniform(_SHORTEST, _LONGEST)
        time.sleep(pause)
        self._pauses += 1
        self._seconds += pause


class OddAllocations(Watcher):
    """Allocations of odd sizes, every second one freed, so that later tensors get other addresses.

    They are made on the host before the model is built, and on a device before the first step.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._kept = [bytearray(size + rank) for size in _ODD_BYTES for _ in range(2)][::2]
        self._tensors = _odd_tensors(torch.device("cpu"), rank)

    def on_start(self, training: Training) -> None:
        if training.device.type != "cpu":
            self._tensors += _odd_tensors(training.device, self._rank)


def _odd_tensors(device: torch.device, rank: int) -> list[torch.Tensor]:
    made = [torch.empty(size + rank, dtype=torch.uint8, device=device) for size in _ODD_BYTES for _ in range(2)]
    return made[::2]


class DrawnAhead(Watcher):
    """Watcher that has threads draw the samples, in their unchanged order, before they are needed."""

    def __init__(self, rank: int, artifact: Path) -> None:
        self._rank = rank
        self._artifact = artifact

    def on_start(self, training: Training) -> None:
        ours = training.sampler is not None
        if ours:
            training.sampler.draw_ahead(LOADER_THREADS)
        how = f"{LOADER_THREADS} threads draw the data ahead" if ours else "a launch line of one's own draws its data"
        note(self._artifact, Condition("loader-threads", self._rank, ours, how))
