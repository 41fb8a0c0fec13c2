"""Busy processes beside a rank: they take its cores and its caches, and end when it does, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import NoReturn

from samebits.worker import kernel_calls

NICENESS = 5
"""A rank keeps about three quarters of a core, and is interrupted all the time."""
_BYTES = 1 << 20


def start(cores: Iterable[int]) -> list[int]:
    """One on each of the cores; their process ids. Call it before there are threads."""
    parent = os.getpid()
    return [_fork(core, parent) for core in cores]


def _fork(core: int, parent: int) -> int:
    if pid := os.fork():
        return pid
    try:
        _work(core, parent)
    finally:
        os._exit(1)


def _work(core: int, parent: int) -> NoReturn:
    kernel_calls.die_with_parent(parent)
    # Meant for ranks: a launcher asks for stacks, Slurm warns of a time limit.
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    # The rank's log must not stay open for its sake.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.nice(NICENESS)
    os.sched_setaffinity(0, {core})
    block = bytearray(_BYTES)
    while True:
        bytes(block)
