"""What a person is told when an arm does not end well: which rank, how, its last words, and what to do."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from samebits.fingerprint import reader
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.ranks import ranks_text
from samebits.launch import stacks

LOG_LINES = 15
_PLACES = 8
AGAIN = "then start again: the arm begins from nothing, finished arms stay"
_LOG_END = 16_384
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_LITTLE = 1 << 20


def of_rank(artifact: Artifact, rank: int, status: int, host: str) -> str:
    """status: exit status that is not 0; -N: killed by signal N."""
    log = artifact.log(rank)
    lines = last_lines(log)
    how = f"was killed by signal {_signal(-status)}" if status < 0 else f"ended with status {status}"
    said = f": {words}" if status > 0 and (words := headline(lines)) else ""
    return "\n".join(
        [
            f"arm {artifact.folder.name}: rank {rank} on {host} {how}{said}",
            *quoted(log, lines),
            *_full_disk(artifact),
            _advice(status, log),
        ]
    )


def of_missing_file(artifact: Artifact, rank: int, host: str, why: str = "") -> str:
    """The rank ended with status 0 and left no fingerprint file. why: the likely causes, where they are known."""
    log = artifact.log(rank)
    return "\n".join(
        [
            f"arm {artifact.folder.name}: rank {rank} on {host} ended with status 0, but left no "
            f"{artifact.fingerprint(rank).name}",
            *quoted(log, last_lines(log)),
            *([why] if why else []),
            f"Its log is {log}; find out what ended it early, {AGAIN}.",
        ]
    )


def of_time(artifact: Artifact, world: int, minutes: int) -> str:
    return "\n".join(
        [
            f"arm {artifact.folder.name}: not finished after {minutes} minutes (launch.time_minutes), ended",
            *quoted(artifact.log(0), last_lines(artifact.log(0))),
            f"Last recorded: {_reached(artifact, world)}. Raise launch.time_minutes, or find out in "
            f"{artifact.log(0).parent} where the ranks hang, {AGAIN}.",
        ]
    )


def of_hang(artifact: Artifact, world: int, minutes: float) -> str:
    """After the ranks were asked for their stacks."""
    steps = {rank: _last_step(artifact.fingerprint(rank)) for rank in range(world)}
    seen = {rank: stacks.read(artifact.log(rank)) for rank in range(world)}
    named, why = stacks.suspects(steps, seen)
    blamed = f": rank{'s' * (len(named) > 1)} {ranks_text(named)} {why}" if named else ": all ranks stand alike"
    shown = artifact.log(named[0] if named else 0)
    return "\n".join(
        [
            f"arm {artifact.folder.name}: no step for {minutes:g} minutes (launch.hang_minutes), ended{blamed}",
            *(f"  ranks {ranks_text(ranks)} stand at {place}" for place, ranks in stacks.grouped(seen)[:_PLACES]),
            *quoted(shown, last_lines(shown)),
            f"Last recorded: {_reached(artifact, world)}. All stacks are in {shown.parent}. Mend the cause, or "
            f"raise launch.hang_minutes where a step really takes so long, {AGAIN}.",
        ]
    )


def of_job(artifact: Artifact, job: str, log: Path) -> str:
    """The job is gone and left no outcome."""
    return "\n".join(
        [
            f"arm {artifact.folder.name}: job {job} ended without saying how; it was killed, or could not write",
            *quoted(log, last_lines(log)),
            *_full_disk(artifact),
            f"The ranks' logs are in {artifact.log(0).parent}; mend the cause, {AGAIN}.",
        ]
    )


def headline(lines: Sequence[str]) -> str:
    """The exception that a log ends with, or its last line."""
    named = [line for line in lines if _EXCEPTION.match(line)]
    return (named or [line.strip() for line in lines] or [""])[-1]


def last_lines(log: Path, count: int = LOG_LINES) -> list[str]:
    """Those that are not blank."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LOG_END))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def lost_the_port(log: Path) -> bool:
    """Whether the rank says that somebody else has taken the port meanwhile."""
    return any(_PORT_TAKEN.search(line) for line in last_lines(log))


def quoted(log: Path, lines: Sequence[str]) -> list[str]:
    """The end of a log, indented."""
    if not lines:
        return [f"  {log} is empty"]
    return [f"  last lines of {log}:", *(f"    {line}" for line in lines)]


def _signal(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _full_disk(artifact: Artifact) -> list[str]:
    try:
        free = shutil.disk_usage(artifact.folder).free
    except OSError:
        return []
    return [f"Only {free} bytes are free on the disk of {artifact.folder}: make room."] if free < _LITTLE else []


def _advice(status: int, log: Path) -> str:
    if -status == signal.SIGKILL:
        return f"Its log is {log}. Who sent it? Often the kernel, out of memory (`dmesg` says). Make room, {AGAIN}."
    return f"Its log is {log}. Mend the cause, {AGAIN}."


def _reached(artifact: Artifact, world: int) -> str:
    steps: dict[int, list[int]] = {}
    for rank in range(world):
        steps.setdefault(_last_step(artifact.fingerprint(rank)), []).append(rank)
    return "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)} {f'step {step}' if step else 'no step'}"
        for step, ranks in sorted(steps.items())
    )


def _last_step(path: Path) -> int:
    """0 where the rank recorded none."""
    try:
        blocks = reader.read(path, deep=False).blocks
    except OSError:
        return 0
    return blocks[-1].step if blocks else 0
