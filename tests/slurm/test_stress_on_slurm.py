"""A stress run on a real Slurm: nodes in reverse order, and every variation in force inside the ranks of a job."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import clusters
import launching
from samebits.fingerprint import conditions
from samebits.fingerprint.paths import Artifact
from samebits.launch.run_arms import run_arms
from samebits.launch.slurm import SlurmExecutor
from samebits.recipe.cluster import load
from samebits.spec.stressors import NAMES, Stressor

from .cluster import Cluster

RANK = Path(__file__).parents[1] / "stressed_rank.py"


def run(folder: Path, world: int, *stress: Stressor) -> tuple[Artifact, list[dict[str, Any]]]:
    """What each rank saw; two ranks on a node."""
    site = {"poll_seconds": 0.5, "interface": "eth0", "slurm": {"partition": "main", "sbatch": {"mem": "500M"}}}
    facts = load(clusters.cluster_file(folder, ranks_per_node=2, **site))
    parallel = {"world": world, "data": world}
    plan = dataclasses.replace(launching.plan("stress-all", parallel=parallel), stress=stress)
    artifact = Artifact(folder / "results" / "smoke" / "stress" / plan.arm)
    echo, said = launching.echo()
    command = [sys.executable, str(RANK), "ok"]
    outcome = run_arms([(plan, artifact)], echo=echo, executor=SlurmExecutor(facts), command=command)
    assert outcome.ok, f"{outcome.message}\n{said.getvalue()}"
    return artifact, [json.loads((artifact.folder / f"seen-{rank}.json").read_text()) for rank in range(world)]


def test_the_first_ranks_run_on_the_last_node_and_meet_there(cluster: Cluster, tmp_path: Path) -> None:
    artifact, found = run(tmp_path, 4, "node-order")
    nodes = [rank["environment"]["SLURMD_NODENAME"] for rank in found]
    assert nodes[0] == nodes[1] > nodes[2] == nodes[3]
    assert {rank["environment"]["MASTER_ADDR"] for rank in found} == {nodes[0]}
    assert [rank["environment"]["SLURM_LOCALID"] for rank in found] == ["0", "1", "0", "1"]
    assert "rank 2 starts" in artifact.log(2).read_text()


def test_without_it_the_first_ranks_run_on_the_first_node(cluster: Cluster, tmp_path: Path) -> None:
    _, found = run(tmp_path, 4, "hash-seed")
    nodes = [rank["environment"]["SLURMD_NODENAME"] for rank in found]
    assert nodes[0] == nodes[1] < nodes[2] == nodes[3]
    assert len({rank["hash"] for rank in found}) == 4


def test_all_variations_are_in_force_in_the_ranks_of_a_job_and_gone_after(cluster: Cluster, tmp_path: Path) -> None:
    artifact, found = run(tmp_path, 2, *NAMES)
    own = {"delayed-rank", "loader-threads"}
    in_force = {note.stressor for note in conditions.read(artifact.folder) if note.in_force}
    assert in_force == set(NAMES) - own
    busy = [pid for rank in found for pid in rank["children"]]
    assert busy
    cluster.idle()
    launching.wait_for(lambda: not any(map(launching.alive, busy)), 10)
