"""Messages for a person about an arm that did not end well: which rank, how, its last words, and what to do.

Sources are the ranks' logs, with the stacks that faulthandler writes into them; the words of srun; and Slurm's states.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samebits.fingerprint import reader
from samebits.fingerprint.format import ranks_text
from samebits.fingerprint.paths import Artifact
from samebits.launch.slurm_cli import View

AGAIN = "then start again: the arm begins from nothing, finished arms stay"
LOG_LINES = 15
_PLACES = 8
_LOGS_READ = 256
_LITTLE = 1 << 20
_LOG_END = 16_384
_STACK_END = 262_144

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_WAITING = re.compile(
    r"torch/distributed/|torch/autograd/graph\.py|megatron/core/(distributed|tensor_parallel|pipeline_parallel)/"
)
"""Innermost frames of a rank that waits for others; some wait inside a call that has no frame of its own."""
_TASKS = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.+)$")
_STATUS = re.compile(r"Exited with exit code (\d+)")
_MEMORY = re.compile(r"oom.kill|out of memory|exceeded (job |step )?memory limit", re.IGNORECASE)
_NODE = re.compile(r"Node failure on (?P<node>\S+)|DUE TO NODE FAILURE", re.IGNORECASE)
_SIGNALS = {name: number for number in signal.valid_signals() if (name := signal.strsignal(number))}
_PEER_GONE = re.compile(r"closed by peer|reset by peer|DistBackendError|DistNetworkError|peer went away|Broken pipe")

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
"""For each state in which a job ends: how it ended, and what to do."""


@dataclass(frozen=True)
class EndedTasks:
    """Tasks of one node that ended badly. status: exit status, or -N for signal N; None: out of memory."""

    node: str
    ranks: tuple[int, ...]
    status: int | None


@dataclass(frozen=True)
class Stack:
    """The main thread of a rank at one moment.

    frames: innermost first, such as `loop.py:88 in run`. waits: it is inside a collective, or cannot be told from one.
    """

    frames: tuple[str, ...]
    waits: bool


def of_rank(artifact: Artifact, rank: int, status: int, host: str) -> str:
    """Describe a rank that failed. status: exit status other than 0; -N: killed by signal N."""
    log = artifact.log(rank)
    lines = last_lines(log)
    try:
        killed = f"{-status} ({signal.Signals(-status).name})"
    except ValueError:
        killed = str(-status)
    how = f"was killed by signal {killed}" if status < 0 else f"ended with status {status}"
    said = f": {words}" if status > 0 and (words := headline(lines)) else ""
    advice = f"Mend the cause, {AGAIN}."
    if -status == signal.SIGKILL:
        advice = f"Who sent it? Often the kernel, out of memory (`dmesg` says). Make room, {AGAIN}."
    return _text(
        f"arm {artifact.folder.name}: rank {rank} on {host} {how}{said}",
        *_quoted(log, lines),
        *_full_disk(artifact),
        f"Its log is {log}. {advice}",
    )


def of_missing_file(artifact: Artifact, rank: int, host: str, why: str = "") -> str:
    """Describe a rank that ended with status 0 and left no fingerprint file. why: the likely causes, where known."""
    log = artifact.log(rank)
    return _text(
        f"arm {artifact.folder.name}: rank {rank} on {host} ended with status 0, but left no "
        f"{artifact.fingerprint(rank).name}",
        *_quoted(log, last_lines(log)),
        *([why] if why else []),
        f"Its log is {log}; find out what ended it early, {AGAIN}.",
    )


def of_time(artifact: Artifact, world: int, minutes: int) -> str:
    """Describe an arm that reached its time limit."""
    return _text(
        f"arm {artifact.folder.name}: not finished after {minutes} minutes (launch.time_minutes), ended",
        *_quoted(artifact.log(0), last_lines(artifact.log(0))),
        f"Last recorded: {_reached(artifact, world)}. Raise launch.time_minutes, or find out in "
        f"{artifact.log(0).parent} where the ranks hang, {AGAIN}.",
    )


def of_hang(artifact: Artifact, world: int, minutes: float) -> str:
    """Describe an arm that no longer moves, after its ranks were asked for their stacks."""
    steps = {rank: _last_step(artifact.fingerprint(rank)) for rank in range(world)}
    stacks = {rank: read_stack(artifact.log(rank)) for rank in range(world)}
    named, why = suspects(steps, stacks)
    blamed = f": rank{'s' * (len(named) > 1)} {ranks_text(named)} {why}" if named else ": all ranks stand alike"
    shown = artifact.log(named[0] if named else 0)
    return _text(
        f"arm {artifact.folder.name}: no step for {minutes:g} minutes (launch.hang_minutes), ended{blamed}",
        *(f"  ranks {ranks_text(ranks)} stand at {place}" for place, ranks in group_stacks(stacks)[:_PLACES]),
        *_quoted(shown, last_lines(shown)),
        f"Last recorded: {_reached(artifact, world)}. All stacks are in {shown.parent}. Mend the cause, or "
        f"raise launch.hang_minutes where a step really takes so long, {AGAIN}.",
    )


def of_local_job(artifact: Artifact, job: str, log: Path) -> str:
    """Describe a job of this machine that is gone and left no outcome."""
    return _text(
        f"arm {artifact.folder.name}: job {job} ended without saying how; it was killed, or could not write",
        *_quoted(log, last_lines(log)),
        *_full_disk(artifact),
        f"The ranks' logs are in {artifact.log(0).parent}; mend the cause, {AGAIN}.",
    )


def of_slurm_job(artifact: Artifact, job: str, log: Path, view: View) -> str:
    """Describe a job of Slurm that has ended and left no outcome, by its last state."""
    how, advice = _BY_STATE.get(view.state, ("ended without saying how", "Its own log is {log}"))
    facts = {"job": job, "logs": artifact.log(0).parent, "log": log, "nodes": view.nodes or "it ran on"}
    where = f" on {view.nodes}" if view.nodes and "{nodes}" not in how else ""
    told = view.reason not in ("", "None") and not view.reason.startswith(view.state)
    reason = f", {view.reason}" if told else ""
    # Rank 0 speaks for the arm.
    lines = last_lines(artifact.log(0), 5)
    return _text(
        f"arm {artifact.folder.name}: job {job}{where} {how.format(**facts)} (state {view.state}{reason})",
        *_quoted(log, last_lines(log)),
        *(_quoted(artifact.log(0), lines) if lines else []),
        f"{advice.format(**facts)}, {AGAIN}.",
    )


def of_tasks(artifact: Artifact, said: Sequence[str], job: str) -> str:
    """Describe the rank to blame of those that srun named. said: srun's lines, at least one names a task."""
    found, rank = _blamed(artifact, parse_srun(said))
    place, log = f"{found.node} (job {job})", artifact.log(rank)
    # slurmstepd speaks on the standard error of the step's tasks.
    heard = [*said, *last_lines(log)]
    if found.status is not None and (found.status != -signal.SIGKILL or not any(map(_MEMORY.search, heard))):
        return of_rank(artifact, rank, found.status, place)
    return _text(
        f"arm {artifact.folder.name}: rank {rank} on {place} was out of memory, Slurm killed it",
        *_quoted(log, last_lines(log)),
        "Ask for more memory (`sbatch: {mem: ...}` in the cluster file or the recipe's cluster.slurm), or make the "
        f"recipe smaller, {AGAIN}.",
    )


def of_step(artifact: Artifact, said: Sequence[str], status: int, job: str) -> str:
    """Describe a step where srun failed and named no task: nothing was started, or a node went away."""
    first, words = f"arm {artifact.folder.name}: job {job}", [f"    {line}" for line in said[-LOG_LINES:]]
    if node := next((found for line in said if (found := _NODE.search(line))), None):
        return _text(
            f"{first} lost node {node['node'] or ''}".rstrip(),
            *words,
            f"Slurm's `sinfo -R` says what is wrong with the node; {AGAIN.removeprefix('then ')}.",
        )
    return _text(
        f"{first} could not run its ranks (srun: status {status})",
        *words,
        *_quoted(artifact.log(0), last_lines(artifact.log(0))),
        f"Mend the cause (an engine that is not on the nodes, an option of srun, a mount), {AGAIN}.",
    )


def parse_srun(said: Sequence[str]) -> list[EndedTasks]:
    """Return the tasks that srun's lines say ended badly, in the order of the lines."""
    found = []
    for line in said:
        if match := _TASKS.match(line):
            ranks: list[int] = []
            for part in match["tasks"].split(","):  # such as `0-2,5`
                low, _, high = part.partition("-")
                ranks += range(int(low), int(high or low) + 1)
            found.append(EndedTasks(match["node"], tuple(ranks), _status(match["how"])))
    return found


def _status(how: str) -> int | None:
    """Return the exit status that srun's words mean; -N: signal N; None: out of memory."""
    if found := _STATUS.search(how):
        status = int(found[1])
        # Some engines end so where what they run was killed.
        return 128 - status if status - 128 in signal.valid_signals() else status
    if "out of memory" in how.lower():
        return None
    # `Killed`, `Segmentation fault (core dumped)`
    return -_SIGNALS.get(how.partition(" (")[0].strip(), signal.SIGKILL)


def _blamed(artifact: Artifact, found: Sequence[EndedTasks]) -> tuple[EndedTasks, int]:
    """Return the tasks to blame, and a rank among them.

    A killed one first, since its peers fail for want of it; then one whose log does not complain of a lost peer.
    """
    for tasks in found:
        if tasks.status is None or tasks.status < 0:
            return tasks, tasks.ranks[0]
    for tasks in found:
        for rank in tasks.ranks[:_LOGS_READ]:
            if not _PEER_GONE.search(headline(last_lines(artifact.log(rank)))):
                return tasks, rank
    return found[0], found[0].ranks[0]


def read_stack(log: Path) -> Stack | None:
    """Return the last stack in a log; None: the rank wrote none, so that its interpreter does not answer either."""
    text = _end_of(log, _STACK_END)
    current = text.rfind("\nCurrent thread ")
    if current < 0 and not text.startswith("Current thread "):
        return None
    frames = []
    for line in text[max(current, 0) :].lstrip("\n").splitlines()[1:]:
        if not (found := _FRAME.match(line)):
            break
        frames.append((found["file"], f"{Path(found['file']).name}:{found['line']} in {found['function']}"))
    if not frames:
        return None
    return Stack(tuple(shown for _, shown in frames), waits=bool(_WAITING.search(frames[0][0])))


def suspects(steps: Mapping[int, int], stacks: Mapping[int, Stack | None]) -> tuple[list[int], str]:
    """Return the ranks that the others wait for, and how that is known. steps: last recorded step by rank.

    Those outside every collective while others wait inside one; else those that are behind; else nobody.
    """
    outside = [rank for rank in sorted(steps) if (stack := stacks.get(rank)) is None or not stack.waits]
    if outside and len(outside) < len(steps):
        return outside, "does not wait for the others"
    lowest = min(steps.values())
    behind = [rank for rank in sorted(steps) if steps[rank] == lowest]
    if len(behind) < len(steps):
        return behind, "is behind the others"
    return [], ""


def group_stacks(stacks: Mapping[int, Stack | None]) -> list[tuple[str, Sequence[int]]]:
    """Return (innermost frames, ranks) for ranks with the same frames, the smallest group first."""
    found: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        place = " < ".join(stack.frames[:3]) if stack else "wrote no stack"
        found.setdefault(place, []).append(rank)
    return sorted(found.items(), key=lambda entry: (len(entry[1]), entry[1]))


def headline(lines: Sequence[str]) -> str:
    """Return the exception that a log ends with, or its last line."""
    named = [line for line in lines if _EXCEPTION.match(line)]
    return (named or [line.strip() for line in lines] or [""])[-1]


def last_lines(log: Path, count: int = LOG_LINES) -> list[str]:
    """Return the last lines of a log that are not blank; none where it cannot be read."""
    return [line.rstrip() for line in _end_of(log, _LOG_END).splitlines() if line.strip()][-count:]


def lost_the_port(log: Path) -> bool:
    """Return whether the rank says that somebody else has taken the port meanwhile."""
    return any(_PORT_TAKEN.search(line) for line in last_lines(log))


def _end_of(log: Path, size: int) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - size))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _text(*lines: str) -> str:
    return "\n".join(lines)


def _quoted(log: Path, lines: Sequence[str]) -> Iterator[str]:
    yield f"  last lines of {log}:" if lines else f"  {log} is empty"
    yield from (f"    {line}" for line in lines)


def _full_disk(artifact: Artifact) -> list[str]:
    try:
        free = shutil.disk_usage(artifact.folder).free
    except OSError:
        return []
    return [f"Only {free} bytes are free on the disk of {artifact.folder}: make room."] if free < _LITTLE else []


def _reached(artifact: Artifact, world: int) -> str:
    """Return the last recorded step of all ranks, in words."""
    steps: dict[int, list[int]] = {}
    for rank in range(world):
        steps.setdefault(_last_step(artifact.fingerprint(rank)), []).append(rank)
    return "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)} {f'step {step}' if step else 'no step'}"
        for step, ranks in sorted(steps.items())
    )


def _last_step(path: Path) -> int:
    """Return the last step in a fingerprint file; 0 where it has none."""
    try:
        blocks = reader.read(path, deep=False).blocks
    except OSError:
        return 0
    return blocks[-1].step if blocks else 0
