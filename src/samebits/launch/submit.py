"""Submitting the job of an arm, finding it again, cancelling it. The only module that knows submitit.

A job outlives whoever submitted it: a restarted pipeline finds it by what lies in the artifact's `launch` folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import submitit

from samebits.artifact.folder import Artifact
from samebits.launch import job as job_state
from samebits.launch.job import JobRecord
from samebits.launch.local import run_ranks

_SPARE_MINUTES = 5
"""The job ends its ranks when their time is over and says so; only then would submitit end the job."""
_PATIENCE_SECONDS = 10


class Job(Protocol):
    """The live or ended job of an arm."""

    @property
    def id(self) -> str: ...

    @property
    def log(self) -> Path:
        """What the job itself, not its ranks, wrote."""

    def running(self) -> bool: ...

    def cancel(self) -> None:
        """Returns when nothing of it is left."""


class Executor(Protocol):
    """Where jobs run."""

    def submit(self, artifact: Artifact, minutes: int, arguments: Sequence[Any]) -> Job:
        """Submits `run_ranks(*arguments)`. minutes: time limit of the ranks."""

    def attach(self, artifact: Artifact, record: JobRecord) -> Job | None:
        """The job of an earlier pipeline, if it is still alive."""


class LocalExecutor:
    """Jobs on this machine, through submitit's local executor."""

    def submit(self, artifact: Artifact, minutes: int, arguments: Sequence[Any]) -> LocalJob:
        executor = submitit.LocalExecutor(artifact.launch)
        executor.update_parameters(timeout_min=minutes + _SPARE_MINUTES)
        with _ignored(signal.SIGINT, signal.SIGHUP), _silent(artifact.launch / "controller.log"):
            submitted = executor.submit(run_ranks, *arguments)
        return LocalJob(artifact, str(submitted.job_id), submitted)

    def attach(self, artifact: Artifact, record: JobRecord) -> LocalJob | None:
        if record.job is None:
            return None
        job = LocalJob(artifact, record.job)
        return job if job.running() else None


class LocalJob:
    """`id` is the process id of submitit's controller, which starts the runner of the ranks.

    submitted: submitit's own handle, in the process that submitted the job.
    """

    def __init__(self, artifact: Artifact, job_id: str, submitted: Any = None) -> None:
        self._artifact = artifact
        self._submitted = submitted
        self._id = job_id

    @property
    def id(self) -> str:
        return self._id

    @property
    def log(self) -> Path:
        return self._artifact.launch / f"{self.id}_0_log.err"

    def running(self) -> bool:
        return self._controlled() or job_state.runner(self._artifact) is not None

    def cancel(self) -> None:
        """SIGTERM until its ranks are gone, SIGKILL where that takes long."""
        started = time.monotonic()
        while self.running():
            signum = signal.SIGTERM if time.monotonic() - started < _PATIENCE_SECONDS else signal.SIGKILL
            for pid in (job_state.runner(self._artifact), int(self.id) if self._controlled() else None):
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signum)
            time.sleep(0.2)

    def _controlled(self) -> bool:
        """Whether the controller lives; a process id alone may by now be somebody else's."""
        if self._submitted is not None:
            return not self._submitted.done()
        try:
            words = Path(f"/proc/{self.id}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"submitit.local._local" in words and os.fsencode(self._artifact.launch) in words


@contextlib.contextmanager
def _ignored(*signals: signal.Signals) -> Iterator[None]:
    """What is started inside ignores them for good: the job is to outlive Ctrl-C in, and the end of, a terminal."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _silent(log: Path) -> Iterator[None]:
    """What is started inside reads nothing and writes to the log: it must not hold anybody's terminal or pipe open."""
    kept = [os.dup(descriptor) for descriptor in range(3)]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with Path(os.devnull).open("rb") as nothing, log.open("ab") as stream:
            for descriptor, source in enumerate((nothing, stream, stream)):
                os.dup2(source.fileno(), descriptor)
        yield
    finally:
        for descriptor, copy in enumerate(kept):
            os.dup2(copy, descriptor)
            os.close(copy)
