"""Clocks of one rank: how much of each step's time each phase took (`samebits.fingerprint.clock.Phase`).

On a device CUDA events on the current stream mark the borders between phases, and are read when the step is over: a
collective's share is what the stream waited for it. Elsewhere the host's monotonic clock does. Clocks run in every arm
alike, and cost a step some microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits.fingerprint.clock import CLOCK, TRAINING, ClockPhase, Clocks

HOST, EVENTS = "host", "cuda events"

_COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"),
    *("all_to_all_single", "broadcast", "reduce", "gather", "scatter", "send", "recv", "batch_isend_irecv", "barrier"),
    *("_all_gather_base", "_reduce_scatter_base", "all_gather_object", "broadcast_object_list"),
)
"""Functions of torch.distributed that count as communication. Not `isend` and `irecv`: they return at once, and P2POp
compares them by identity."""


class Clock:
    """Times one step after the other. A phase inside another takes its time out of it.

    now: gives a mark. nanoseconds: between two marks, once `settle` was called.
    """

    source = HOST

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, tuple[int, ...]]] = []
        self._marks: list[tuple[Any, ClockPhase]] = []
        self._inside: list[ClockPhase] = []
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step
        self._marks.clear()
        self._inside = [ClockPhase.OTHER]
        self._marks.append((self._now(), ClockPhase.OTHER))

    def enter(self, phase: ClockPhase) -> None:
        """Begin a phase inside the current one; outside a step nothing is timed."""
        if self._inside:
            self._inside.append(phase)
            self._marks.append((self._now(), phase))

    def leave(self) -> None:
        if self._inside:
            self._inside.pop()
            self._marks.append((self._now(), self._inside[-1]))

    def during(self, phase: ClockPhase) -> _During:
        """`with clock.during(ClockPhase.FORWARD):`"""
        return _During(self, phase)

    def end(self) -> None:
        self._marks.append((self._now(), ClockPhase.OTHER))
        self._settle()
        self._rows.append((self._step, 0, tuple(self._spent())))
        self._inside = []

    def saved(self) -> None:
        """Note that a checkpoint is written after the step just timed."""
        step, _, spent = self._rows[-1]
        self._rows[-1] = step, 1, spent

    def stretch(self, percent: float) -> None:
        """Make the current step take this much longer than it took so far, to test what measures it."""
        self._marks.append((self._now(), self._inside[-1]))
        self._settle()
        spent = self._spent()
        wanted = sum(spent[phase] for phase in TRAINING) * percent / 100
        started = time.perf_counter_ns()
        while time.perf_counter_ns() - started < wanted:
            pass

    def rows(self) -> Clocks:
        return np.array(self._rows, CLOCK)

    def _spent(self) -> list[int]:
        """Return the nanoseconds spent in each phase, up to the last mark."""
        spent = [0] * len(ClockPhase)
        for (start, phase), (stop, _) in zip(self._marks, self._marks[1:], strict=False):
            spent[phase] += self._nanoseconds(start, stop)
        return spent

    def _now(self) -> Any:
        return time.perf_counter_ns()

    def _nanoseconds(self, start: Any, stop: Any) -> int:
        return int(stop - start)

    def _settle(self) -> None:
        """Wait until all marks can be read."""


class DeviceClock(Clock):
    """Clock of the device's current stream. Its events are reused from step to step."""

    source = EVENTS

    def __init__(self) -> None:
        super().__init__()
        self._events: list[torch.cuda.Event] = []

    def _now(self) -> torch.cuda.Event:
        number = len(self._marks)
        if number == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._events[number]
        event.record()
        return event

    def _nanoseconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> int:
        # Marks of two streams may be out of order by less than the clock tells.
        return max(0, int(start.elapsed_time(stop) * 1e6))

    def _settle(self) -> None:
        # Not the last mark alone: a thread of autograd may have another stream.
        torch.cuda.synchronize()


class _During:
    def __init__(self, clock: Clock, phase: ClockPhase) -> None:
        self._clock = clock
        self._phase = phase

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()


_RUNNING: list[Clock] = []
"""The clock of this process; empty before training begins."""


def start() -> Clock:
    """Start and return the clock that fits this rank's device."""
    clock = DeviceClock() if torch.cuda.is_available() else Clock()
    _RUNNING[:] = [clock]
    return clock


def time_collectives() -> None:
    """Time the collectives of torch.distributed as communication from now on; has an effect once in a process.

    Call it before megatron is imported, which binds some of their names.
    """
    if getattr(torch.distributed, "_samebits_timed", False):
        return
    for name in _COLLECTIVES:
        if original := getattr(torch.distributed, name, None):
            setattr(torch.distributed, name, communicating(original))
    torch.distributed.Work.wait = communicating(torch.distributed.Work.wait)  # type: ignore[method-assign]
    torch.distributed._samebits_timed = True  # type: ignore[attr-defined]


def communicating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the function whose time counts as communication."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        if not _RUNNING:
            return function(*args, **kwargs)
        with _RUNNING[0].during(ClockPhase.COMMUNICATION):
            return function(*args, **kwargs)

    timed.__name__ = getattr(function, "__name__", "timed")
    timed.__doc__ = function.__doc__
    return timed
