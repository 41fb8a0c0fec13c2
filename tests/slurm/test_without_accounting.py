"""A cluster that keeps no accounts: nothing may ask `sacct`, and nothing may wait for an answer that never comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .arms import Lab, second_node
from .cluster import Cluster
from .test_pipeline_on_slurm import Project, two_nodes

TROUBLE = 4

pytestmark = pytest.mark.usefixtures("bare_cluster")


def test_an_arm_runs_and_a_cancelled_one_is_told_as_such(tmp_path: Path, bare_cluster: Cluster) -> None:
    lab = Lab(tmp_path, "hang")
    waiting = lab.start()
    job = lab.at_step(0)
    bare_cluster.command("scancel", job)
    status, said = waiting.end()
    assert status == TROUBLE
    assert f"job {job}" in said
    assert "cancelled" in said

    lab.mode = "ok"
    assert lab.run()[0] == 0


def test_a_lost_node_is_named(tmp_path: Path, bare_cluster: Cluster) -> None:
    lab = Lab(tmp_path, "hang", {"requeue": False}, cluster={"nodes": 2, "ranks_per_node": 1})
    waiting = lab.start()
    job = lab.at_step(0)
    node = second_node(bare_cluster, job)
    bare_cluster.fail_node(node)
    try:
        status, said = waiting.end()
    finally:
        bare_cluster.restore_node(node)

    assert status == TROUBLE
    assert f"job {job}" in said
    assert "node" in said


def test_a_job_that_the_controller_has_forgotten_keeps_nobody_waiting(tmp_path: Path, bare_cluster: Cluster) -> None:
    """Its pipeline was killed, and looks again when all that Slurm knew of the job is gone."""
    lab = Lab(tmp_path, "wait")
    first = lab.start()
    lab.at_step(0)
    first.kill()
    record = lab.artifact().launch / "job.json"
    real = lab.job()
    record.write_text(record.read_text().replace(f'"job": "{real}"', '"job": "987654"'))
    bare_cluster.command("scancel", real)
    lab.mode = "ok"
    status, said = lab.run()

    assert status == 0, said
    assert "its last start did not finish" in said


def test_the_whole_pipeline_runs(tmp_path: Path) -> None:
    project = Project(tmp_path, **two_nodes()).of_stubs("ok")
    status, said = project.run()
    assert status == 0, said
    assert (tmp_path / "results" / "smoke" / "verdict.txt").read_text() == "verdict: pass\n"
