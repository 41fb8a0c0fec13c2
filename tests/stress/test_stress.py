"""`samebits stress` from a recipe to a verdict, over ranks whose bits depend on what they see."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

import builders
import executors
import launching
from executors import Recording
from samebits.compare.results import to_json
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.launch.job_state import LaunchError
from samebits.launch.run_arms import run_arms
from samebits.plan import arms
from samebits.recipe import load
from samebits.recipe.load import RecipeError
from samebits.report import terminal
from samebits.stress import run as stressing
from samebits.stress.results import Stress

RANK = Path(__file__).parents[1].joinpath("dependent_rank.py")
FEW = ("hash-seed", "host-name", "delayed-rank", "batch-of-environment")


class Lab:
    """One recipe of four steps, and what was said of it."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.results = folder / "results"
        small = {"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}}
        self.recipe = builders.recipe_file(folder, **{**small, **changes})
        self.said = ""

    def stress(self, mode: str, only: tuple[str, ...] = FEW) -> Stress:
        echo, said = launching.echo()
        command = [sys.executable, str(RANK), mode]
        try:
            return stressing.stressed(self.recipe, self.results, echo=echo, only=only, command=command)
        finally:
            self.said = said.getvalue()

    def arms(self) -> set[str]:
        return {path.parent.name for path in (self.results / "smoke" / "stress").glob("*/plan.json")}

    def launches(self) -> dict[str, str]:
        found = [Artifact(path.parent) for path in (self.results / "smoke").glob("*/*/outcome.json")]
        return {artifact.folder.name: json.loads(artifact.outcome.read_text())["launch"] for artifact in found}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def effects(found: Stress) -> dict[str, str]:
    return {row.name: row.effect for row in found.variations}


def test_all_variations_together_change_nothing(lab: Lab) -> None:
    """Pins that they change on purpose, PYTHONHASHSEED and TRITON_CACHE_DIR among them, are no deviation."""
    found = lab.stress("never", only=())
    assert found.verdict == "pass", found.headline
    assert found.headline.startswith("9 variations together change nothing")
    assert set(effects(found).values()) == {"same"}
    assert lab.arms() == {"stress-all"}
    assert [run.differs for run in found.runs] == [False]
    assert "stress smoke: 9 variations; beside the reference 1 run where none matters, up to 12" in lab.said
    assert not list((lab.results / "smoke" / "stress").glob("*/stress/caches-*"))


@pytest.mark.parametrize("culprit", [FEW[0], FEW[-1]])
def test_the_one_that_matters_is_found_with_its_first_divergence(culprit: str, lab: Lab) -> None:
    found = lab.stress(f"with:{culprit}")
    assert (found.verdict, found.culprits) == ("fail", (culprit,))
    assert effects(found)[culprit] == "differs"
    assert {effects(found)[name] for name in FEW if name != culprit} == {"same"}
    assert effects(found)["contention"] == "not asked"
    assert f"{culprit} matters: with {culprit} it differs in 3 of 3 runs, with no variation in 0 of 3 runs" in (
        found.headline
    )
    assert found.headline.endswith("the other 3 together change nothing")
    assert found.comparison is not None
    assert found.comparison.divergence is not None
    first = found.comparison.divergence.ranks[0]
    assert (first.rank, first.step, first.first.item) == (1, 3, "parameter:w0")
    assert found.comparison.candidate_arm == culprit


def test_two_that_matter_only_together_are_named_together(lab: Lab) -> None:
    found = lab.stress("with:hash-seed+batch-of-environment")
    assert (found.verdict, found.culprits) == ("fail", ("hash-seed", "batch-of-environment"))
    assert found.headline.startswith("hash-seed and batch-of-environment matter, and only together: with")
    assert "with batch-of-environment in 0 of 3 runs" in found.headline


def test_what_differs_without_any_variation_is_said_to(lab: Lab) -> None:
    found = lab.stress("always")
    assert found.verdict == "fail"
    assert found.headline.startswith("differs without any variation (1 of 1 run): no variation is to blame")
    assert "repeatability" in found.headline
    assert set(effects(found).values()) == {"not told apart", "not asked"}


def test_what_is_not_seen_again_is_inconclusive_and_says_how_often_it_was_tried(lab: Lab) -> None:
    found = lab.stress("at-times:hash-seed")
    assert found.verdict == "inconclusive"
    assert found.culprits == ("hash-seed",)
    assert "with hash-seed it differs in 2 of 3 runs, without any variation in 0 of 1 run" in found.headline
    assert effects(found)["hash-seed"] == "differs at times"


def test_a_pin_that_no_variation_changes_makes_it_invalid(lab: Lab) -> None:
    found = lab.stress("pin:hash-seed")
    assert found.verdict == "invalid"
    assert "libraries.libm.so" in found.headline
    assert found.comparison is not None
    assert [row.pin for row in found.comparison.deviations] == ["libraries.libm.so"]


def test_what_is_not_healthy_is_no_pass(lab: Lab) -> None:
    found = lab.stress("nan:hash-seed")
    assert found.verdict == "inconclusive"
    assert "lm loss is nan from step 3 on" in found.headline


def test_a_run_that_does_not_finish_is_named(lab: Lab) -> None:
    with pytest.raises(LaunchError, match=r"(?s)rank \d .*ValueError: the loss is a teapot"):
        lab.stress("fails:hash-seed")


def test_finished_runs_are_used_again_whatever_is_asked_next(lab: Lab) -> None:
    first = lab.stress("with:hash-seed")
    before = lab.launches()
    assert lab.stress("with:hash-seed") == first
    assert lab.launches() == before
    again = lab.stress("with:hash-seed", only=("hash-seed",))
    assert again.culprits == ("hash-seed",)
    assert lab.launches() == before


def test_what_the_recipe_leaves_no_room_for_is_not_applicable(tmp_path: Path) -> None:
    lab = Lab(tmp_path, determinism={"environment": {"PYTHONHASHSEED": "0"}})
    found = lab.stress("never")
    assert found.verdict == "pass", found.headline
    row = found.variations[0]
    assert (row.name, row.effect) == ("hash-seed", "not applicable")
    assert "the recipe itself sets PYTHONHASHSEED" in row.how
    assert "3 variations together change nothing; not applicable: hash-seed" in found.headline
    assert lab.stress("never", only=("hash-seed",)).verdict == "inconclusive"


def test_what_no_rank_brought_about_is_not_applicable_and_proves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samebits.fingerprint.conditions.read", lambda _: [])
    found = lab.stress("never")
    assert found.verdict == "inconclusive"
    assert {effects(found)[name] for name in FEW} == {"not applicable"}
    assert "no rank says that it was in force" in found.variations[0].how


def test_a_name_that_is_no_variation_is_refused(lab: Lab) -> None:
    with pytest.raises(RecipeError, match=r"--only: 'hashseed' is no variation; use hash-seed, addresses"):
        lab.stress("never", only=("hashseed",))


@pytest.mark.parametrize(("placement", "on"), [("same-nodes", ("n5", "n3")), ("any", ())])
def test_where_the_recipe_wants_the_same_nodes_stress_runs_follow_the_reference(
    tmp_path: Path, placement: str, on: tuple[str, ...]
) -> None:
    cluster = {"nodes": 2, "ranks_per_node": 1, "placement": placement}
    lab = Lab(tmp_path, cluster=cluster)
    executor = Recording(lambda start: executors.ends_well(start, nodes=("n5", "n3")))
    echo, _ = launching.echo()
    with pytest.raises(ArtifactError):  # what these jobs leave is no evidence
        stressing.stressed(lab.recipe, lab.results, echo=echo, only=("contention",), executor=executor)
    plan = arms.plan(load.load(lab.recipe), "reference", lab.results)
    varied = dataclasses.replace(plan, arm="contention", keep_checkpoints=False, stress=("contention",))
    run_arms([(varied, Artifact(lab.results / "smoke" / "stress" / "contention"))], echo=echo, executor=executor)
    assert [request.on for request in executor.requests] == [(), on]


def test_json_and_screen_say_the_same(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    found = lab.stress("with:hash-seed")
    body = json.loads(to_json(found))
    assert body["culprits"] == ["hash-seed"]
    assert body["runs"][0] == {
        "arm": "hash-seed.host-name.delayed-rank.batch-of-environment",
        "variations": list(FEW),
        "differs": True,
    }
    terminal.show(terminal.stress_text(found))
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 45
    assert shown.startswith("FAIL  hash-seed matters")
    assert "parameter:w0 at step 3 on rank 1 (origin)" in shown
    assert "loader-threads" in shown
