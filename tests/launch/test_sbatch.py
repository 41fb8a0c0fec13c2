"""What sbatch and srun are given, word for word: golden files. A change of theirs is a change of what users run.

UPDATE_GOLDEN=1 pytest tests/launch/test_sbatch.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builders
import clusters
from samebits.launch import sbatch
from samebits.recipe.cluster import ClusterError
from samebits.spec.sections import Recipe

GOLDEN = Path(__file__).parents[1].joinpath("golden")
NEMOTRON = {
    "model": {"layers": 64, "heads": 32, "hidden": 4096},
    "parallel": {"world": 2432, "tensor": 8, "sequence": True, "pipeline": 4, "data": 76},
    "data": {"micro_batch": 1, "global_batch": 76 * 8},
    "container": {"image": clusters.IMAGE},
    "launch": {"time_minutes": 60},
}
SITE: dict[str, Any] = {"gpus": True, "cpus_per_rank": 12, "interface": "ib0", "images": "/shared/images"}


def of_two_nodes() -> tuple[Recipe, dict[str, Any]]:
    return builders.recipe(gates=["repeatability", "resume"]), {"ranks_per_node": 1}


def of_304_nodes() -> tuple[Recipe, dict[str, Any]]:
    slurm = {"account": "lab", "qos": "validation", "reservation": "release", "sbatch": {"exclusive": "", "mem": "0"}}
    cluster = {"nodes": 304, "ranks_per_node": 8, "placement": "other-nodes"}
    recipe = builders.recipe(**NEMOTRON, cluster=cluster, gates=["repeatability"])
    return recipe, {**SITE, "ranks_per_node": 8, "engine": "pyxis", "slurm": slurm}


def of_608_nodes() -> tuple[Recipe, dict[str, Any]]:
    own = {"constraint": "gb200", "srun": ["--cpu-bind=verbose"]}
    cluster = {"nodes": 608, "ranks_per_node": 4, "placement": "same-nodes", "slurm": own}
    recipe = builders.recipe(**NEMOTRON, cluster=cluster, gates=["repeatability", "resume"])
    return recipe, {**SITE, "ranks_per_node": 4, "engine": "apptainer", "setup": ["module load apptainer"]}


@pytest.fixture(autouse=True)
def without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No command at all is on PATH: scripts are shown on a laptop, too."""
    folder = tmp_path / "nothing"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize("make", [of_two_nodes, of_304_nodes, of_608_nodes])
def test_the_scripts_are_these(tmp_path: Path, make: Any) -> None:
    recipe, changes = make()

    text = sbatch.text(recipe, Path("/results"), clusters.cluster_file(tmp_path, **changes))

    golden = GOLDEN / f"sbatch-{make.__name__.removeprefix('of_').replace('_', '-')}.txt"
    shown = text.replace(sys.executable, "PYTHON")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


def test_a_job_s_ranks_are_nodes_times_ranks_per_node(tmp_path: Path) -> None:
    for make in (of_304_nodes, of_608_nodes):
        recipe, changes = make()
        text = sbatch.text(recipe, Path("/results"), clusters.cluster_file(tmp_path, **changes))
        assert set(re.findall(r"--ntasks=(\d+)", text)) == {"2432"}


def test_the_verb_prints_the_scripts_where_there_is_no_slurm(tmp_path: Path, without_slurm: Path) -> None:
    file = clusters.cluster_file(tmp_path, ranks_per_node=1)
    words = ["plan", builders.recipe_file(tmp_path), "--cluster", file, "--sbatch"]
    program = Path(sys.executable).with_name("samebits")
    said = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    assert "\n#SBATCH --nodes=2\n" in said.stdout


def test_scripts_need_a_cluster_file() -> None:
    with pytest.raises(ClusterError, match="--sbatch needs --cluster FILE"):
        sbatch.text(builders.recipe(), Path("/results"), None)
