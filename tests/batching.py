"""A job's batch step over stub ranks and stand-ins for Slurm's commands: no cluster, two nodes of one rank each."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch.job_state import ArmOutcome, JobRecord, now
from samebits.launch.srun import Stage
from samebits.spec.plan import Plan

STUB_SRUN = Path(__file__).with_name("stub_srun.py")
JOB = "0123abcd"
"""Launch id of a job; those of its arms follow from it."""
NAME = "smoke-reference-0123456789ab"
"""What Slurm calls job 7: as `launching.LAUNCH` of the reference is called."""
RUN = """
import pickle, sys
from samebits.launch import supervise
supervise._LAG_SECONDS = 0.0  # nothing lags on a local disk
supervise.run_on_cluster(*pickle.load(sys.stdin.buffer))
"""
MODE = f'exec {shlex.join([sys.executable, "-S", str(launching.STUB)])} "$(cat "$0/launch/mode")" "$0"'
"""A stub rank in the mode that its arm's `launch/mode` says."""


class Site:
    """The commands of a cluster on which job 7 runs; what they answer can be changed meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.command("srun", f'exec {shlex.join([sys.executable, "-S", str(STUB_SRUN), str(self.bin)])} "$@"')
        self.command("scontrol", r"printf 'n1\nn2\n'")
        self.command("scancel", f'echo "$@" >> {self.bin}/scancel.log\nkill -9 $(cat {self.bin}/step)')
        self.state("RUNNING")

    def command(self, name: str, script: str) -> None:
        """Appears whole, even where it is just being run."""
        new = self.bin / f".{name}"
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.rename(self.bin / name)

    def state(self, state: str, reason: str = "None", name: str = NAME) -> None:
        """What squeue says of the job."""
        self.command("squeue", f"echo '{state}|{reason}|n[1-2]|{name}'")

    def no_answer(self) -> None:
        words = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        self.command("squeue", f"echo '{words}' >&2; exit 1")

    def path(self) -> str:
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def steps(self) -> list[dict[str, Any]]:
        """`options` and `command` of every srun so far."""
        log = self.bin / "srun.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def stage(self, **changes: Any) -> Stage:
        own = Stage(
            nodes=2,
            ranks_per_node=1,
            cpus_per_rank=1,
            options=(),
            prefix=(),
            command=("sh", "-c", MODE),
            outside={"PATH": self.path()},
            path="",
            interface=None,
            image=None,
            verify="every-node",
        )
        return dataclasses.replace(own, **changes)

    def start(self, starts: list[tuple[Artifact, str]], stage: Stage | None = None, **more: str) -> Batch:
        """more: of the batch step's environment."""
        own = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}
        arguments = ([(str(artifact.folder), launch) for artifact, launch in starts], stage or self.stage())
        return Batch(arguments, {**os.environ, "PATH": self.path(), **own, **more})

    def run(self, starts: list[tuple[Artifact, str]], stage: Stage | None = None, **more: str) -> str:
        """What the job's log says."""
        return self.start(starts, stage, **more).end()


class Batch:
    """`run_on_cluster` in a process of its own, as the job's batch step runs it."""

    def __init__(self, arguments: tuple[object, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(pickle.dumps(arguments))
        self.process.stdin.close()
        self.process.stdin = None

    def end(self) -> str:
        try:
            said = self.process.communicate(timeout=60)[0].decode()
        except subprocess.TimeoutExpired:
            self.process.terminate()  # with its ranks
            raise
        assert self.process.returncode == 0, said
        return said


def arm(results: Path, wanted: Plan, mode: str = "ok", launch: str = JOB, **record: Any) -> tuple[Artifact, str]:
    """An arm that a job has been submitted for; what `Site.start` takes."""
    artifact = launching.prepared(results, wanted)
    JobRecord(**{"launch": launch, "key": "", "restored": None, "submitted": now(), "job": "7", **record}).write(
        artifact
    )
    (artifact.launch / "mode").write_text(mode)
    return artifact, launch


def left_behind(artifact: Artifact, launch: str, *, ok: bool = False) -> None:
    """What an earlier start of the arm left, up to its outcome."""
    for rank in range(2):
        artifact.fingerprint(rank).write_bytes(b"of the earlier start")
    artifact.checkpoint(2).mkdir(parents=True)
    artifact.progress.write_text("4 1 4 0.4\n")
    message = "" if ok else "a peer went away"
    ArmOutcome(ok=ok, message=message, launch=launch, ended="then", seconds=1.0).write(artifact)
