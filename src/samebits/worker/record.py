"""Capture: writes a block of the fingerprint file at each point of a run that the plan captures.

Adds no collective, draws from no stream, changes no tensor. What lies on a device is staged where it is met and fetched
once a block: nothing waits for a tensor by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from samebits.fingerprint import clock
from samebits.fingerprint.format import Header
from samebits.fingerprint.records import RUNGS, Flag, Kind, Moment, Phase, Site
from samebits.fingerprint.writer import Recorder
from samebits.worker.capture import state as replicas
from samebits.worker.capture.digest import DIGEST_ID
from samebits.worker.capture.reading import Reader, Reading, Row, number
from samebits.worker.capture.state import gradient_items, state_items
from samebits.worker.hooks import Training, Watcher
from samebits.worker.trace.trace import Trace
from samebits.worker.trace.tracers import Tracing, is_traced

UPDATE_METRICS = frozenset({"grad-norm", "params-norm", "num-zeros", "learning-rate", "loss-scale", "tokens"})
"""Metrics of the optimizer's step; every other one is a loss and belongs to the forward pass."""

HEALTHY_NORMS = frozenset({"grad-norm", "params-norm"})
"""Must be finite, as every loss must: a last update that breaks the parameters shows in no later loss."""
_STATE_METRICS = {"params-norm": Phase.STATE}
"""Computed from the state after the step: recorded behind it, for it follows from it."""


class CaptureWatcher(Watcher):
    """Watcher that records what the plan asks for.

    path: of the fingerprint file, made at `on_start`. observe: pins of this rank, called once, then.
    """

    phase = clock.ClockPhase.CAPTURE

    def __init__(self, path: Path, launch: str, observe: Callable[[Training], Any]) -> None:
        self._path = path
        self._launch = launch
        self._observe = observe
        self._readings: list[Reading] = []
        self._tracing: Tracing | None = None
        self._trace: Trace | None = None
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
        self._reader = Reader(training.plan.recipe.capture.max_tensor_bytes)
        self.recorder = Recorder(self._path, header)
        if training.plan.capture:
            self.recorder.note(replicas.note(training))
        rung = training.plan.recipe.capture.rung
        if training.plan.capture and is_traced(rung):
            self._tracing = Tracing(training, rung, self._reader)

    def on_restored(self, training: Training) -> None:
        if training.plan.capture:
            self._block(Moment.RESTORED, training.step, "state", self._reader.read(state_items(training)))

    def on_step_begin(self, training: Training) -> None:
        self._started = time.time_ns()
        self._readings.clear()
        self._reader.drop()
        if self._tracing is not None and training.plan.capture and is_traced(self._rung(training)):
            self._trace = self._tracing.start(self._rung(training))
            self._readings = self._trace.readings
            self._trace.stage = Phase.DATA

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        if self._full(training):
            items = ((Site(Phase.DATA, Kind.BATCH, name), tensor) for name, tensor in batch.items())
            self._readings += self._reader.read(items)
        if self._trace is not None:
            self._trace.stage = Phase.FORWARD

    def on_gradients(self, training: Training) -> None:
        if self._full(training):
            self._readings += self._reader.read(gradient_items(training))
        if self._trace is not None:
            self._trace.stage = Phase.UPDATE

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        if not training.plan.capture:
            self._note_health(training, metrics)
            return
        traced = self._stop_tracing(training)
        state = self._reader.read(state_items(training)) if self._full(training) else []
        scalars = self._reader.read((_metric_site(name), value) for name, value in metrics.items())
        later = sorted([*([] if traced else self._readings), *state, *scalars], key=lambda one: _ORDER[one.site.phase])
        rows = self._block(Moment.STEP, training.step, self._rung(training), [*traced, *later])
        self._note_health(training, {**metrics, **_exact_metrics(rows)})

    def on_save(self, training: Training) -> None:
        if training.plan.capture:
            self._block(Moment.SAVED, training.step, "state", self._reader.read(state_items(training)))

    def on_final(self, training: Training) -> None:
        self._block(Moment.FINAL, training.step, "state", self._reader.read(state_items(training)))

    def _stop_tracing(self, training: Training) -> list[Reading]:
        """End the step's trace and return what it recorded, in order of execution."""
        if self._tracing is None or self._trace is None:
            return []
        self._tracing.stop()
        for note in self._trace.notes:
            self.recorder.note({**note, "rank": training.coordinates.rank, "step": training.step})
        self._trace = None
        return self._readings

    def _full(self, training: Training) -> bool:
        return training.plan.capture and RUNGS.index(self._rung(training)) >= RUNGS.index("state")

    def _rung(self, training: Training) -> str:
        return training.plan.rung_at(training.coordinates.rank, training.step)

    def _block(self, moment: Moment, step: int, rung: str, readings: Iterable[Reading]) -> list[Row]:
        """Write a block; wait once for all that was staged since the last one."""
        started = self._started if moment is Moment.STEP else time.time_ns()
        rows = self._reader.rows(readings)
        recorder = self.recorder
        recorder.begin(moment, step, rung)
        for site, form, output, flags, source in rows:
            recorder.record(recorder.site(site), recorder.form(form), output, flags, source)
        recorder.end(started, time.time_ns())
        return rows

    def _note_health(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        for name, value in metrics.items():
            if (name in HEALTHY_NORMS or name not in UPDATE_METRICS) and not math.isfinite(float(value)):
                body = {"type": "unhealthy", "rank": training.coordinates.rank, "step": training.step}
                self.recorder.note({**body, "name": name, "value": repr(float(value))})


_ORDER = {phase: number for number, phase in enumerate(Phase)}


def _metric_site(name: str) -> Site:
    phase = _STATE_METRICS.get(name, Phase.UPDATE if name in UPDATE_METRICS else Phase.FORWARD)
    return Site(phase, Kind.METRIC, name)


def _exact_metrics(rows: Iterable[Row]) -> dict[str, float]:
    """Return the metrics whose record holds their value; reading it again from a device would wait for it."""
    return {
        row.site.name: number(row.output[0]) for row in rows if row.site.kind is Kind.METRIC and row.flags & Flag.VALUE
    }
