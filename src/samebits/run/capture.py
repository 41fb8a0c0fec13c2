"""Capture: turns the points of a run into blocks of the fingerprint file.

Adds no collective, draws from no stream, changes no tensor. On a device, digests are staged and moved once a block.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from samebits.artifact.header import Header
from samebits.artifact.site import Flag, Form, Kind, Moment, Phase, Site
from samebits.run.digest import DIGEST_ID, digest, digest_bytes
from samebits.run.recorder import Recorder
from samebits.run.state import Value, gradient_items, state_items
from samebits.run.watch import Training, Watcher

UPDATE_METRICS = frozenset({"grad-norm", "params-norm", "num-zeros", "learning-rate", "loss-scale", "tokens"})
"""Metrics of the optimizer's step; every other one is a loss and belongs to the forward pass."""

HEALTHY_NORMS = frozenset({"grad-norm", "params-norm"})
"""Must be finite, as every loss must: a last update that breaks the parameters shows in no later loss."""
_STATE_METRICS = {"params-norm": Phase.STATE}
"""Computed from the state after the step: recorded behind it, for it follows from it."""

Row = tuple[Site, Form, tuple[int, int], Flag]


class Capture(Watcher):
    """Records what the plan asks for.

    path: of the fingerprint file, made at `on_start`. observe: pins of this rank, called once, then.
    """

    def __init__(self, path: Path, launch: str, observe: Callable[[Training], Any]) -> None:
        self._path = path
        self._launch = launch
        self._observe = observe
        self._rows: list[Row] = []
        self._started = 0
        self.recorder: Recorder

    def on_start(self, training: Training) -> None:
        header = Header(
            digest=DIGEST_ID,
            launch=self._launch,
            coordinates=training.coordinates,
            plan=training.plan,
            pins=self._observe(training),
        )
        self._limit = training.plan.recipe.capture.max_tensor_bytes
        self.recorder = Recorder(self._path, header)

    def on_restored(self, training: Training) -> None:
        if training.plan.capture:
            self._block(Moment.RESTORED, training.step, "state", self._state(training))

    def on_step_begin(self, training: Training) -> None:
        self._started = time.time_ns()
        self._rows.clear()

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        if self._full(training):
            self._rows += [self._row(Site(Phase.DATA, Kind.BATCH, name), tensor) for name, tensor in batch.items()]

    def on_gradients(self, training: Training) -> None:
        if self._full(training):
            self._rows += [self._row(site, gradient) for site, gradient in gradient_items(training)]

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        if not training.plan.capture:
            return
        rung = training.plan.rung_at(training.coordinates.rank, training.step)
        state = self._state(training) if rung == "state" else []
        rows = self._rows + state + [self._metric(name, value) for name, value in metrics.items()]
        rows.sort(key=lambda row: _ORDER[row[0].phase])
        self._block(Moment.STEP, training.step, rung, rows)
        self._note_health(training, metrics)

    def on_save(self, training: Training) -> None:
        if training.plan.capture:
            self._block(Moment.SAVED, training.step, "state", self._state(training))

    def on_final(self, training: Training) -> None:
        self._block(Moment.FINAL, training.step, "state", self._state(training))

    def _full(self, training: Training) -> bool:
        plan = training.plan
        return plan.capture and plan.rung_at(training.coordinates.rank, training.step) == "state"

    def _state(self, training: Training) -> list[Row]:
        return [self._row(site, value) for site, value in state_items(training)]

    def _metric(self, name: str, value: float | torch.Tensor) -> Row:
        phase = _STATE_METRICS.get(name, Phase.UPDATE if name in UPDATE_METRICS else Phase.FORWARD)
        return self._row(Site(phase, Kind.METRIC, name), value)

    def _row(self, site: Site, value: Value) -> Row:
        if not isinstance(value, torch.Tensor):
            return plain_row(site, value)
        form = Form(str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if self._limit is not None and value.nbytes > self._limit:
            return site, form, (0, 0), Flag.SKIPPED
        if value.numel() == 1 and value.is_floating_point() and value.element_size() >= 2:
            return site, form, (_bits(float(value)), digest(value)[0]), Flag.VALUE
        return site, form, digest(value), Flag.NONE

    def _block(self, moment: Moment, step: int, rung: str, rows: Iterable[Row]) -> None:
        started = self._started if moment is Moment.STEP else time.time_ns()
        recorder = self.recorder
        recorder.begin(moment, step, rung)
        for site, form, output, flags in rows:
            recorder.record(recorder.site(site), recorder.form(form), output, flags)
        recorder.end(started, time.time_ns())

    def _note_health(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        for name, value in metrics.items():
            if (name in HEALTHY_NORMS or name not in UPDATE_METRICS) and not math.isfinite(float(value)):
                body = {"type": "unhealthy", "rank": training.coordinates.rank, "step": training.step}
                self.recorder.note({**body, "name": name, "value": repr(float(value))})


_ORDER = {phase: number for number, phase in enumerate(Phase)}


def plain_row(site: Site, value: bool | int | float | bytes) -> Row:
    """Record of a Python value: exact, with its type as dtype. bytes and whole numbers beyond 2^53 by digest only."""
    if isinstance(value, bytes):
        return site, Form("bytes", (len(value),)), digest_bytes(value), Flag.NONE
    if isinstance(value, float):
        bits = _bits(value)
        return site, Form("float", ()), (bits, bits), Flag.VALUE
    form = Form(type(value).__name__, ())
    word = digest_bytes(repr(int(value)).encode())[0]
    if abs(value) <= 1 << 53:
        return site, form, (_bits(float(value)), word), Flag.VALUE
    return site, form, digest_bytes(repr(value).encode()), Flag.NONE


def _bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
