"""The cluster file, and what one job asks Slurm for."""

from __future__ import annotations

from pathlib import Path

import pytest

import builders
import clusters
from samebits.launch import sbatch
from samebits.recipe.cluster import ClusterError, load

PROFILE = Path(__file__).parents[2] / "profiles" / "slurm"


def refusal(folder: Path, **changes: object) -> str:
    with pytest.raises(ClusterError) as caught:
        clusters.facts(folder, **changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partitions": "x"}, "partitions is 'x', must not be there: unknown key, the file has scheduler,"),
        ({"partition": "x"}, "did you mean slurm.partition?"),
        ({"scheduler": "pbs"}, "scheduler is 'pbs', must be 'slurm'"),
        ({"ranks_per_node": 0}, "ranks_per_node is 0, must be a whole number of at least 1; use 1 or more"),
        ({"engine": "docker"}, "engine is 'docker', must be 'none', 'pyxis',"),
        ({"mounts": ["scratch"]}, "mounts[0] is 'scratch', must be an absolute path"),
        ({"mounts": ["/a:/b"]}, "mounts[0] is '/a:/b', must be an absolute path"),
        ({"slurm": {"sbatch": {"time": "5"}}}, "slurm.sbatch.time"),
        ({"slurm": {"srun": ["--ntasks=3"]}}, "slurm.srun[0]"),
        ({"poll_seconds": 0}, "poll_seconds is 0, must be a number above 0"),
    ],
)
def test_a_bad_entry_is_named_with_its_rule(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    assert message in refusal(tmp_path, **changes)


def test_a_missing_or_empty_cluster_file_says_where_an_example_is(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no such file"):
        load(tmp_path / "cluster.yaml")
    (tmp_path / "cluster.yaml").write_text("")
    with pytest.raises(ClusterError, match=r"must hold a cluster file; start from profiles/slurm/cluster.yaml"):
        load(tmp_path / "cluster.yaml")


def test_the_profile_of_the_repository_is_a_valid_one() -> None:
    facts = load(PROFILE / "cluster.yaml")
    assert (facts.scheduler, facts.slurm.partition) == ("slurm", "main")


def test_every_line_of_the_profile_says_what_it_is_for() -> None:
    for name in ("config.yaml", "cluster.yaml"):
        lines = [line for line in (PROFILE / name).read_text().splitlines() if line.strip() and line[0] != "#"]
        assert [line for line in lines if " # " not in line] == []


@pytest.mark.parametrize(("world", "each", "layout"), [(2, 1, (2, 1)), (2, 8, (1, 2)), (16, 8, (2, 8)), (8, 8, (1, 8))])
def test_without_a_section_cluster_ranks_fill_the_sites_nodes(
    tmp_path: Path, world: int, each: int, layout: tuple[int, int]
) -> None:
    recipe = builders.recipe(parallel={"world": world, "data": world}, data={"global_batch": 2 * world})
    assert clusters.facts(tmp_path, ranks_per_node=each).layout(recipe) == layout


def test_ranks_that_do_not_fill_whole_nodes_are_refused(tmp_path: Path) -> None:
    recipe = builders.recipe(parallel={"world": 6, "data": 6}, data={"global_batch": 12})
    with pytest.raises(
        ClusterError, match=r"parallel.world is 6, must be a multiple of the cluster file's ranks_per_node"
    ):
        clusters.facts(tmp_path, ranks_per_node=4).layout(recipe)


def test_the_recipe_s_section_wins_over_the_site(tmp_path: Path) -> None:
    slurm = {"partition": "big", "sbatch": {"mem": "5G"}, "srun": ["--cpu-bind=none"]}
    recipe = builders.recipe(cluster={"nodes": 2, "ranks_per_node": 1, "slurm": slurm})
    site = {"partition": "main", "account": "lab", "sbatch": {"mem": "1G", "exclusive": ""}, "srun": ["--mpi=none"]}
    facts = clusters.facts(tmp_path, ranks_per_node=2, slurm=site)

    asked = facts.slurm_of(recipe)

    assert facts.layout(recipe) == (2, 1)
    assert (asked.partition, asked.account) == ("big", "lab")
    assert asked.sbatch == {"mem": "5G", "exclusive": ""}
    assert asked.srun == ("--mpi=none", "--cpu-bind=none")


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", "sacctmgr"),
        ("Batch job submission failed: Invalid partition name specified", "sinfo -s"),
        ("Batch job submission failed: Requested node configuration is not available", "fewer or other nodes"),
        ("Batch job submission failed: Node count specification invalid", "fewer or other nodes"),
        ("Batch job submission failed: Invalid qos specification", "qos"),
        (
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "time_minutes",
        ),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("something new", "mend what sbatch names"),
    ],
)
def test_a_refusal_of_sbatch_comes_with_a_way_out(said: str, way_out: str) -> None:
    assert way_out in sbatch.advice(said)
