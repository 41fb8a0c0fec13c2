"""What a person is told when srun or Slurm ended an arm: which job, node and rank, its last words, the way out."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samebits.fingerprint.paths import Artifact
from samebits.launch import failure_messages
from samebits.launch.failure_messages import AGAIN
from samebits.launch.slurm_cli import View

_TASKS = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.+)$")
_STATUS = re.compile(r"Exited with exit code (\d+)")
_MEMORY = re.compile(r"oom.kill|out of memory|exceeded (job |step )?memory limit", re.IGNORECASE)
_NODE = re.compile(r"Node failure on (?P<node>\S+)|DUE TO NODE FAILURE", re.IGNORECASE)
_SIGNALS = {name: number for number in signal.valid_signals() if (name := signal.strsignal(number))}
_PEER_GONE = re.compile(r"closed by peer|reset by peer|DistBackendError|DistNetworkError|peer went away|Broken pipe")
_OUT_OF_MEMORY = "was out of memory"
_LOGS_READ = 256


@dataclass(frozen=True)
class Ended:
    """Tasks of one node that ended badly. status: exit status, or -N for signal N; None: out of memory."""

    node: str
    ranks: tuple[int, ...]
    status: int | None


def ended(said: Sequence[str]) -> list[Ended]:
    """What srun's lines say of ended tasks, in their order."""
    return [
        Ended(found["node"], tuple(_numbers(found["tasks"])), _status(found["how"]))
        for line in said
        if (found := _TASKS.match(line))
    ]


def of_rank(artifact: Artifact, said: Sequence[str], job: str) -> str:
    """The first one to blame of those that srun named. said: srun's lines, at least one of which names a task."""
    found, rank = _blamed(artifact, ended(said))
    place = f"{found.node} (job {job})"
    # slurmstepd speaks on the standard error of the step's tasks.
    heard = [*said, *failure_messages.last_lines(artifact.log(rank))]
    if found.status is None or (found.status == -signal.SIGKILL and any(map(_MEMORY.search, heard))):
        return of_memory(artifact, rank, place)
    return failure_messages.of_rank(artifact, rank, found.status, place)


def of_memory(artifact: Artifact, rank: int, place: str) -> str:
    log = artifact.log(rank)
    return "\n".join(
        [
            f"arm {artifact.folder.name}: rank {rank} on {place} {_OUT_OF_MEMORY}, Slurm killed it",
            *failure_messages.quoted(log, failure_messages.last_lines(log)),
            "Ask for more memory (`sbatch: {mem: ...}` in the cluster file or the recipe's cluster.slurm), or make the "
            f"recipe smaller, {AGAIN}.",
        ]
    )


def of_step(artifact: Artifact, said: Sequence[str], status: int, job: str) -> str:
    """srun failed and named no task: nothing was started, or a node went away."""
    node = next((found for line in said if (found := _NODE.search(line))), None)
    what = f"lost node {node['node'] or ''}".rstrip() if node else f"could not run its ranks (srun: status {status})"
    return "\n".join(
        [
            f"arm {artifact.folder.name}: job {job} {what}",
            *(f"    {line}" for line in said[-failure_messages.LOG_LINES :]),
            *([] if node else failure_messages.quoted(artifact.log(0), failure_messages.last_lines(artifact.log(0)))),
            f"Mend the cause (an engine that is not on the nodes, an option of srun, a mount), {AGAIN}."
            if not node
            else f"Slurm's `sinfo -R` says what is wrong with the node; {AGAIN.removeprefix('then ')}.",
        ]
    )


_BY_STATE: Mapping[str, tuple[str, str]] = {
    "CANCELLED": ("was cancelled", "Somebody, or a limit of the site, ended it (`sacct -j {job} --long` says more)"),
    "TIMEOUT": ("reached its time limit", "Raise launch.time_minutes, or find out in {logs} where the ranks hang"),
    "DEADLINE": ("missed its deadline", "Raise the deadline"),
    "NODE_FAIL": (
        "lost node {nodes}",
        "`sinfo -R` says what is wrong with it; set `requeue: true` in the cluster file",
    ),
    "BOOT_FAIL": ("lost node {nodes}, which did not start", "`sinfo -R` says what is wrong with it"),
    "PREEMPTED": ("was preempted", "Set `requeue: true` in the cluster file, or use a partition or QoS that is not"),
    "OUT_OF_MEMORY": ("was out of memory", "Ask for more (`sbatch: {{mem: ...}}` in the cluster file)"),
    "GONE": ("is no longer known to Slurm", "It was killed, or the cluster was started anew"),
}


def of_job(artifact: Artifact, job: str, log: Path, view: View) -> str:
    """The job has ended and its runner could not say how the arm ended."""
    how, advice = _BY_STATE.get(view.state, ("ended without saying how", "Its own log is {log}"))
    facts = {"job": job, "logs": artifact.log(0).parent, "log": log, "nodes": view.nodes or "it ran on"}
    where = f" on {view.nodes}" if view.nodes and "{nodes}" not in how else ""
    return "\n".join(
        [
            f"arm {artifact.folder.name}: job {job}{where} {how.format(**facts)} ({_words(view)})",
            *failure_messages.quoted(log, failure_messages.last_lines(log)),
            *_last_words(artifact),
            f"{advice.format(**facts)}, {AGAIN}.",
        ]
    )


def _words(view: View) -> str:
    reason = view.reason if view.reason not in ("", "None") and not view.reason.startswith(view.state) else ""
    return ", ".join(["state " + view.state, *([reason] if reason else [])])


def _last_words(artifact: Artifact) -> Iterator[str]:
    """Of rank 0, which speaks for the arm."""
    if lines := failure_messages.last_lines(artifact.log(0), 5):
        yield from failure_messages.quoted(artifact.log(0), lines)


def _blamed(artifact: Artifact, found: Sequence[Ended]) -> tuple[Ended, int]:
    """Tasks that ended alike, and the rank among them: a killed one first, since its peers fail for want of it; then
    one whose log does not complain of a lost peer."""
    for one in found:
        if one.status is None or one.status < 0:
            return one, one.ranks[0]
    for one in found:
        for rank in one.ranks[:_LOGS_READ]:
            if not _PEER_GONE.search(failure_messages.headline(failure_messages.last_lines(artifact.log(rank)))):
                return one, rank
    return found[0], found[0].ranks[0]


def _status(how: str) -> int | None:
    if found := _STATUS.search(how):
        status = int(found[1])
        # Some engines end so where what they run was killed.
        return 128 - status if status - 128 in signal.valid_signals() else status
    if "out of memory" in how.lower():
        return None
    # `Killed`, `Segmentation fault (core dumped)`
    return -_SIGNALS.get(how.partition(" (")[0].strip(), signal.SIGKILL)


def _numbers(text: str) -> Iterator[int]:
    """Of `0-2,5`."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)
