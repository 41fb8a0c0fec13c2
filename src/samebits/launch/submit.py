"""Submitting jobs, finding them again. The only module that knows submitit.

A job outlives whoever submitted it: a restarted pipeline finds it by what lies in the artifact's `launch` folder.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from samebits.artifact.folder import Artifact
from samebits.launch import allocation, seen, slurm
from samebits.launch.batch import run_arms
from samebits.launch.cluster import ClusterFile
from samebits.launch.code import freeze
from samebits.launch.echo import Echo
from samebits.launch.job import JobRecord, LaunchError
from samebits.launch.local import RANK_COMMAND, run_ranks
from samebits.launch.local_job import LocalJob
from samebits.launch.slurm import SlurmError
from samebits.launch.slurm_job import SlurmJob
from samebits.launch.start import Request
from samebits.plan import Plan

_SPARE_MINUTES = 5
"""The job ends its ranks when their time is over and says so; only then would submitit end the job."""


class Job(Protocol):
    """The live or ended job of an arm."""

    @property
    def id(self) -> str: ...

    @property
    def way_to_end(self) -> str:
        """A command for a person."""

    def running(self) -> bool: ...

    def waits(self, seconds: float) -> str:
        """Why nothing of it runs yet; empty where something does. seconds: waited so far."""

    def cancel(self) -> None:
        """Returns when nothing of it is left."""

    def last_words(self) -> str:
        """For a person, where the job has ended and the arm's outcome was not written."""


class Executor(Protocol):
    """Where jobs run."""

    def check(self, plan: Plan, artifact: Artifact) -> None:
        """Raises LaunchError, ClusterError or ImageError for an arm that cannot run here; before it is submitted."""

    def place(self, plan: Plan) -> str:
        """Where it runs the plan's arm, in words; other words are another place. Raises ClusterError."""

    def submit(self, request: Request, echo: Echo) -> Job:
        """The job has an id when this returns. Raises LaunchError where it is refused."""

    def attach(self, artifact: Artifact, record: JobRecord) -> Job | None:
        """The job of an earlier pipeline, if it is still alive."""


class LocalExecutor:
    """Jobs on this machine, through submitit's local executor."""

    def check(self, plan: Plan, artifact: Artifact) -> None:
        if container := plan.recipe.container:
            raise LaunchError(
                f"{plan.recipe.name}: container.image is {container.image}, which is entered on a cluster only; give "
                "a cluster file (`--cluster profiles/slurm/cluster.yaml`), or leave the section container out"
            )

    def place(self, plan: Plan) -> str:
        return "this machine"

    def submit(self, request: Request, echo: Echo) -> LocalJob:
        (start,) = request.starts
        executor = submitit.LocalExecutor(start.artifact.launch)
        executor.update_parameters(timeout_min=start.plan.recipe.launch.time_minutes + _SPARE_MINUTES)
        command = request.command or RANK_COMMAND
        arguments = (str(start.artifact.folder), start.launch, dict(request.inherited), command)
        with _ignored(signal.SIGINT, signal.SIGHUP), _silent(start.artifact.launch / "controller.log"):
            submitted = executor.submit(run_ranks, *arguments)
        return LocalJob(start.artifact, str(submitted.job_id), submitted)

    def attach(self, artifact: Artifact, record: JobRecord) -> LocalJob | None:
        if record.job is None:
            return None
        job = LocalJob(artifact, record.job)
        return job if job.running() else None


class SlurmExecutor:
    """Jobs of a cluster, through submitit's Slurm executor: the batch step of each runs `run_arms`."""

    def __init__(self, facts: ClusterFile) -> None:
        self._facts = facts

    def check(self, plan: Plan, artifact: Artifact) -> None:
        results = artifact.folder.parent.parent
        image = allocation.stage(self._facts, plan, results).image
        # Files that lie on the nodes alone are checked there alone.
        here = image is not None and image.file is not None and image.file.exists()
        if image is not None and (here or self._facts.verify_image == "first-node"):
            seen.check(image, results / ".images.json")

    def place(self, plan: Plan) -> str:
        nodes, ranks = self._facts.layout(plan.recipe)
        image = f", in the image by {self._facts.engine}" if plan.recipe.container else ""
        return f"{nodes} node{'s' if nodes > 1 else ''} of a cluster, {ranks} ranks each{image}"

    def submit(self, request: Request, echo: Echo) -> SlurmJob:
        for start in request.starts:
            freeze(start.artifact.launch / "code")
        home = request.starts[0].artifact
        return SlurmJob(home, home, self._submit_anywhere(request, echo), self._facts.poll_seconds)

    def attach(self, artifact: Artifact, record: JobRecord) -> SlurmJob | None:
        """Raises LaunchError where Slurm cannot be asked: whether there is a job is not known then."""
        home = Artifact(artifact.folder.with_name(record.lead or artifact.folder.name))
        try:
            job = record.job or slurm.find(allocation.job_name(home, record.launch))
            if job is None or not slurm.view(job).live:
                return None
        except SlurmError as error:
            raise LaunchError(
                f"arm {artifact.folder.name}: {error}; whether its job of {record.submitted} still runs is not known; "
                "start again when Slurm answers"
            ) from error
        return SlurmJob(artifact, home, job, self._facts.poll_seconds)

    def script(self, request: Request) -> str:
        """The text that sbatch is given."""
        executor = self._executor(request)
        return str(executor._make_submission_file_text(executor._submitit_command_str, ""))

    def _submit_anywhere(self, request: Request, echo: Echo) -> str:
        """Where the cluster has no nodes but those to avoid, on any: the judge then says what that cannot show."""
        try:
            return self._submit(request)
        except LaunchError as refused:
            if not request.off:
                raise
            job = self._submit_or(replace(request, off=()), refused)
            echo.line(f"arm {request.starts[0].plan.arm}: {refused.__cause__}")
            echo.line(
                f"arm {request.starts[0].plan.arm}: cannot avoid {', '.join(request.off)}, the reference's nodes, and "
                "runs on any: that bits are equal across allocations will not be claimed"
            )
            return job

    def _submit_or(self, request: Request, refused: LaunchError) -> str:
        try:
            return self._submit(request)
        except LaunchError:
            raise refused from None

    def _submit(self, request: Request) -> str:
        folder = request.starts[0].artifact.folder.parent.parent
        how = allocation.stage(self._facts, request.starts[0].plan, folder, request)
        starts = [(str(start.artifact.folder), start.launch) for start in request.starts]
        executor = self._executor(request)
        try:
            log = request.starts[0].artifact.launch / "controller.log"
            with _ignored(signal.SIGINT, signal.SIGHUP), _silent(log):
                return str(executor.submit(run_arms, starts, how).job_id)
        except (FailedJobError, FailedSubmissionError, FileNotFoundError) as error:
            said = _words(str(error))
            raise LaunchError(
                f"arm {request.starts[0].plan.arm}: sbatch refused the job: {said}; {allocation.advice(said)}"
            ) from error

    def _executor(self, request: Request) -> Any:
        try:
            # exec: Slurm's signals to the batch step reach its first process alone, and a shell would die of them.
            python = f"exec {shlex.quote(sys.executable)}"
            executor = submitit.SlurmExecutor(request.starts[0].artifact.launch, python=python)
        except RuntimeError as error:
            raise LaunchError(f"`srun` is not on PATH; start on a host that can submit to Slurm ({error})") from error
        given = allocation.parameters(self._facts, request)
        # submitit's own key for accounting, which some sites refuse.
        executor.update_parameters(wckey=None, **{name: value for name, value in given.items() if value is not None})
        return executor


def _words(text: str) -> str:
    """What sbatch says, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(ours) or (lines[-1] if lines else "nothing")


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
