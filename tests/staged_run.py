"""A few steps of capture over tensors on the CPU, digested at once or staged as those of a device are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from records import open_recorder
from samebits.fingerprint.reader import FingerprintFile, read
from samebits.fingerprint.records import Kind, Moment, Phase, Site
from samebits.worker import record as capture
from samebits.worker.capture import staging
from samebits.worker.capture.reading import Reader
from samebits.worker.capture.staging import Adding
from samebits.worker.record import CaptureWatcher

STEPS = 3
NOT_FINITE = {2: float("nan"), 3: float("inf")}
"""Both norms at these steps."""


class Model:
    """Parameters, moments and a step count that change in place, and gradients that are new at every step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(300, 41, generator=generator))
        self.half = torch.randn(9001, generator=generator).bfloat16()[1:]
        self.codes = torch.randint(0, 256, (70_003,), generator=generator, dtype=torch.uint8)
        self.count = torch.zeros((), dtype=torch.float32)

    def state(self, _training: Any) -> Iterator[tuple[Site, Any]]:
        values = {
            **{"step": self.count, "beta": 0.9, "name": b"adam", "number": 7, "huge": 2**60},
            **{"weight": self.weight, "transposed": self.weight.t(), "half": self.half, "codes": self.codes},
            **{"one": self.half[:1], "double": self.count.double().reshape(1, 1), "flag": torch.tensor(True)},
            **{"id": torch.tensor(5), "limit": torch.tensor(float("inf"))},
            **{"pair": torch.view_as_complex(self.weight.detach()[:4, :2].contiguous()).conj(), "none": self.half[:0]},
        }
        for name, value in values.items():
            yield Site(Phase.STATE, Kind.PARAMETER, name), value

    def gradients(self, _training: Any) -> Iterator[tuple[Site, torch.Tensor]]:
        self.gradient = self.weight.detach() * (2 + self.count)
        yield Site(Phase.BACKWARD, Kind.GRADIENT, "weight"), self.gradient

    def update(self) -> None:
        self.gradient.zero_()
        self.count += 1
        with torch.no_grad():
            self.weight += 0.25
        self.half += 1
        self.codes += 3

    def metrics(self, step: int) -> dict[str, Any]:
        norm = NOT_FINITE.get(step, 0.5)
        return {
            **{"lm loss": torch.tensor(1.5 * step), "z_loss": torch.tensor([0.1]).bfloat16(), "tokens": 64.0},
            **{"grad-norm": norm, "params-norm": torch.tensor(norm, dtype=torch.float64)},
        }


def record(path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None = None) -> FingerprintFile:
    """The sealed file of the steps, a saved and a final state."""
    model, recording = Model(), CaptureWatcher(path, "launch", lambda _training: None)
    monkeypatch.setattr(capture, "state_items", model.state)
    monkeypatch.setattr(capture, "gradient_items", model.gradients)
    recording.recorder, recording._reader = open_recorder(path), Reader(limit)
    plan = SimpleNamespace(capture=True, rung_at=lambda _rank, step: "metrics" if step == 2 else "state")
    training: Any = SimpleNamespace(plan=plan, coordinates=SimpleNamespace(rank=0), step=0)
    recording.on_restored(training)
    for training.step in range(1, STEPS + 1):
        recording.on_step_begin(training)
        for number in range(2):
            batch = {"tokens": torch.arange(8) + number, "mask": torch.ones(8).expand(3, 8)}
            recording.on_batch(training, number, batch)
            batch["tokens"].zero_()
        recording.on_gradients(training)
        model.update()
        recording.on_step_end(training, model.metrics(training.step))
    recording.on_save(training)
    recording.on_final(training)
    recording.recorder.seal()
    return read(path, deep=True)


def stage_all(monkeypatch: pytest.MonkeyPatch, add: Adding) -> None:
    """Every tensor counts as one of a device, whose digests `add` makes."""
    monkeypatch.setattr(staging, "adding", lambda _device: add)
    monkeypatch.setattr(
        Reader, "_is_remote", lambda self, value: isinstance(value, torch.Tensor) and not self.skips(value)
    )


def contents(file: FingerprintFile) -> list[object]:
    """All but the times: sites and forms in order, blocks with their records, notes."""
    assert file.fault is None
    blocks = [
        (block.moment, block.step, block.rung, block.digest, file.records(block).tobytes()) for block in file.blocks
    ]
    assert len(blocks) == STEPS + 3
    assert [block.moment for block in file.blocks].count(Moment.STEP) == STEPS
    return [file.sites, file.forms, blocks, file.notes]
