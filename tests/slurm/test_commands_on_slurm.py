"""A launch line of one's own on a real Slurm: torchrun once a node, ranks that meet over the nodes' network."""

from __future__ import annotations

from pathlib import Path

import clusters
import commands
import launching
from samebits.compare.collect import collect
from samebits.fingerprint.paths import Artifact
from samebits.launch.run_arms import run_arms
from samebits.launch.slurm import SlurmExecutor
from samebits.plan import arms
from samebits.recipe.cluster import load

from .cluster import Cluster

LINE = (
    "torchrun --nnodes {nodes} --node-rank {node} --nproc-per-node {ranks_per_node} --master-addr {master_address} "
    "--master-port {master_port} torch_ddp.py --steps {stop} --save {save} --save-every 2 --out {logs} --workers 0"
)


def test_torchrun_on_two_nodes_is_captured_on_every_rank(cluster: Cluster, tmp_path: Path) -> None:
    command = {"launcher": "torchrun", "full": LINE, "resumed": f"{LINE} --load {{checkpoint}} --from {{step}}"}
    recipe = commands.recipe(world=2, command=command, cluster={"nodes": 2, "ranks_per_node": 1})
    site = {"poll_seconds": 0.5, "interface": "eth0", "slurm": {"partition": "main"}}
    executor = SlurmExecutor(load(clusters.cluster_file(tmp_path, ranks_per_node=1, **site)))
    for arm in ("reference", "resumed"):
        plan = arms.plan(recipe, arm, tmp_path / "results")
        artifact = Artifact(arms.artifact_folder(tmp_path / "results", recipe.name, arm))
        echo, said = launching.echo()
        outcome = run_arms([(plan, artifact)], echo=echo, executor=executor)
        assert outcome.ok, f"{outcome.message}\n{said.getvalue()}"
        manifest = collect(artifact.folder)
        assert len({file.pins.node for file in manifest.ranks}) == 2
    results = [(artifact.own_logs / f"result-{rank}").read_text() for rank in range(2)]
    reference = Artifact(artifact.folder.with_name("reference"))
    assert results == [(reference.own_logs / f"result-{rank}").read_text() for rank in range(2)]
    assert reference.own_checkpoints.is_dir()
    assert not artifact.checkpoints.exists()
