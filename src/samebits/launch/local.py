"""The live or ended job of an arm on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages, job_state

_PATIENCE_SECONDS = 10


class LocalJob:
    """`id` is the process id of submitit's controller, which starts the runner of the ranks.

    artifacts: of its arms; the first one holds the job's own files. submitted: submitit's own handle, in the process
    that submitted the job.
    """

    def __init__(self, artifacts: Sequence[Artifact], job_id: str, submitted: Any = None) -> None:
        self._artifacts = artifacts
        self._submitted = submitted
        self._id = job_id

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return ""

    @property
    def way_to_end(self) -> str:
        return f"kill {self.id}"

    @property
    def pause(self) -> float:
        return 0.1

    def waits(self, seconds: float) -> str:
        """Never: it starts at once."""
        return ""

    @property
    def lag(self) -> float:
        return 0.0

    def last_words(self) -> str:
        home = self._artifacts[0]
        left = next((artifact for artifact in self._artifacts if not artifact.outcome.exists()), home)
        return failure_messages.of_job(left, self.id, home.launch / f"{self.id}_0_log.err")

    def running(self) -> bool:
        return self._controlled() or bool(self._runners())

    def cancel(self) -> None:
        """SIGTERM until its ranks are gone, SIGKILL where that takes long."""
        started = time.monotonic()
        while self.running():
            signum = signal.SIGTERM if time.monotonic() - started < _PATIENCE_SECONDS else signal.SIGKILL
            for pid in (*self._runners(), *([int(self.id)] if self._controlled() else [])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            time.sleep(0.2)

    def _runners(self) -> set[int]:
        return {pid for artifact in self._artifacts if (pid := job_state.runner(artifact))}

    def _controlled(self) -> bool:
        """Whether the controller lives; a process id alone may by now be somebody else's."""
        if self._submitted is not None:
            return not self._submitted.done()
        try:
            words = Path(f"/proc/{self.id}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"submitit.local._local" in words and os.fsencode(self._artifacts[0].launch) in words
