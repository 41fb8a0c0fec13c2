"""What the Snakefile asks of samebits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import builders
from samebits import workflow


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with recipes/smoke.yaml."""
    (tmp_path / "recipes").mkdir()
    builders.recipe_file(tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    workflow._recipe.cache_clear()
    return tmp_path


def of(arm: str = "reference", recipe: str = "smoke") -> SimpleNamespace:
    return SimpleNamespace(recipe=recipe, arm=arm)


def change(project: Path, **changes: object) -> None:
    builders.recipe_file(project / "recipes", **changes)
    workflow._recipe.cache_clear()


def test_recipes_are_listed_without_being_read(project: Path) -> None:
    (project / "recipes" / "broken.yaml").write_text("[")
    assert workflow.recipes() == ["broken", "smoke"]


def test_a_report_needs_every_arm_collected() -> None:
    assert workflow.collected(of()) == [
        f"results/smoke/arms/{arm}/collected"
        for arm in ("reference", "twin-1", "resumed", "control-ulp", "control-resume", "bare")
    ]


def test_everything_is_every_arm_and_verdict_of_every_recipe(project: Path) -> None:
    builders.recipe_file(project / "recipes", name="other", gates=["repeatability"])
    wanted = workflow.everything(of())
    assert wanted[:2] == ["results/other/arms/reference/collected", "results/other/arms/twin-1/collected"]
    assert wanted[-2:] == ["results/other/verdict.txt", "results/smoke/verdict.txt"]


def test_only_arms_that_restore_need_the_reference() -> None:
    assert workflow.needs(of("twin-1")) == []
    assert workflow.needs(of("resumed")) == ["results/smoke/arms/reference/ran"]


def test_a_comment_changes_no_key(project: Path) -> None:
    before = workflow.arm_key(of()), workflow.recipe_key(of())
    with (project / "recipes" / "smoke.yaml").open("a") as stream:
        stream.write("# a remark\n")
    workflow._recipe.cache_clear()
    assert (workflow.arm_key(of()), workflow.recipe_key(of())) == before


def test_a_number_changes_the_keys_of_arm_and_report(project: Path) -> None:
    before = workflow.arm_key(of()), workflow.recipe_key(of())
    change(project, seed=7)
    assert workflow.arm_key(of()) != before[0]
    assert workflow.recipe_key(of()) != before[1]


def test_a_gate_changes_the_key_of_the_report_alone(project: Path) -> None:
    before = workflow.arm_key(of()), workflow.recipe_key(of())
    change(project, gates=["repeatability"])
    assert workflow.arm_key(of()) == before[0]
    assert workflow.recipe_key(of()) != before[1]


def test_an_arm_asks_for_a_core_per_rank_and_thread(project: Path) -> None:
    change(project, launch={"threads": 3})
    assert workflow.threads({})(of()) == 6


def test_an_arm_that_is_a_cluster_job_keeps_no_core_of_this_machine_busy(project: Path) -> None:
    change(project, launch={"threads": 3})
    assert workflow.threads({"cluster": "cluster.yaml"})(of()) == 1


def test_the_cluster_file_of_the_profile_reaches_the_verb() -> None:
    assert workflow.cluster_option({}) == ""
    assert workflow.cluster_option({"cluster": "my profiles/c.yaml"}) == "--cluster 'my profiles/c.yaml'"


def test_a_second_pipeline_on_the_same_results_is_refused_and_names_the_first(project: Path) -> None:
    code = "from samebits import workflow; workflow.hold(); print('held', flush=True); input()"
    first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, input="\n")
    first.kill()
    first.communicate()
    third = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, input="\n")

    assert second.returncode == 1
    assert f"results: another pipeline works here (process {first.pid} on " in second.stderr
    assert "Traceback" not in second.stderr
    assert third.returncode == 0, "a killed pipeline holds nothing"


def test_the_reference_goes_first() -> None:
    priorities = [workflow.priority(of(arm)) for arm in ("reference", "twin-1", "resumed", "bare")]
    assert priorities == sorted(priorities, reverse=True)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (of(recipe="other"), r"recipes/other\.yaml: no such file"),
        (of(arm="twin-9"), r"smoke: arm is 'twin-9', must be an arm of this recipe"),
    ],
)
def test_what_cannot_be_answered_ends_with_the_recipes_own_message(wanted: SimpleNamespace, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        workflow.arm_key(wanted)


def test_rules_find_the_samebits_beside_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/somewhere")
    workflow.add_to_path()
    first, last = os.environ["PATH"].split(os.pathsep)
    assert first == "/somewhere"
    assert (Path(last) / "python").exists()


OVERHEAD = {"limit_percent": 5.0, "blocks": 4, "steps": 10, "warm_up": 2}


def timing(experiment: str = "overhead") -> SimpleNamespace:
    return SimpleNamespace(recipe="smoke", experiment=experiment)


def test_a_report_needs_the_experiments_that_its_recipe_asks_for(project: Path) -> None:
    change(project, gates=["overhead"], overhead={**OVERHEAD, "also": ["capture"]})
    wanted = ["results/smoke/overhead/collected", "results/smoke/capture/collected"]
    assert workflow.collected(of()) == wanted
    assert workflow.everything(of()) == [*wanted, "results/smoke/verdict.txt"]
    change(project, gates=["observer", "overhead"], overhead=OVERHEAD)
    arms = [f"results/smoke/arms/{arm}/collected" for arm in ("reference", "bare")]
    assert workflow.collected(of()) == [*arms, "results/smoke/overhead/collected"]


def test_what_only_judges_an_experiment_changes_its_key_not(project: Path) -> None:
    change(project, gates=["overhead"], overhead=OVERHEAD)
    before, report = workflow.experiment_key(timing()), workflow.recipe_key(of())
    change(project, gates=["overhead"], overhead={**OVERHEAD, "limit_percent": 50.0})
    assert workflow.experiment_key(timing()) == before
    assert workflow.recipe_key(of()) != report
    change(project, gates=["overhead"], overhead={**OVERHEAD, "blocks": 5})
    assert workflow.experiment_key(timing()) != before


def test_a_finished_experiment_that_lost_a_run_is_made_again(project: Path) -> None:
    change(project, gates=["overhead"], overhead=OVERHEAD)
    before, folder = workflow.experiment_key(timing()), project / "results" / "smoke" / "overhead"
    for run in ("rehearsal", *(f"{name}-{number}" for name in ("baseline", "deterministic") for number in range(1, 9))):
        (folder / run).mkdir(parents=True)
    assert workflow.experiment_key(timing()) == before
    (folder / "ran").touch()
    assert workflow.experiment_key(timing()) == before
    (folder / "deterministic-3").rmdir()
    assert workflow.experiment_key(timing()) != before


def test_while_time_is_measured_nothing_else_runs_on_this_machine() -> None:
    assert workflow.all_threads({}, 16) == 16
    assert workflow.all_threads({}, None) == 1
    assert workflow.all_threads({"cluster": "cluster.yaml"}, 16) == 1


def test_each_experiment_has_its_option_for_the_verb() -> None:
    options = {
        experiment: workflow.experiment_option(timing(experiment)) for experiment in workflow.EXPERIMENT.split("|")
    }
    assert options == {"overhead": "", "attribution": "--attribute", "capture": "--capture", "null": "--null"}
