"""Planted faults: each strikes one place, once, and notes where. They are what the gate `control` must find.

`upstream` is not here: it leaves a workaround out (see `samebits.worker.trainer.megatron_fixes`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from samebits.fingerprint.records import Kind, Moment, Phase, Site
from samebits.spec.questions import Fault
from samebits.worker.capture.state import gradient_items, parameter_items, rng_states, set_rng_states, state_items
from samebits.worker.hooks import Training, Watcher

if TYPE_CHECKING:
    from samebits.fingerprint.writer import Recorder


class FaultError(ValueError):
    """A fault that cannot be planted as asked."""


class Planter(Watcher):
    """Watcher that plants one fault. It stands before capture among the watchers, so that capture sees its effect.

    recorder: gives the recorder, once there is one.
    """

    def __init__(self, fault: Fault, recorder: Callable[[], Recorder]) -> None:
        self._fault = fault
        self._recorder = recorder

    def on_restored(self, training: Training) -> None:
        strike = _AT_RESTORE.get(self._fault.kind)
        if strike is not None and self._here(training):
            self._note(training, Moment.RESTORED, strike(training, self._fault))

    def on_batch(self, training: Training, micro_batch: int, batch: dict[str, torch.Tensor]) -> None:
        if self._fault.kind == "batch-swap" and micro_batch == 0 and self._now(training):
            self._note(training, Moment.STEP, swap_samples(batch))

    def on_loss(self, training: Training, micro_batch: int, loss: torch.Tensor) -> torch.Tensor:
        if self._fault.kind != "nan-loss" or training.step != self._fault.step:
            return loss
        if micro_batch == 0:
            self._note(training, Moment.STEP, Site(Phase.FORWARD, Kind.METRIC, "lm loss"))
        return loss * float("nan")

    def on_gradients(self, training: Training) -> None:
        if self._fault.kind == "gradient" and self._now(training):
            site, gradient = _pick(dict(gradient_items(training)), self._fault)
            move_one_ulp(gradient)
            self._note(training, Moment.STEP, site)

    def on_step_end(self, training: Training, metrics: dict[str, float | torch.Tensor]) -> None:
        if not self._now(training):
            return
        if self._fault.kind == "ulp":
            site, parameter = _pick(dict(parameter_items(training)), self._fault)
            move_one_ulp(parameter.detach())
            self._note(training, Moment.STEP, site)
        if self._fault.kind == "loss-logging":
            self._note(training, Moment.STEP, log_otherwise(metrics, self._fault))

    def _here(self, training: Training) -> bool:
        return training.coordinates.rank == self._fault.rank

    def _now(self, training: Training) -> bool:
        return self._here(training) and training.step == self._fault.step

    def _note(self, training: Training, moment: Moment, site: Site) -> None:
        self._recorder().note(planted_note(training, moment, self._fault, site))


def planted_note(training: Training, moment: Moment, fault: Fault, site: Site) -> dict[str, Any]:
    """Return the note of where and when a fault struck, and of the item that shows it first."""
    place = {"rank": training.coordinates.rank, "moment": moment.name.lower(), "step": training.step}
    what = {"fault": fault.kind, "kind": site.kind, "name": site.name, "scope": site.scope}
    return {"type": "planted", **place, **what}


def move_one_ulp(tensor: torch.Tensor) -> None:
    """Move the first element by one unit in the last place, in place: its bit pattern plus or minus one.

    tensor: floating point, at least one element.
    """
    first = tensor.detach()[(0,) * tensor.dim()].view(_INTEGER[tensor.element_size()])
    first.bitwise_xor_(1)


_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def swap_samples(batch: dict[str, torch.Tensor]) -> Site:
    """Exchange the first two samples of a micro-batch that differ."""
    tokens = batch["tokens"]
    other = next((row for row in range(1, len(tokens)) if not torch.equal(tokens[0], tokens[row])), None)
    if other is None:
        raise FaultError(f"batch-swap: the micro-batch has {len(tokens)} sample(s), all equal; it needs two different")
    for tensor in batch.values():
        tensor[[0, other]] = tensor[[other, 0]]
    return Site(Phase.DATA, Kind.BATCH, "tokens")


def log_otherwise(metrics: dict[str, float | torch.Tensor], fault: Fault) -> Site:
    """Report another loss than the one that was trained on."""
    name = fault.target or "lm loss"
    if name not in metrics:
        raise FaultError(f"loss-logging: rank {fault.rank} logs no {name!r}; it logs {', '.join(sorted(metrics))}")
    value = torch.as_tensor(metrics[name]).clone()
    move_one_ulp(value)
    metrics[name] = value if isinstance(metrics[name], torch.Tensor) else float(value)
    return Site(Phase.FORWARD, Kind.METRIC, name)


def _drop_moment(training: Training, fault: Fault) -> Site:
    moments = {
        site: value
        for site, value in state_items(training)
        if site.kind is Kind.OPTIMIZER and site.name.endswith(".exp_avg") and isinstance(value, torch.Tensor)
    }
    live = {site: value for site, value in moments.items() if bool(value.any())}
    site, moment = _pick(live, fault)
    moment.zero_()
    return site


def _skip_draw(training: Training, fault: Fault) -> Site:
    states = rng_states(training)
    name = fault.target or "torch"
    if name not in states:
        raise FaultError(f"rng-skip: target is {name!r}, must be one of {', '.join(states)}")
    if name == "python":
        random.random()
    elif name == "numpy":
        np.random.random()
    else:
        states[name] = drawn_once(training, name, states[name])
        set_rng_states(training, states)
    return Site(Phase.STATE, Kind.RNG, name)


def drawn_once(training: Training, name: str, state: torch.Tensor | bytes) -> torch.Tensor:
    """Return the state of a torch generator after one more draw."""
    device = training.device if name != "torch" else torch.device("cpu")
    generator = torch.Generator(device=device)
    generator.set_state(torch.as_tensor(state))
    torch.rand(1, generator=generator, device=device)
    return generator.get_state()


def _skip_sample(training: Training, fault: Fault) -> Site:
    if training.sampler is None:
        raise FaultError("position-skip: this workload's position in the data is not known; plant rng-skip instead")
    state = training.sampler.state()
    training.sampler.restore({**state, "position": state["position"] + 1})
    return Site(Phase.STATE, Kind.POSITION, "position")


def _pick(sites: Mapping[Site, torch.Tensor], fault: Fault) -> tuple[Site, torch.Tensor]:
    """Return the item that the fault names, or the first one."""
    for site, tensor in sites.items():
        if fault.target is None or site.name == fault.target:
            return site, tensor
    named = sorted(site.name for site in sites)
    raise FaultError(f"{fault.kind}: target is {fault.target!r}, must be one of {', '.join(named) or '(none here)'}")


_AT_RESTORE = {"moment-drop": _drop_moment, "rng-skip": _skip_draw, "position-skip": _skip_sample}
