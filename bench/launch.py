"""What launching costs on a login node: `python bench/launch.py [--recipes 20]`.

Two figures, each the median of several whole processes: a dry run of the pipeline over so many recipes (bar: 10 s for
20), and submitting one arm, from the start of `samebits run` to a job id on disk (bar: 2 s). sbatch and squeue are
stand-ins that answer at once: what Slurm itself takes comes on top. Exit status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DRY_RUN_BAR, SUBMIT_BAR = 10.0, 2.0
ROUNDS = 5
CLUSTER = """\
{scheduler: slurm, ranks_per_node: 1, gpus: false, cpus_per_rank: 1, engine: none, poll_seconds: 0.1}
"""


def project(folder: Path, recipes: int) -> None:
    """A clone's folder with so many recipes, and Slurm's commands as stand-ins."""
    for name in ("workflow", "profiles", "data"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    text = (ROOT / "recipes" / "smoke.yaml").read_text()
    (folder / "recipes").mkdir()
    for number in range(recipes):
        (folder / "recipes" / f"r{number:02}.yaml").write_text(text.replace("name: smoke", f"name: r{number:02}"))
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "bin").mkdir()
    for command, answer in (("sbatch", "Submitted batch job 7"), ("squeue", "COMPLETED|None|n1|job"), ("srun", "")):
        path = folder / "bin" / command
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(0o755)


def dry_run(folder: Path) -> float:
    started = time.monotonic()
    subprocess.run(
        [BIN / "snakemake", "--profile", "profiles/default", "--dry-run"], cwd=folder, check=True, capture_output=True
    )
    return time.monotonic() - started


def submission(folder: Path, number: int) -> float:
    """Seconds until the job's id is on disk; the job itself never runs, and the arm then fails."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    record = folder / "results" / f"r{number:02}" / "arms" / "reference" / "launch" / "job.json"
    command = [BIN / "samebits", "run", f"recipes/r{number:02}.yaml", "reference", "--cluster", "cluster.yaml"]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (record.exists() and json.loads(record.read_text())["job"]):
        if process.poll() is not None and not record.exists():
            sys.exit("samebits run ended without a job")
        time.sleep(0.01)
    seconds = time.monotonic() - started
    process.wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "launch.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, max(arguments.recipes, ROUNDS))
        dry = [dry_run(folder) for _ in range(ROUNDS)]
        submitted = [submission(folder, number) for number in range(ROUNDS)]
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "recipes": arguments.recipes,
        "dry_run_seconds": {"median": statistics.median(dry), "all": dry, "bar": DRY_RUN_BAR},
        "submission_seconds": {"median": statistics.median(submitted), "all": submitted, "bar": SUBMIT_BAR},
    }
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"dry run over {arguments.recipes} recipes: {statistics.median(dry):.2f} s (bar {DRY_RUN_BAR:.0f})")
    print(f"submitting one arm: {statistics.median(submitted):.2f} s (bar {SUBMIT_BAR:.0f})")
    sys.exit(statistics.median(dry) > DRY_RUN_BAR or statistics.median(submitted) > SUBMIT_BAR)


if __name__ == "__main__":
    main()
