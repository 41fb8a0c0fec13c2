"""Submitting jobs, finding them again. The only module that knows submitit.

A job outlives whoever submitted it: a restarted pipeline finds it by what lies in the artifact's `launch` folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from samebits.fingerprint.paths import Artifact
from samebits.launch import code
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError
from samebits.launch.local import LocalJob
from samebits.launch.start import SPARE_MINUTES, Request
from samebits.launch.supervise import run_arms
from samebits.spec.plan import Plan
from samebits.spec.sections import CommandRecipe

_STEERING = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_")


class Job(Protocol):
    """The live or ended job of an arm."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str:
        """As its scheduler shows it; empty where there is none."""

    @property
    def way_to_end(self) -> str:
        """A command for a person."""

    @property
    def pause(self) -> float:
        """Seconds between two looks of whoever waits."""

    def running(self) -> bool: ...

    def waits(self, seconds: float) -> str:
        """Why nothing of it runs yet; empty where something does. seconds: waited so far."""

    def cancel(self) -> None:
        """Returns when nothing of it is left."""

    @property
    def lag(self) -> float:
        """Seconds in which an outcome may still appear once it has ended."""

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
        starts, home = request.starts, request.starts[0].artifact
        executor = submitit.LocalExecutor(home.launch)
        minutes = len(starts) * starts[0].plan.recipe.launch.time_minutes
        executor.update_parameters(timeout_min=minutes + SPARE_MINUTES)
        launched = [(str(start.artifact.folder), start.launch) for start in starts]
        for start in starts if isinstance(starts[0].plan.recipe, CommandRecipe) else ():
            # For an interpreter that has no samebits.
            code.freeze(start.artifact.launch / "code")
        arguments = (launched, dict(request.inherited), request.command)
        with _blocked(signal.SIGINT, signal.SIGHUP), _silent(home.launch / "controller.log"):
            submitted = executor.submit(run_arms, *arguments)
        return LocalJob([start.artifact for start in starts], str(submitted.job_id), submitted)

    def attach(self, artifact: Artifact, record: JobRecord) -> LocalJob | None:
        if record.job is None:
            return None
        home = Artifact(artifact.folder.with_name(record.lead or artifact.folder.name))
        job = LocalJob([home, artifact], record.job)
        return job if job.running() else None


class BatchError(RuntimeError):
    """sbatch did not give a job's id; the message is what it said, on one line. A job may be there all the same."""


class _Slurm(submitit.SlurmExecutor):  # type: ignore[misc]
    """submitit takes the first word `job N` for the id, a greeting's too."""

    @classmethod
    def affinity(cls) -> int:
        """Allow a script to be written where there is no Slurm: submitit asks for srun before it writes anything."""
        return 2

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        text = string if isinstance(string, str) else string.decode(errors="replace")
        found = re.search(r"^Submitted batch job (\d+)", text, re.MULTILINE)
        if found is None:
            raise FailedSubmissionError(f"sbatch: {text.strip() or 'nothing'}")
        return found[1]


def batch_script(folder: Path, parameters: Mapping[str, Any]) -> str:
    """The text that sbatch is given; needs no Slurm. folder: of the job's own files."""
    executor = _slurm(folder, parameters)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def submit_batch(folder: Path, parameters: Mapping[str, Any], function: Callable[..., None], *arguments: Any) -> str:
    """Id of a job whose batch step calls the function. Raises LaunchError where there is no Slurm, and BatchError."""
    for command in ("sbatch", "srun"):
        if shutil.which(command) is None:
            raise LaunchError(f"`{command}` is not on PATH; start on a host that can submit to Slurm")
    executor = _slurm(folder, parameters)
    try:
        with _blocked(signal.SIGINT, signal.SIGHUP), _plain(), _silent(folder / "controller.log"):
            return str(executor.submit(function, *arguments).job_id)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise BatchError(_words(str(error))) from error


def complete_batch(folder: Path, job: str) -> None:
    """Gives a job what it is to run, where whoever submitted it died before that had the job's name."""
    wanted = folder / f"{job}_submitted.pkl"
    waiting = [path for path in folder.glob("*.pkl") if not path.name.endswith(("_submitted.pkl", "_result.pkl"))]
    if not wanted.exists() and len(waiting) == 1:
        waiting[0].rename(wanted)


def _slurm(folder: Path, parameters: Mapping[str, Any]) -> Any:
    # exec: Slurm's signals to the batch step reach its first process alone, and a shell would die of them.
    executor = _Slurm(folder, python=f"exec {shlex.quote(sys.executable)}")
    # wckey: submitit's own for accounting, which some sites refuse.
    executor.update_parameters(wckey=None, **{name: value for name, value in parameters.items() if value is not None})
    return executor


def _words(text: str) -> str:
    """What sbatch says, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(ours) or (lines[-1] if lines else "nothing")


@contextlib.contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """What is started inside never sees them, for good: the job is to outlive Ctrl-C in, and the end of, a terminal.
    This process sees them when it leaves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Without variables that change what sbatch and srun do: those that somebody's shell holds, or a job around us."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_STEERING)}
    if "SLURM_CONF" in taken:
        os.environ["SLURM_CONF"] = taken["SLURM_CONF"]
    try:
        yield
    finally:
        os.environ.update(taken)


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
