"""`snakemake --profile profiles/slurm` against a real Slurm: the whole way, in a pinned container, and what an
interruption leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import clusters
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.recipe.image import file_digest

from .arms import until
from .cluster import Cluster

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
VERBS = ROOT / "tests" / "pipeline_samebits.py"
SITE: dict[str, Any] = {
    **{"poll_seconds": 0.5, "interface": "eth0"},
    "slurm": {"partition": "main", "sbatch": {"mem": "3000M"}},
}


class Project:
    """A clone's folder with one recipe, and the profile of the repository for a site that is the test cluster."""

    def __init__(self, folder: Path, site: dict[str, Any] | None = None, **recipe: Any) -> None:
        self.folder = folder
        for name in ("workflow", "profiles", "src", "data"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "recipes").mkdir()
        body = yaml.safe_load((ROOT / "recipes" / "smoke.yaml").read_text().replace("1e-", "1.0e-"))
        (folder / "recipes" / "smoke.yaml").write_text(yaml.safe_dump({**body, **recipe}))
        clusters.cluster_file(folder / "profiles" / "slurm", **{**SITE, **(site or {})})

    def of_stubs(self, mode: str) -> Project:
        """Ranks that compute nothing, and verbs that judge nothing."""
        path = self.folder / "bin" / "samebits"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {VERBS} {mode} "$@"\n')
        path.chmod(0o755)
        return self

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        path = [str(self.folder / "bin"), str(BIN), os.environ["PATH"]]
        return subprocess.Popen(
            [BIN / "snakemake", "--profile", "profiles/slurm", *arguments],
            cwd=self.folder,
            env={**os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(self.folder / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, seconds: float = 500) -> tuple[int, str]:
        process = self.start(*arguments)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, said

    def samebits(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src")}
        return subprocess.run(
            [BIN / "samebits", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def artifact(self, arm: str = "reference") -> Artifact:
        return Artifact(self.folder / "results" / "smoke" / "arms" / arm)

    def log(self, arm: str) -> str:
        path = self.folder / "results" / "smoke" / "logs" / f"{arm}.run.log"
        return path.read_text() if path.exists() else ""

    def nodes(self, arm: str) -> tuple[str, ...]:
        outcome = job_state.read_outcome(self.artifact(arm))
        assert outcome is not None
        return outcome.nodes

    def fingerprint(self, arm: str = "reference") -> str:
        done = self.samebits("collect", str(self.artifact(arm).folder), "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["run_fingerprint"])


def two_nodes(**more: object) -> dict[str, Any]:
    return {"cluster": {"nodes": 2, "ranks_per_node": 1, **more}}


def jobs_of(cluster: Cluster, arm: str, since: int = 0) -> list[str]:
    return [entry.id for entry in cluster.history()[since:] if entry.name.startswith(f"smoke-{arm}-")]


def test_a_recipe_passes_in_a_pinned_container_on_nodes_of_its_own_for_the_twin(
    tmp_path: Path, cluster: Cluster, cpu_image: Path
) -> None:
    container = {"image": f"{cpu_image.name}@{file_digest(cpu_image)}"}
    site = {"engine": "charliecloud", "images": str(cpu_image.parent)}
    project = Project(tmp_path, site, container=container, **two_nodes(placement="other-nodes"))
    before = len(cluster.history())

    status, said = project.run("results/smoke/report.html")
    assert status == 0, said
    verdict = project.samebits("verdict", "results/smoke")
    report = json.loads((tmp_path / "results" / "smoke" / "report.json").read_text())

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert {gate["gate"]: gate["verdict"] for gate in report["gates"]} == dict.fromkeys(
        ("repeatability", "resume", "control", "observer"), "pass"
    )
    assert not set(project.nodes("reference")) & set(project.nodes("twin-1"))
    assert "ran on none of the reference's nodes" in report["scope"]
    assert "across allocations" in report["scope"]
    pins = {pin["pin"]: pin["values"] for pin in report["pins"]}
    assert pins["software.image"] == {container["image"].partition("@")[2]: "0-1"}
    # Each arm is one job; collecting and the report are jobs of Snakemake's own.
    for arm in ("reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare"):
        assert len(jobs_of(cluster, arm, before)) == 1
    assert len(cluster.history()) - before >= 6 + 6 + 1

    # The same recipe, here and there, with the image and without.
    plain = Project(tmp_path_of(tmp_path, "plain"))
    for where in ([], ["--cluster", "profiles/slurm/cluster.yaml"]):
        results = f"results-{len(where)}"
        done = plain.samebits("run", "recipes/smoke.yaml", "reference", "--results", results, *where)
        assert done.returncode == 0, done.stderr
    fingerprints = {
        json.loads(plain.samebits("collect", f"results-{number}/smoke/arms/reference", "--json").stdout)[
            "run_fingerprint"
        ]
        for number in (0, 2)
    }
    assert fingerprints == {project.fingerprint()}


def tmp_path_of(folder: Path, name: str) -> Path:
    path = folder.with_name(f"{folder.name}-{name}")
    path.mkdir()
    return path


def test_a_killed_pipeline_submits_no_second_reference(tmp_path: Path, cluster: Cluster) -> None:
    project, before = Project(tmp_path, **two_nodes()).of_stubs("wait"), len(cluster.history())
    first = project.start()
    until(project.artifact().progress.exists, 90)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = project.start()
    until(lambda: "re-attached" in project.log("reference"), 90)
    (project.artifact().folder.parent / "go").touch()
    said, _ = second.communicate(timeout=300)

    assert second.returncode == 0, said
    assert len(jobs_of(cluster, "reference", before)) == 1
    record = job_state.read_record(project.artifact())
    assert record is not None
    assert [record.job] == jobs_of(cluster, "reference", before)


def test_an_interrupted_pipeline_cancels_its_jobs_and_says_which(tmp_path: Path, cluster: Cluster) -> None:
    project = Project(tmp_path, **two_nodes()).of_stubs("hang")
    process = project.start()
    until(project.artifact().progress.exists, 90)
    record = job_state.read_record(project.artifact())
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=200)

    assert process.returncode != 0
    assert record is not None
    assert f"cancelled job {record.job}; nothing of it runs" in said
    until(lambda: not cluster.jobs(), 30)
    assert cluster.processes() == []


def test_a_second_pipeline_on_the_same_results_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    project = Project(tmp_path, **two_nodes()).of_stubs("wait")
    first, before = project.start(), len(cluster.history())
    until(project.artifact().progress.exists, 90)
    status, said = project.run()
    (project.artifact().folder.parent / "go").touch()
    first.communicate(timeout=300)

    assert status == 1
    assert f"results: another pipeline works here (process {first.pid} on " in said
    assert "Traceback" not in said
    assert first.returncode == 0
    assert len(jobs_of(cluster, "reference", before)) == 1


def test_arms_that_want_the_same_nodes_run_in_one_allocation(tmp_path: Path, cluster: Cluster) -> None:
    project, before = Project(tmp_path, **two_nodes(placement="same-nodes")).of_stubs("ok"), len(cluster.history())
    status, said = project.run()

    assert status == 0, said
    arms = ("reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare")
    records = [job_state.read_record(project.artifact(arm)) for arm in arms]
    assert len({record.job for record in records if record}) == 1
    assert len([entry for entry in cluster.history()[before:] if entry.name.startswith("smoke-")]) == 1
    assert len({project.nodes(arm) for arm in arms}) == 1
    # What alone is missing runs on the reference's nodes again.
    shutil.rmtree(project.artifact("twin-1").folder)
    status, said = project.run()
    assert status == 0, said
    assert project.nodes("twin-1") == project.nodes("reference")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"container": {"image": "samebits-cpu.sqfs:latest"}}, "samebits image lock"),
        ({"container": {"image": "nvidia/pytorch:25.06"}}, "samebits image lock"),
        ({"container": {"image": f"other.sqfs@sha256:{'0' * 64}"}}, "sha256"),
        ({"container": {"image": f"absent.sqfs@sha256:{'0' * 64}"}}, "absent.sqfs"),
        (
            {
                "determinism": {
                    "deterministic_algorithms": True,
                    "fill_uninitialized_memory": False,
                    "environment": {"NCCL_ALGO": "Tree"},
                }
            },
            "NCCL_ALGO",
        ),
        ({"cluster": {"nodes": 3, "ranks_per_node": 1}}, "parallel.world"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_anything_is_submitted(
    tmp_path: Path, cluster: Cluster, change: dict[str, Any], message: str
) -> None:
    before = len(cluster.history())
    (tmp_path / "other.sqfs").write_bytes(b"not that image")
    project = Project(
        tmp_path, {"engine": "charliecloud", "images": str(tmp_path), "verify_image": "first-node"}, **change
    )
    done = project.samebits("run", "recipes/smoke.yaml", "reference", "--cluster", "profiles/slurm/cluster.yaml")
    status, said = project.run("results/smoke/report.html", seconds=120)

    assert done.returncode in (2, 4)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert status != 0
    assert message in said
    assert len(cluster.history()) == before
    assert not (tmp_path / "results" / "smoke" / "report.json").exists()


def test_twins_run_anywhere_where_no_other_nodes_are_and_nothing_is_claimed(tmp_path: Path, cluster: Cluster) -> None:
    split = {"world": 3, "data": 3, "expert": 1, "tensor": 1, "sequence": False, "pipeline": 1, "context": 1}
    project = Project(
        tmp_path,
        parallel=split,
        data={"source": "stream", "stream_seed": 1, "micro_batch": 1, "global_batch": 6},
        cluster={"nodes": 3, "ranks_per_node": 1, "placement": "other-nodes"},
        gates=["repeatability", "control"],
    ).of_stubs("ok")
    status, said = project.run()

    assert status == 0, said
    told = r"arm twin-1: cannot avoid n\d, n\d, n\d, the reference's nodes \(.*not available\), and runs on any"
    assert re.search(told, said)


def test_what_determinism_costs_is_measured_inside_one_allocation(tmp_path: Path, cluster: Cluster) -> None:
    wanted = {"limit_percent": 50.0, "blocks": 1, "steps": 4, "warm_up": 2}
    project = Project(tmp_path, **two_nodes(), gates=["overhead"], overhead=wanted)
    before = len(cluster.history())
    status, said = project.run("results/smoke/report.html")
    assert status == 0, said
    verdict = project.samebits("verdict", "results/smoke")
    report = json.loads((tmp_path / "results" / "smoke" / "report.json").read_text())
    (cost,) = report["costs"]

    # A rehearsal and four runs, one job; one block is too little to decide by, and says so.
    (experiment,) = [entry for entry in cluster.history()[before:] if entry.name.startswith("smoke-rehearsal-")]
    assert [run["arm"] for run in cost["runs"]] == [
        *("rehearsal", "baseline-1", "deterministic-1", "deterministic-2", "baseline-2")
    ]
    assert (cost["problems"], cost["deviations"], cost["failures"]) == ([], [], [])
    assert (cost["job"], cost["clock"], cost["ranks"]) == (experiment.id, "host", 2)
    assert all(run["median"] > 0 for run in cost["runs"])
    baseline, deterministic = cost["findings"]["settings"]
    assert (baseline["in_force"]["NCCL_ALGO"], deterministic["in_force"]["NCCL_ALGO"]) == ("not set", "Ring")
    assert verdict.returncode == 3
    assert "at least 4 are needed" in report["gates"][0]["explanation"]
    # What stands is not made again.
    assert project.run("results/smoke/report.html")[0] == 0
    again = [entry for entry in cluster.history()[before:] if entry.name.startswith("smoke-rehearsal-")]
    assert [entry.id for entry in again] == [experiment.id]
