"""The state of an arm's job on disk: written before anything waits, read by whoever comes later.

`launch/job.json` says which start of the arm it is; `launch/lock` is held by the process that runs the ranks, for its
whole life, and holds its process id; `outcome.json` is what that process said at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from samebits.fingerprint.paths import Artifact, write_whole
from samebits.spec.plan import PlanError, decode

T = TypeVar("T")
_NOTICE_SECONDS = 2


class LaunchError(RuntimeError):
    """An arm that cannot be run: which one, why, the way out."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """launch: id of this start, also in every rank's header. key: `arms.key` at the time. restored: launch id of the
    arm whose checkpoint this one starts from. submitted: local time. job: the executor's id; None: about to be
    submitted. lead: of several arms in one job, the folder's name that holds the job's own files; None: this one.
    place: where it runs, in words. name: of the job, as its scheduler shows it."""

    launch: str
    key: str
    restored: str | None
    submitted: str
    job: str | None = None
    lead: str | None = None
    place: str = ""
    name: str = ""

    def write(self, artifact: Artifact) -> None:
        _write(_record_path(artifact), self)


@dataclass(frozen=True, kw_only=True)
class ArmOutcome:
    """How a start of an arm ended. message: for a person; empty where ok. ended: local time. seconds: from the first
    rank's start to the last one's end. nodes: of a cluster's job, in the order of ranks."""

    ok: bool
    message: str
    launch: str
    ended: str
    seconds: float
    nodes: tuple[str, ...] = ()

    def write(self, artifact: Artifact) -> None:
        _write(artifact.outcome, self)


def read_record(artifact: Artifact) -> JobRecord | None:
    return _read(_record_path(artifact), JobRecord)


def unreadable(artifact: Artifact) -> Path | None:
    """Return a record that is there and cannot be read: whether its job still runs is not known."""
    path = _record_path(artifact)
    return path if path.exists() and read_record(artifact) is None else None


def read_outcome(artifact: Artifact) -> ArmOutcome | None:
    return _read(artifact.outcome, ArmOutcome)


def resumed_as(launch: str, again: int) -> str:
    """Return the launch id of a job that Slurm has started `again` times since it was submitted as `launch`."""
    return f"{launch}.{again}" if again else launch


def job_part(launch: str) -> str:
    """Return the job's part of a launch id `JOB-ARM.RESTART`."""
    return launch.partition(".")[0].partition("-")[0]


def submitted_part(launch: str) -> str:
    """Return the launch id as it was submitted, without the number of restarts."""
    return launch.partition(".")[0]


def latest_outcome(artifact: Artifact) -> ArmOutcome | None:
    """Return the outcome of the start that the record names, and of no earlier one.

    A job that Slurm started again may have left the outcome of the start before.
    """
    outcome, record = read_outcome(artifact), read_record(artifact)
    return outcome if outcome and record and outcome.launch == record.launch else None


def finished(artifact: Artifact) -> bool:
    """Return whether the latest start has ended well."""
    outcome = latest_outcome(artifact)
    return outcome is not None and outcome.ok


def renew(artifact: Artifact, launch: str) -> bool:
    """Record that the job that runs this arm begins it again, as `launch`; False where the folder is another start's.

    An arm that starts from another one of the same job starts from that one's new checkpoint.
    """
    record = read_record(artifact)
    if record is None or submitted_part(record.launch) != submitted_part(launch):
        return False
    restored = record.restored
    if restored is not None and job_part(restored) == job_part(launch):
        restored = resumed_as(submitted_part(restored), int(launch.rpartition(".")[2]))
    dataclasses.replace(record, launch=launch, restored=restored).write(artifact)
    return True


def now() -> str:
    """Return the local time with its offset, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z")


def runner(artifact: Artifact) -> int | None:
    """Return the id of the live process that runs the ranks; None: there is none."""
    try:
        with _lock_path(artifact).open() as stream:
            # Shared, so that two who look do not take each other for the runner.
            if _locks(stream, fcntl.LOCK_SH):
                return None
            return int(stream.read() or 0)
    except OSError:
        return None


@contextlib.contextmanager
def running(artifact: Artifact, launch: str) -> Iterator[str]:
    """Mark this process as the one that runs the ranks, until it leaves or dies.

    Yields why it must not, or an empty text: another start of the arm has taken over, this one has already ended, or
    the folder is gone.
    """
    try:
        stream = _lock_path(artifact).open("a")
    except OSError:
        yield "its folder is gone"
        return
    with stream:
        yield _take(artifact, stream, launch)


def _take(artifact: Artifact, stream: IO[str], launch: str) -> str:
    with deciding(artifact):
        record = read_record(artifact)
        if record is None or record.launch != launch:
            return "was given up for another start"
        if artifact.outcome.exists():
            return "has ended before"
        if not _locks_soon(stream):
            return "an earlier start still runs its ranks, on a node that was taken for lost"
        if artifact.outcome.exists():
            # Who held the lock meanwhile has ended the arm.
            return "has ended before"
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        return ""


@contextlib.contextmanager
def deciding(
    artifact: Artifact,
    interrupted: Callable[[], bool] = lambda: False,
    notice: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold the lock under which somebody decides what becomes of an artifact; nobody holds it while ranks run.

    Its file lies beside the artifact's folder, which may be moved meanwhile. notice: hears of a long wait. Raises
    LaunchError where `interrupted` says so while it waits.
    """
    started, told = time.monotonic(), False
    with artifact.folder.with_name(f".{artifact.folder.name}.lock").open("a") as stream:
        while not _locks(stream, fcntl.LOCK_EX):
            if interrupted():
                raise LaunchError(f"{artifact.folder}: interrupted while another samebits starts this arm")
            if notice and not told and time.monotonic() - started > _NOTICE_SECONDS:
                notice(f"{artifact.folder}: waiting for another samebits that starts this arm")
                told = True
            time.sleep(0.05)
        yield


def _locks(stream: IO[str], mode: int) -> bool:
    try:
        fcntl.flock(stream.fileno(), mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locks_soon(stream: IO[str]) -> bool:
    """Try for two seconds: somebody may be looking at the lock at this moment; nobody but a runner keeps it."""
    deadline = time.monotonic() + 2
    while not _locks(stream, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _record_path(artifact: Artifact) -> Path:
    return artifact.launch / "job.json"


def _lock_path(artifact: Artifact) -> Path:
    return artifact.launch / "lock"


def _write(path: Path, value: JobRecord | ArmOutcome) -> None:
    write_whole(path, (json.dumps(dataclasses.asdict(value), indent=1) + "\n").encode())


def _read(path: Path, kind: type[T]) -> T | None:
    """Return the value in a file; None where it is not there or not whole."""
    try:
        return decode(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, PlanError):
        return None


def missing(artifact: Artifact, world: int) -> list[int]:
    """Return the ranks without a fingerprint file; one look into the folder, however many ranks."""
    try:
        names = {entry.name for entry in artifact.folder.iterdir()}
    except OSError:
        names = set()
    return [rank for rank in range(world) if artifact.fingerprint(rank).name not in names]


def clear(artifact: Artifact) -> None:
    """Remove what a start left that computed nothing yet, but keep its logs."""
    for path in (*artifact.folder.glob("rank-*.fp"), artifact.progress):
        path.unlink(missing_ok=True)
    shutil.rmtree(artifact.checkpoints, ignore_errors=True)


def set_aside(artifact: Artifact) -> Path | None:
    """Move what a start left to `superseded/ARM`, beside `arms`, where the latest one of each arm is kept.

    The plan and the `launch` folder stay. Returns the new folder; None where there was nothing.
    """
    if not (left := _left(artifact)):
        return None
    aside = superseded(artifact)
    aside.mkdir(parents=True)
    for path in left:
        path.rename(aside / path.name)
    shutil.copyfile(artifact.plan, aside / artifact.plan.name)
    return aside


def superseded(artifact: Artifact) -> Path:
    """Return the folder to which an artifact that must make way goes; what was there is removed."""
    home, name = artifact.folder.parent, artifact.folder.name
    aside = home.parent / "superseded" / (name if home.name == "arms" else f"{home.name}-{name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    return aside


def _left(artifact: Artifact) -> list[Path]:
    return [path for path in artifact.folder.iterdir() if path not in (artifact.plan, artifact.launch)]
