"""What a rank notes as unhealthy: every loss and norm that is not finite."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import artifacts
from samebits.fingerprint import reader
from samebits.worker.record import CaptureWatcher


@pytest.mark.parametrize("name", ["lm loss", "z_loss", "mtp_1 loss", "grad-norm", "params-norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_or_norm_that_is_not_finite_is_noted(name: str, value: float) -> None:
    noted: list[dict[str, Any]] = []
    capture = object.__new__(CaptureWatcher)
    capture.recorder = SimpleNamespace(note=noted.append)  # type: ignore[assignment]
    training: Any = SimpleNamespace(coordinates=SimpleNamespace(rank=1), step=3)
    capture._note_health(training, {name: value, "tokens": 1.0})
    assert noted == [{"type": "unhealthy", "rank": 1, "step": 3, "name": name, "value": repr(value)}]


@pytest.mark.parametrize("capture", [True, False])
def test_a_loss_that_is_not_a_number_is_noted_with_capture_off_too(tmp_path: Path, capture: bool) -> None:
    """A run that only measures time must not pass while its loss is none."""
    plan = dataclasses.replace(artifacts.make_plan(), capture=capture)
    looking = CaptureWatcher(tmp_path / "rank-00000.fp", "launch", lambda _: artifacts.make_pins(0))
    place = artifacts.coordinates(0, 2)
    training: Any = SimpleNamespace(plan=plan, coordinates=place, step=3, sampler=SimpleNamespace(state=dict))
    training.chunks, training.optimizer = [], None
    looking.on_start(training)
    looking.on_step_begin(training)
    if capture:
        light = dataclasses.replace(plan.recipe.capture, rung="metrics")
        training.plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, capture=light))
    looking.on_step_end(training, {"lm loss": float("nan"), "tokens": float("inf")})

    noted = reader.read(looking.recorder.path, deep=False).notes
    notes = [note for note in noted if note["type"] == "unhealthy"]
    assert notes == [{"type": "unhealthy", "rank": 0, "step": 3, "name": "lm loss", "value": "nan"}]
