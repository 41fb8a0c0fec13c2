"""The rank processes of one arm on this machine: started afresh, watched, ended together.

Each rank leads a session of its own, so that its helpers end with it, and dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Ranks:
    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._statuses: dict[int, int] = {}

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """environment: the whole of it. log: gets what the rank prints, made new."""
        parent = os.getpid()
        with log.open("wb") as stream:
            self._processes[rank] = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - the job has one thread
            )

    def ended(self) -> dict[int, int]:
        """Exit status of each rank that has ended, in the order in which that was seen; -N: killed by signal N."""
        for rank, process in self._processes.items():
            if rank not in self._statuses and _has_ended(process.pid):
                # The rank's helpers go while its process id, which names their group, is still taken.
                _signal_group(process.pid, signal.SIGKILL)
                self._statuses[rank] = process.wait()
        return dict(self._statuses)

    def signal(self, signum: signal.Signals) -> None:
        """To the ranks themselves, not to their helpers."""
        for rank, process in self._processes.items():
            if rank not in self._statuses:
                process.send_signal(signum)

    def all_ended(self) -> bool:
        return len(self.ended()) == len(self._processes)

    def end(self, grace: float) -> None:
        """Leaves the ranks `grace` seconds to end by themselves, then two after SIGTERM, then kills them."""
        for seconds, signum in ((grace, signal.SIGTERM), (2.0, signal.SIGKILL), (None, None)):
            wait_until(self.all_ended, seconds)
            for rank, process in self._processes.items():
                if signum is not None and rank not in self._statuses:
                    _signal_group(process.pid, signum)


def wait_until(condition: Callable[[], bool], seconds: float | None) -> bool:
    """Whether it came true in that time; None: waits for it."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _has_ended(pid: int) -> bool:
    """Without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _signal_group(leader: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signum)


def _die_with(parent: int) -> None:
    """Runs in the new process, before the command."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    # The job never sees these (see submit), and that is inherited.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGHUP))
