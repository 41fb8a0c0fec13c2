"""Submit jobs through submitit; the only module that knows it.

An executor submits jobs, and finds a live one again: a job outlives whoever submitted it, and a restarted pipeline
finds it by what lies in the artifact's `launch` folder.

Private parts of submitit that are used here, for want of public ones:
- `SlurmExecutor._make_submission_file_text` and `_submitit_command_str`, to show the script without submitting it;
- `SlurmExecutor._get_job_id_from_submission_command`, overridden: it takes the first words `job N` of whatever sbatch
  prints for the id, a greeting's too;
- the name of the module `submitit.local._local`, to recognize a local job's controller among the processes of this
  machine, and the names of a job's files, to find them without a handle of the job.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, LaunchError
from samebits.spec.plan import Plan

SPARE_MINUTES = 5
"""A job ends its ranks when their time is over and says so; only so much later would its scheduler."""
_STEERING = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of one arm. launch: its id, also in every rank's header (see `job_state`)."""

    plan: Plan
    artifact: Artifact
    launch: str


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job. starts: run one after the other; all of one recipe. inherited: environment that the ranks take over from
    whoever starts them. command: starts one rank, the artifact's folder is appended; None: the executor's own. on:
    nodes to run on; off: nodes to avoid; empty: any."""

    starts: tuple[Start, ...]
    inherited: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


class Job(Protocol):
    """The live or ended job of an arm."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str:
        """Its name as its scheduler shows it; empty where there is none."""

    @property
    def way_to_end(self) -> str:
        """A command with which a person ends it."""

    @property
    def pause(self) -> float:
        """Seconds between two looks of whoever waits."""

    @property
    def lag(self) -> float:
        """Seconds in which an outcome may still appear once the job has ended."""

    def running(self) -> bool: ...

    def waits(self, seconds: float) -> str:
        """Say why nothing of it runs yet; empty where something does. seconds: waited so far."""

    def cancel(self) -> None:
        """Return when nothing of it is left."""

    def last_words(self) -> str:
        """Say what became of a job that has ended, where the arm's outcome was not written."""


class Executor(Protocol):
    """Where jobs run."""

    def check(self, plan: Plan, artifact: Artifact) -> None:
        """Raise LaunchError, ClusterError or ImageError for an arm that cannot run here; before it is submitted."""

    def place(self, plan: Plan) -> str:
        """Say where it runs the plan's arm; other words are another place. Raises ClusterError."""

    def submit(self, request: JobRequest, echo: Echo) -> Job:
        """Return a job that has an id. Raises LaunchError where it is refused."""

    def attach(self, artifact: Artifact, record: JobRecord) -> Job | None:
        """Return the job of an earlier pipeline, if it is still alive."""


class BatchError(RuntimeError):
    """sbatch did not give a job's id; the message is what it said, on one line. A job may be there all the same."""


class _Slurm(submitit.SlurmExecutor):  # type: ignore[misc]
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


def submit_local(folder: Path, minutes: int, function: Callable[..., None], *arguments: Any) -> Any:
    """Start a process that calls the function and outlives this one; return submitit's handle.

    folder: for the job's own files. minutes: after which it is ended.
    """
    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(timeout_min=minutes)
    with _blocked(signal.SIGINT, signal.SIGHUP), _silent(folder / "controller.log"):
        return executor.submit(function, *arguments)


def is_local_controller(job: str, folder: Path) -> bool:
    """Return whether the process `job` controls the local job of this folder; its id may by now be somebody else's."""
    try:
        words = Path(f"/proc/{job}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"submitit.local._local" in words and os.fsencode(folder) in words


def job_log(folder: Path, job: str, kind: str) -> Path:
    """Return the log of a job's own process. kind: `out` or `err`."""
    return folder / f"{job}_0_log.{kind}"


def batch_script(folder: Path, parameters: Mapping[str, Any]) -> str:
    """Return the text that sbatch is given; needs no Slurm. folder: for the job's own files."""
    executor = _slurm(folder, parameters)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def submit_batch(folder: Path, parameters: Mapping[str, Any], function: Callable[..., None], *arguments: Any) -> str:
    """Submit a job whose batch step calls the function; return its id.

    Raises LaunchError where there is no Slurm, and BatchError.
    """
    for command in ("sbatch", "srun"):
        if shutil.which(command) is None:
            raise LaunchError(f"`{command}` is not on PATH; start on a host that can submit to Slurm")
    executor = _slurm(folder, parameters)
    try:
        with _blocked(signal.SIGINT, signal.SIGHUP), _without_slurm_variables(), _silent(folder / "controller.log"):
            return str(executor.submit(function, *arguments).job_id)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines if line.startswith("sbatch: ")]
        raise BatchError("; ".join(said) or (lines[-1] if lines else "nothing")) from error


def complete_batch(folder: Path, job: str) -> None:
    """Give a job what it is to run, where whoever submitted it died before that had the job's name."""
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


@contextlib.contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals for good in what is started inside: the job is to outlive Ctrl-C, and the end of a terminal.

    This process sees them when it leaves.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_slurm_variables() -> Iterator[None]:
    """Hide variables that change what sbatch and srun do: those that somebody's shell holds, or a job around us."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_STEERING)}
    if "SLURM_CONF" in taken:
        os.environ["SLURM_CONF"] = taken["SLURM_CONF"]
    try:
        yield
    finally:
        os.environ.update(taken)


@contextlib.contextmanager
def _silent(log: Path) -> Iterator[None]:
    """Let what is started inside read nothing and write to the log: it must hold nobody's terminal or pipe open."""
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
