"""Slurm's commands: what has become of a job, finding one by its name, cancelling it."""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass

ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT", "GONE"),
    )
)
"""States from which a job does not come back; GONE is ours: Slurm no longer knows it."""

HOPELESS = frozenset(
    (
        *("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "AccountNotAllowed"),
        *("InvalidAccount", "InvalidQOS", "QOSNotAllowed"),
    )
)
"""Reasons for which a job waits for ever."""

_ANSWER_SECONDS = 60
_STATE = re.compile("[A-Z_]+")
_UNKNOWN_JOB = re.compile("Invalid job id", re.IGNORECASE)


class SlurmError(RuntimeError):
    """Slurm refused, or does not answer; carries its own words."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A job as Slurm sees it. state: in Slurm's words. name: empty where it is not known. reason: why it waits or was
    ended. nodes: a host list."""

    state: str
    name: str = ""
    reason: str = ""
    nodes: str = ""

    @property
    def live(self) -> bool:
        return self.state not in ENDED


def view(job: str) -> View:
    """Return the job as Slurm sees it now.

    Raises SlurmError where the controller cannot be asked: then nothing is known.
    """
    try:
        said = ask("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r|%N|%j")
    except SlurmError as error:
        if not _UNKNOWN_JOB.search(str(error)):
            raise
        said = ""
    if not said.strip():
        return _remembered(job)
    for line in said.splitlines():
        parts = line.split("|", 3)
        if len(parts) == 4 and _STATE.fullmatch(parts[0]):
            state, reason, nodes, name = parts
            return View(state=state, name=name, reason=reason, nodes=nodes)
    raise SlurmError(f"`squeue` says of job {job} what is no state of a job: {said.splitlines()[0][:80]!r}")


def _remembered(job: str) -> View:
    """Return the view of a job that the controller has forgotten, from accounting where there is any."""
    if not accounting():
        return View(state="GONE")
    try:
        said = ask(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList,JobName"
        )
    except SlurmError:
        return View(state="GONE")
    if not (lines := said.splitlines()):
        return View(state="GONE")
    state, nodes, name = [*lines[-1].split("|", 2), "", ""][:3]
    # `CANCELLED by 1000`. A job that accounting still takes for running, and the controller does not know, is gone.
    word = state.partition(" ")[0]
    return View(state=word if word in ENDED else "GONE", name=name, reason=state, nodes=nodes)


@functools.cache
def accounting() -> bool:
    """Return whether the cluster keeps accounts; `sacct` fails, and some versions hang, where it does not."""
    kind = re.search(r"AccountingStorageType\s*=\s*(\S+)", ask("scontrol", "show", "config"))
    return kind is not None and kind.group(1) not in ("(null)", "accounting_storage/none")


def find(name: str) -> str | None:
    """Return the id of the live job of that name, whoever's. Raises SlurmError where the controller cannot be asked."""
    said = ask("squeue", "--noheader", f"--name={name}", "--format=%i").split()
    return said[0] if said and said[0].isdigit() else None


def cancel(job: str) -> None:
    """Ask Slurm to end a job; whether it has ended is seen by `view`. Raises SlurmError."""
    try:
        ask("scancel", job)
    except SlurmError as error:
        if not _UNKNOWN_JOB.search(str(error)):
            raise


def names(hosts: str) -> tuple[str, ...]:
    """Return the nodes of a host list such as `n[1-3,7]`, in the order of ranks. Raises SlurmError."""
    return tuple(ask("scontrol", "show", "hostnames", hosts).split()) if hosts else ()


def ask(*command: str) -> str:
    """Return the standard output of one of Slurm's commands. Raises SlurmError with what it said instead."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as error:
        raise SlurmError(f"`{command[0]}` is not on PATH; start on a host that can submit to Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"`{' '.join(command)}` gave no answer in {_ANSWER_SECONDS} s") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise SlurmError(f"`{command[0]}` says: {words or f'status {done.returncode}'}")
    return done.stdout
