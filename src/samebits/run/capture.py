"""Capture: turns the points of a run into blocks of the fingerprint file.

Adds no collective, draws from no stream, changes no tensor. What lies on a device is staged where it is met and fetched
once a block: nothing waits for a tensor by itself.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeGuard

import torch

from samebits.artifact import clock
from samebits.artifact.header import Header
from samebits.artifact.site import Flag, Form, Kind, Moment, Phase, Site
from samebits.run.digest import DIGEST_ID, digest, digest_bytes
from samebits.run.recorder import Recorder
from samebits.run.staging import Fetched, Staged, Staging
from samebits.run.state import Item, Value, gradient_items, state_items
from samebits.run.watch import Training, Watcher

UPDATE_METRICS = frozenset({"grad-norm", "params-norm", "num-zeros", "learning-rate", "loss-scale", "tokens"})
"""Metrics of the optimizer's step; every other one is a loss and belongs to the forward pass."""

HEALTHY_NORMS = frozenset({"grad-norm", "params-norm"})
"""Must be finite, as every loss must: a last update that breaks the parameters shows in no later loss."""
_STATE_METRICS = {"params-norm": Phase.STATE}
"""Computed from the state after the step: recorded behind it, for it follows from it."""

Output = tuple[int, int]
Row = tuple[Site, Form, Output, Flag]
Reading = tuple[Site, Form, Output | Staged, Flag]
"""A row whose digest may still be on its way."""


class Capture(Watcher):
    """Records what the plan asks for.

    path: of the fingerprint file, made at `on_start`. observe: pins of this rank, called once, then.
    """

    phase = clock.Phase.CAPTURE

    def __init__(self, path: Path, launch: str, observe: Callable[[Training], Any]) -> None:
        self._path = path
        self._launch = launch
        self._observe = observe
        self._readings: list[Reading] = []
        self._staging = Staging()
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
            self._block(Moment.RESTORED, training.step, "state", self._read(state_items(training)))

    def on_step_begin(self, training: Training) -> None:
        self._started = time.time_ns()
        self._readings.clear()
        self._staging.drop()

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        if self._full(training):
            self._readings += self._read((Site(Phase.DATA, Kind.BATCH, name), tensor) for name, tensor in batch.items())

    def on_gradients(self, training: Training) -> None:
        if self._full(training):
            self._readings += self._read(gradient_items(training))

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        if not training.plan.capture:
            self._note_health(training, metrics)
            return
        rung = training.plan.rung_at(training.coordinates.rank, training.step)
        state = self._read(state_items(training)) if rung == "state" else []
        scalars = self._read((_metric_site(name), value) for name, value in metrics.items())
        readings = sorted(self._readings + state + scalars, key=lambda reading: _ORDER[reading[0].phase])
        rows = self._block(Moment.STEP, training.step, rung, readings)
        self._note_health(training, {**metrics, **_exact_metrics(rows)})

    def on_save(self, training: Training) -> None:
        if training.plan.capture:
            self._block(Moment.SAVED, training.step, "state", self._read(state_items(training)))

    def on_final(self, training: Training) -> None:
        self._block(Moment.FINAL, training.step, "state", self._read(state_items(training)))

    def _full(self, training: Training) -> bool:
        plan = training.plan
        return plan.capture and plan.rung_at(training.coordinates.rank, training.step) == "state"

    def _read(self, items: Iterable[Item]) -> list[Reading]:
        """Stages all that lies on a device, in one go, and digests the rest at once."""
        listed = list(items)
        staged = iter(self._staging.take([value for _, value in listed if self._is_remote(value)]))
        return [
            (site, _form(value), next(staged), _flag(value)) if self._is_remote(value) else self._row(site, value)
            for site, value in listed
        ]

    def _is_remote(self, value: Value) -> TypeGuard[torch.Tensor]:
        return isinstance(value, torch.Tensor) and not value.is_cpu and not self._is_skipped(value)

    def _is_skipped(self, tensor: torch.Tensor) -> bool:
        return self._limit is not None and tensor.nbytes > self._limit

    def _row(self, site: Site, value: Value) -> Row:
        if not isinstance(value, torch.Tensor):
            return plain_row(site, value)
        if self._is_skipped(value):
            return site, _form(value), (0, 0), Flag.SKIPPED
        if _flag(value) is Flag.VALUE:
            return site, _form(value), (_bits(float(value)), digest(value)[0]), Flag.VALUE
        return site, _form(value), digest(value), Flag.NONE

    def _block(self, moment: Moment, step: int, rung: str, readings: Iterable[Reading]) -> list[Row]:
        """Writes a block; waits once for all that was staged since the last one."""
        started = self._started if moment is Moment.STEP else time.time_ns()
        fetched = self._staging.fetch()
        rows = [_arrived(reading, fetched) for reading in readings]
        recorder = self.recorder
        recorder.begin(moment, step, rung)
        for site, form, output, flags in rows:
            recorder.record(recorder.site(site), recorder.form(form), output, flags)
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


def _form(tensor: torch.Tensor) -> Form:
    return Form(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _flag(tensor: torch.Tensor) -> Flag:
    """Of one floating-point number the record holds the value itself; below 2 bytes torch cannot convert every type."""
    exact = tensor.numel() == 1 and tensor.is_floating_point() and tensor.element_size() >= 2
    return Flag.VALUE if exact else Flag.NONE


def _arrived(reading: Reading, fetched: Fetched) -> Row:
    site, form, output, flags = reading
    if not isinstance(output, Staged):
        return site, form, output, flags
    if flags is Flag.VALUE:
        return site, form, (_bits(float(fetched.tensor(output))), fetched.digest(output)[0]), flags
    return site, form, fetched.digest(output), flags


def _exact_metrics(rows: Iterable[Row]) -> dict[str, float]:
    """Those whose record holds the value: where they lay on a device, they are here now."""
    return {
        site.name: _value(output[0])
        for site, _, output, flags in rows
        if site.kind is Kind.METRIC and flags is Flag.VALUE
    }


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


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
