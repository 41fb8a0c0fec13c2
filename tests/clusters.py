"""Cluster files for tests: valid ones, changed where a test wants it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from samebits.recipe.cluster import ClusterFile, load

IMAGE = f"train.sqsh@sha256:{'ab' * 32}"

_FACTS: dict[str, Any] = {
    "scheduler": "slurm",
    "ranks_per_node": 1,
    "gpus": False,
    "cpus_per_rank": 1,
    "engine": "none",
    "slurm": {"partition": "main"},
}


def cluster_file(folder: Path, **changes: Any) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({**_FACTS, **changes}))
    return path


def facts(folder: Path, **changes: Any) -> ClusterFile:
    return load(cluster_file(folder, **changes))
