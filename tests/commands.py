"""Recipes of the workload `command`, and arms of them started without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from samebits.fingerprint.paths import Artifact
from samebits.spec.plan import Plan, decode
from samebits.spec.sections import CommandRecipe, Recipe

SCRIPTS = Path(__file__).parent / "scripts"
SOURCES = Path(__file__).parent.parent / "src"


def document(world: int = 1, **changes: Any) -> dict[str, Any]:
    """A recipe as its file says it; a mapping changes the keys of a section, anything else replaces the value."""
    body: dict[str, Any] = {
        "name": "own",
        "workload": "command",
        "command": {
            "launcher": "ours",
            "folder": str(SCRIPTS),
            "full": "python tiny.py --steps {stop} --save {save} --out {logs}",
            "resumed": "python tiny.py --steps {stop} --save {save} --out {logs} --load {checkpoint} --from {step}",
        },
        "parallel": {
            "world": world,
            "tensor": 1,
            "sequence": False,
            "pipeline": 1,
            "context": 1,
            "data": world,
            "expert": 1,
        },
        "steps": 4,
        "checkpoint": {"every": 2, "resume_from": 2},
        # What the scripts have in force: they leave torch's own settings alone.
        "determinism": {"deterministic_algorithms": False, "fill_uninitialized_memory": True},
        "capture": {"rung": "state"},
        "launch": {"time_minutes": 3, "threads": 1},
        "gates": ["repeatability", "resume", "control", "observer"],
    }
    for key, value in changes.items():
        body[key] = {**body[key], **value} if isinstance(value, dict) and isinstance(body.get(key), dict) else value
    return body


def recipe(**changes: Any) -> CommandRecipe:
    """Rules unchecked."""
    found = decode(Recipe, document(**changes))
    assert isinstance(found, CommandRecipe)
    return found


def recipe_file(folder: Path, **changes: Any) -> Path:
    body = document(**changes)
    path = folder / f"{body['name']}.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return path


def plan(of: Recipe, *, arm: str = "reference", restore: Path | None = None) -> Plan:
    first = of.checkpoint.resume_from + 1 if restore else 1
    return Plan(
        arm=arm,
        recipe=of,
        first_step=first,
        last_step=of.steps,
        restore=str(restore) if restore else None,
        capture=True,
        keep_checkpoints=True,
    )


def start(folder: Path, of: Plan, **variables: str) -> tuple[Artifact, subprocess.CompletedProcess[str]]:
    """One rank of one, as the launcher would start it."""
    artifact = Artifact(folder)
    (artifact.launch).mkdir(parents=True)
    artifact.plan.write_text(of.to_json(), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "samebits.worker.inject.launch_line", str(folder)],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return artifact, ran


def environment() -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(SOURCES),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "SAMEBITS_LAUNCH": "test",
    }
