"""What a rank notes as unhealthy: every loss and norm that is not finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from samebits.run.capture import Capture


@pytest.mark.parametrize("name", ["lm loss", "z_loss", "mtp_1 loss", "grad-norm", "params-norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_or_norm_that_is_not_finite_is_noted(name: str, value: float) -> None:
    noted: list[dict[str, Any]] = []
    capture = object.__new__(Capture)
    capture.recorder = SimpleNamespace(note=noted.append)  # type: ignore[assignment]
    training: Any = SimpleNamespace(coordinates=SimpleNamespace(rank=1), step=3)
    capture._note_health(training, {name: value, "tokens": 1.0})
    assert noted == [{"type": "unhealthy", "rank": 1, "step": 3, "name": name, "value": repr(value)}]
