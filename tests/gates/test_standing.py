"""A verdict holds while the report speaks of the artifacts beside it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

import builders
import evidence
import timed
from samebits.compare.collect import collect
from samebits.fingerprint.paths import ArtifactError
from samebits.gates.judge import check_standing, judge
from samebits.gates.judgement import Judgement
from samebits.spec.plan import Plan


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Judgement, Path]:
    folder = tmp_path / "smoke"
    for arm in ("reference", "twin-1"):
        evidence.written(folder / "arms" / arm, arm=arm)
    judgement = judge(builders.recipe(gates=["repeatability"]), tmp_path)
    return judgement, folder


def test_a_fresh_report_stands(judged: tuple[Judgement, Path]) -> None:
    check_standing(*judged)


def test_a_report_of_an_arm_that_is_gone_is_stale(judged: tuple[Judgement, Path]) -> None:
    judgement, folder = judged
    shutil.rmtree(folder / "arms" / "twin-1")
    with pytest.raises(ArtifactError, match="twin-1"):
        check_standing(judgement, folder)


def test_a_report_of_another_run_is_stale(judged: tuple[Judgement, Path]) -> None:
    judgement, folder = judged
    arms = tuple(dataclasses.replace(arm, run_fingerprint="sb1-other") for arm in judgement.arms)
    with pytest.raises(ArtifactError, match="sb1-other"):
        check_standing(dataclasses.replace(judgement, arms=arms), folder)


def test_a_report_in_a_folder_that_was_moved_stands(judged: tuple[Judgement, Path]) -> None:
    judgement, folder = judged
    check_standing(judgement, folder.rename(folder.with_name("other")))


def test_controls_alone_prove_nothing(tmp_path: Path) -> None:
    assert judge(builders.recipe(gates=["control"]), tmp_path).verdict != "pass"


@pytest.mark.parametrize(
    "outcome", ['{"ok": false, "message": "killed"}', '{"ok": true, "message": "", "launch": "x"}']
)
def test_an_arm_that_its_launcher_disowns_after_collect_is_no_evidence(
    judged: tuple[Judgement, Path], outcome: str
) -> None:
    _, folder = judged
    (folder / "arms" / "twin-1" / "outcome.json").write_text(outcome)
    assert judge(builders.recipe(gates=["repeatability"]), folder.parent).gates[0].verdict == "inconclusive"


def test_a_report_of_runs_that_were_made_again_is_stale(tmp_path: Path) -> None:
    recipe = timed.recipe()
    judgement = judge(recipe, timed.write(tmp_path, recipe, cost=3.0))
    folder = tmp_path / recipe.name
    check_standing(judgement, folder)
    run = folder / "overhead" / "deterministic-2"
    plan = Plan.from_json((run / "plan.json").read_text())
    shutil.rmtree(run)
    timed.write_run(run, plan, 0.1, launch="another-3")
    collect(run)
    with pytest.raises(ArtifactError, match="is deterministic-2 of start another, the report was made of another run"):
        check_standing(judgement, folder)
    shutil.rmtree(run)
    with pytest.raises(ArtifactError, match="deterministic-2"):
        check_standing(judgement, folder)


def test_a_report_of_runs_that_changed_places_or_times_is_stale(tmp_path: Path) -> None:
    recipe = timed.recipe()
    judgement = judge(recipe, timed.write(tmp_path, recipe, cost=3.0))
    folder = tmp_path / recipe.name
    first, second, between = (folder / "overhead" / name for name in ("baseline-1", "deterministic-1", "between"))
    first.rename(between)
    second.rename(first)
    between.rename(second)
    with pytest.raises(ArtifactError, match="baseline-1: is deterministic-1 of start"):
        check_standing(judgement, folder)
    second.rename(between)
    first.rename(second)
    between.rename(first)
    check_standing(judgement, folder)
    (first / "clocks.npy").unlink()
    with pytest.raises(ArtifactError, match=r"clocks\.npy"):
        check_standing(judgement, folder)
