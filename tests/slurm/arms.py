"""Arms over stub ranks as jobs of the test cluster, each waited for by a process of its own, as a rule's would be."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import builders
import clusters
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state as job
from samebits.launch.progress import read

from .cluster import Cluster

VERBS = Path(__file__).parents[1] / "pipeline_samebits.py"
SECONDS = 150


class Lab:
    """A folder with one recipe of four steps, a cluster file, and the arms of `mode`."""

    def __init__(self, folder: Path, mode: str = "ok", site: dict[str, object] | None = None, **recipe: object) -> None:
        self.folder = folder
        self.mode = mode
        (folder / "recipes").mkdir(exist_ok=True)
        small = {"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}, "gates": ["repeatability", "resume"]}
        builders.recipe_file(folder / "recipes", **{**small, **recipe})
        slurm = {"partition": "main", "sbatch": {"mem": "500M"}}
        clusters.cluster_file(folder, **{"poll_seconds": 0.5, "interface": "eth0", "slurm": slurm, **(site or {})})

    def start(self, arm: str = "reference") -> Waiting:
        stamp, log = self.artifact(arm).folder / "ran", self.folder / f"{arm}.log"
        command = ["run", "recipes/smoke.yaml", arm, "--results", "results", "--stamp", stamp, "--log", log]
        return Waiting([sys.executable, VERBS, self.mode, *command, "--cluster", "cluster.yaml"], self.folder)

    def run(self, arm: str = "reference") -> tuple[int, str]:
        """Exit status and what was said."""
        return self.start(arm).end()

    def artifact(self, arm: str = "reference") -> Artifact:
        return Artifact(self.folder / "results" / "smoke" / "arms" / arm)

    def go(self) -> None:
        """Lets ranks of mode `wait` go on."""
        (self.artifact().folder.parent / "go").touch()

    def job(self, arm: str = "reference") -> str:
        """Waits until its id is on disk."""
        until(lambda: (record := job.read_record(self.artifact(arm))) and record.job)
        record = job.read_record(self.artifact(arm))
        assert record is not None
        assert record.job is not None
        return record.job

    def at_step(self, step: int, arm: str = "reference") -> str:
        """Waits until rank 0 has ended this step; the job's id."""
        until(lambda: (seen := read(self.artifact(arm).progress)) and seen.step >= step)
        return self.job(arm)

    def outcome(self, arm: str = "reference") -> job.Outcome | None:
        return job.read_outcome(self.artifact(arm))

    def starts(self, arm: str = "reference") -> list[tuple[int, str]]:
        """(rank, launch id) of every rank process whose traces are in the artifact."""
        try:
            lines = (self.artifact(arm).folder / "starts").read_text().splitlines()
        except OSError:
            return []
        return sorted((int(rank), launch) for rank, _, launch, _ in (line.split() for line in lines))


def second_node(cluster: Cluster, job: str) -> str:
    """Not the one that runs the batch step."""
    nodes = cluster.command("squeue", "-h", "-j", job, "-o", "%N").strip()
    return cluster.command("scontrol", "show", "hostnames", nodes).split()[1]


class Waiting:
    """The process that waits for an arm."""

    def __init__(self, command: list[object], folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(VERBS.parents[1] / "src")}
        self.process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str]:
        try:
            said, _ = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        print(said)
        return self.process.returncode, said

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> str:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.communicate()[0]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
