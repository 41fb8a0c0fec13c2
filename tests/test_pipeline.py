"""The pipeline as a person runs it, over stub ranks: what runs, why, and what an interruption leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import builders
import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state

ROOT = Path(__file__).parent.parent
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
VERBS = Path(__file__).with_name("pipeline_samebits.py")

pytestmark = pytest.mark.ranks


class Project:
    """A folder with the workflow, one recipe and a `samebits` whose ranks do nothing, as MODE says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Its own sources, too: an edit of samebits while tests run is no change of what is under test.
        for name in ("workflow", "profiles", "src"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "recipes").mkdir()
        (folder / "bin").mkdir()
        self.write_recipe()
        self.set_mode("ok")

    def write_recipe(self, **changes: object) -> Path:
        small = {"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}, "gates": ["repeatability", "resume"]}
        return builders.recipe_file(self.folder / "recipes", **{**small, **changes})

    def set_mode(self, mode: str) -> None:
        path = self.folder / "bin" / "samebits"
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {VERBS} {mode} "$@"\n')
        path.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SNAKEMAKE, "--profile", "profiles/default", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(self.folder / "src"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=300)
        return process.returncode, said

    def artifact(self, arm: str) -> Artifact:
        return Artifact(self.folder / "results" / "smoke" / "arms" / arm)

    def launches(self) -> dict[str, str]:
        outcomes = {arm: job_state.read_outcome(self.artifact(arm)) for arm in ("reference", "twin-1", "resumed")}
        return {arm: outcome.launch for arm, outcome in outcomes.items() if outcome}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("finished"))
    status, said = project.run()
    assert status == 0, said
    return project


@pytest.fixture
def finished(finished_once: Project, tmp_path: Path) -> Iterator[Project]:
    """A project whose pipeline has passed; changes are undone after the test."""
    kept = tmp_path / "kept"
    shutil.copytree(finished_once.folder, kept, symlinks=True)
    yield finished_once
    shutil.rmtree(finished_once.folder)
    kept.rename(finished_once.folder)


def will_run(said: str, rule: str) -> list[str]:
    """Arms for which a dry run shows the rule."""
    blocks = said.split(f"\nrule {rule}:")[1:]
    return sorted(block.partition("arm=")[2].split()[0] for block in blocks)


def test_a_dry_run_shows_every_arm_and_why() -> None:
    dry = subprocess.run(
        [SNAKEMAKE, "-n", "--forceall", "results/smoke/report.html"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert will_run(dry.stdout, "arm")[:2] == ["bare", "control-resume"]
    assert "reason:" in dry.stdout


def test_the_snakefile_is_a_table_of_contents() -> None:
    text = (ROOT / "Snakefile").read_text()
    assert len(text.splitlines()) <= 40
    assert "def " not in text


def test_the_whole_line_ends_in_a_report_and_a_verdict(finished: Project) -> None:
    results = finished.folder / "results" / "smoke"
    for name in ("report.html", "report.json", "junit.xml"):
        assert (results / name).exists()
    assert (results / "verdict.txt").read_text() == "verdict: pass\n"
    assert "done in" in (results / "logs" / "twin-1.run.log").read_text()


def test_what_is_finished_is_not_run_again(finished: Project) -> None:
    with (finished.folder / "recipes" / "smoke.yaml").open("a") as stream:
        stream.write("# a remark\n")
    status, said = finished.run()
    assert status == 0
    assert "Nothing to be done" in said


def test_a_changed_recipe_runs_its_arms_again_and_says_what_changed(finished: Project) -> None:
    before = finished.launches()
    finished.write_recipe(seed=7)
    _, dry = finished.run("-n")
    assert will_run(dry, "arm") == ["reference", "resumed", "twin-1"]
    assert "Params have changed" in dry
    status, said = finished.run("results/smoke/arms/reference/ran")
    assert status == 0
    assert "arm reference: runs: seed: 1234 -> 7" in said
    assert finished.launches()["reference"] != before["reference"]


def test_a_changed_gate_judges_again_and_runs_only_what_is_new(finished: Project) -> None:
    before = finished.launches()
    finished.write_recipe(gates=["repeatability", "resume", "observer"])
    _, dry = finished.run("-n")
    assert will_run(dry, "arm") == ["bare"]
    finished.write_recipe(gates=["repeatability"])
    _, dry = finished.run("-n")
    assert will_run(dry, "arm") == []
    assert "rule report" in dry
    assert finished.launches() == before


def test_an_arm_whose_folder_was_deleted_runs_again(finished: Project) -> None:
    shutil.rmtree(finished.artifact("twin-1").folder)
    _, dry = finished.run("-n")
    assert will_run(dry, "arm") == ["twin-1"]


def test_a_recipe_that_does_not_pass_fails_in_the_verdict_alone(finished: Project) -> None:
    (finished.folder / "results" / "smoke" / "fail").touch()
    (finished.folder / "results" / "smoke" / "verdict.txt").unlink()
    status, said = finished.run()
    assert status == 1
    assert "verdict: fail" in said
    assert (finished.folder / "results" / "smoke" / "report.html").exists()


def test_an_artifact_that_collect_refuses_stops_neither_rules_nor_report(finished: Project) -> None:
    (finished.artifact("twin-1").folder / "refuse").touch()
    (finished.artifact("twin-1").folder / "collected").unlink()
    status, said = finished.run("results/smoke/arms/twin-1/collected", "results/smoke/report.html")
    assert status == 0
    assert "rule report" in said
    assert "refused" in (finished.artifact("twin-1").folder / "collected").read_text()


def test_a_broken_recipe_breaks_only_itself_and_in_its_own_words(finished: Project) -> None:
    (finished.folder / "recipes" / "broken.yaml").write_text("name: [\n")
    assert finished.run("-n", "results/smoke/report.html")[0] == 0
    status, said = finished.run("-n")
    assert status == 1
    assert "recipes/broken.yaml, line 2: not YAML" in said
    assert "Traceback" not in said


def test_an_arm_that_fails_stops_the_pipeline_with_the_ranks_own_words(project: Project) -> None:
    project.set_mode("raise")
    status, said = project.run()
    assert status == 1
    assert "rank 1 on" in said
    assert "ValueError: the loss is a teapot" in said
    project.set_mode("ok")
    status, said = project.run("results/smoke/arms/reference/ran")
    assert status == 0, said
    assert "arm reference: runs: its last start failed" in said


@pytest.mark.parametrize("whole", [True, False], ids=["with its children", "alone"])
def test_a_killed_pipeline_finds_its_job_again_and_starts_no_second_one(project: Project, whole: bool) -> None:
    project.set_mode("slow")
    reference = project.artifact("reference")
    killed = project.start("results/smoke/arms/reference/ran")
    launching.wait_for(lambda: len(launching.starts(reference)) == 2)
    if whole:
        os.killpg(killed.pid, signal.SIGSTOP)  # so that no child sees another one die
        controllers = {int(path.name) for path in Path("/proc").glob("[0-9]*") if is_controller(path, reference)}
        for pid in group(killed.pid) - controllers:
            os.kill(pid, signal.SIGKILL)
        for pid in controllers:
            os.kill(pid, signal.SIGCONT)
    else:
        killed.kill()
    killed.wait()
    status, said = project.run("results/smoke/arms/reference/ran")
    assert status == 0, said
    assert "arm reference: re-attached to job" in said or "arm reference: kept" in said
    assert len(launching.starts(reference)) == 2
    assert killed.stdout is not None
    killed.stdout.close()


def test_ctrl_c_cancels_the_job_and_leaves_no_process(project: Project) -> None:
    project.set_mode("hang")
    process = project.start()
    reference = project.artifact("reference")
    launching.wait_for(lambda: len(launching.starts(reference)) == 2)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "arm reference: SIGINT: cancelled job" in said
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(reference))
    assert job_state.runner(reference) is None
    assert not group(process.pid)


def group(leader: int) -> set[int]:
    """Live processes of a process group."""
    members = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == leader and state != "Z":
            members.add(int(path.parent.name))
    return members


def is_controller(path: Path, artifact: Artifact) -> bool:
    try:
        words = (path / "cmdline").read_bytes()
    except OSError:
        return False
    return b"submitit" in words and os.fsencode(artifact.launch) in words
