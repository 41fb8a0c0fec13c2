"""Arms over stub ranks for tests of launching."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import builders
from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.job_state import JobRecord, now
from samebits.spec.plan import Plan

STUB = Path(__file__).with_name("stub_rank.py")
LAUNCH = "0123456789abcdef"


def command(mode: str) -> list[str]:
    return [sys.executable, str(STUB), mode]


def plan(arm: str = "reference", **changes: object) -> Plan:
    """Four steps, a checkpoint at 2."""
    return builders.plan(arm, **{"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}, **changes})


def prepared(results: Path, wanted: Plan) -> Artifact:
    """An artifact that is about to be started as LAUNCH."""
    artifact = Artifact(results / "smoke" / "arms" / wanted.arm)
    artifact.launch.mkdir(parents=True)
    artifact.plan.write_text(wanted.to_json())
    JobRecord(launch=LAUNCH, key="", restored=None, submitted=now()).write(artifact)
    return artifact


def start_ranks(
    artifact: Artifact, mode: str, launch: str = LAUNCH, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """`run_here` in a process of its own, as its job does."""
    arguments = ([(str(artifact.folder), launch)], environment or {"PATH": os.environ["PATH"]}, command(mode))
    code = f"from samebits.launch.supervise import run_here; run_here{arguments!r}"
    return subprocess.Popen([sys.executable, "-c", code])


def echo() -> tuple[Echo, io.StringIO]:
    stream = io.StringIO()
    return Echo(stream), stream


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def starts(artifact: Artifact) -> list[tuple[int, int, str]]:
    """(rank, process id, launch id) of every rank process that ever started."""
    try:
        lines = (artifact.folder / "starts").read_text().splitlines()
    except OSError:
        return []
    return [(int(rank), int(pid), launch) for rank, pid, launch, _ in (line.split() for line in lines)]


def alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
