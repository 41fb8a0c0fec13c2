"""Clock records: where the time of each step went, on one rank. They stand outside every digest."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class ClockPhase(IntEnum):
    """What a rank does; each nanosecond of a step belongs to exactly one. FORWARD: forward passes and losses. BACKWARD:
    all else of the schedule, recomputation too. COMMUNICATION: collectives and messages, waiting for others included.
    OPTIMIZER: zeroing gradients, update, schedule. DATA: drawing batches. CAPTURE: fingerprints. OTHER: logging,
    progress."""

    FORWARD = 0
    BACKWARD = 1
    COMMUNICATION = 2
    OPTIMIZER = 3
    DATA = 4
    CAPTURE = 5
    OTHER = 6


TRAINING = (ClockPhase.FORWARD, ClockPhase.BACKWARD, ClockPhase.COMMUNICATION, ClockPhase.OPTIMIZER)
"""What a step time is the sum of."""

CLOCK = np.dtype([("step", "<u4"), ("saved", "<u4"), ("spent", "<i8", (len(ClockPhase),))])
"""One step. saved: 1 where a checkpoint was written right after it, else 0. spent: nanoseconds by ClockPhase."""

Clocks = NDArray[np.void]
"""CLOCK, shape (steps,), in the order of the steps."""


def checked(data: memoryview) -> Clocks:
    """The payload of a CLOCK frame. Raises ValueError where no clock could have written it."""
    if len(data) % CLOCK.itemsize:
        raise ValueError("not a whole number of clock records")
    rows: Clocks = np.frombuffer(data, CLOCK)
    if (np.diff(rows["step"].astype(np.int64)) <= 0).any():
        raise ValueError("its steps are not in order")
    if (rows["spent"] < 0).any() or (rows["saved"] > 1).any():
        raise ValueError("a clock record is out of range")
    return rows
