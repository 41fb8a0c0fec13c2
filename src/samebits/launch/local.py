"""Arms as jobs of this machine: a process that outlives whoever started it, and supervises the ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages, job_state, rank_command
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError
from samebits.launch.submit import SPARE_MINUTES, JobRequest, is_local_controller, job_log, submit_local
from samebits.launch.supervise import run_here
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe

_PATIENCE_SECONDS = 10


class LocalExecutor:
    """Jobs on this machine; an implementation of `submit.Executor`."""

    def check(self, plan: Plan, artifact: Artifact) -> None:
        if container := plan.recipe.container:
            raise LaunchError(
                f"{plan.recipe.name}: container.image is {container.image}, which is entered on a cluster only; give "
                "a cluster file (`--cluster profiles/slurm/cluster.yaml`), or leave the section container out"
            )

    def place(self, plan: Plan) -> str:
        return "this machine"

    def submit(self, request: JobRequest, echo: Echo) -> LocalJob:
        starts, home = request.starts, request.starts[0].artifact
        recipe = starts[0].plan.recipe
        for start in starts if isinstance(recipe, CommandRecipe) else ():
            # For an interpreter that has no samebits.
            rank_command.copy_sources(start.artifact.launch / "code")
        minutes = len(starts) * recipe.launch.time_minutes + SPARE_MINUTES
        launched = [(str(start.artifact.folder), start.launch) for start in starts]
        handle = submit_local(home.launch, minutes, run_here, launched, dict(request.inherited), request.command)
        return LocalJob([start.artifact for start in starts], str(handle.job_id), handle)

    def attach(self, artifact: Artifact, record: JobRecord) -> LocalJob | None:
        if record.job is None:
            return None
        home = Artifact(artifact.folder.with_name(record.lead or artifact.folder.name))
        job = LocalJob([home, artifact], record.job)
        return job if job.running() else None


class LocalJob:
    """A job of this machine; an implementation of `submit.Job`.

    artifacts: of its arms; the first one holds the job's own files. id: process id of submitit's controller, which
    starts the supervisor of the ranks. handle: submitit's own, in the process that submitted the job.
    """

    name = ""
    pause = 0.1
    lag = 0.0

    def __init__(self, artifacts: Sequence[Artifact], job_id: str, handle: Any = None) -> None:
        self.id = job_id
        self.way_to_end = f"kill {job_id}"
        self._artifacts = artifacts
        self._handle = handle

    def waits(self, seconds: float) -> str:
        """Return an empty text: it starts at once."""
        return ""

    def running(self) -> bool:
        return self._controlled() or bool(self._runners())

    def cancel(self) -> None:
        """Send SIGTERM until its ranks are gone, SIGKILL where that takes long."""
        started = time.monotonic()
        while self.running():
            signum = signal.SIGTERM if time.monotonic() - started < _PATIENCE_SECONDS else signal.SIGKILL
            for pid in (*self._runners(), *([int(self.id)] if self._controlled() else [])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            time.sleep(0.2)

    def last_words(self) -> str:
        home = self._artifacts[0]
        left = next((artifact for artifact in self._artifacts if not artifact.outcome.exists()), home)
        return failure_messages.of_local_job(left, self.id, job_log(home.launch, self.id, "err"))

    def _runners(self) -> set[int]:
        return {pid for artifact in self._artifacts if (pid := job_state.runner(artifact))}

    def _controlled(self) -> bool:
        if self._handle is not None:
            return not self._handle.done()
        return is_local_controller(self.id, self._artifacts[0].launch)
