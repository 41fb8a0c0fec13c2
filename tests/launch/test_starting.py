"""Which arms are started together, as what, and on which nodes; nothing runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import builders
import clusters
import executors
import launching
from executors import Recording
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.arm import run_arm
from samebits.launch.job_state import JobRecord, LaunchError, Outcome
from samebits.launch.start import Start
from samebits.launch.submit import LocalExecutor
from samebits.plan import arms
from samebits.spec.plan import Plan

ARMS = ["reference", "twin-1", "resumed"]


def plans(results: Path, **changes: Any) -> list[Plan]:
    """ARMS, of four steps."""
    small = {"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}, "gates": ["repeatability", "resume"]}
    return arms.plans(builders.recipe(**{**small, **changes}), results)


def on_cluster(results: Path, placement: str) -> list[Plan]:
    return plans(results, cluster={"nodes": 2, "ranks_per_node": 1, "placement": placement})


def artifact(results: Path, arm: str) -> Artifact:
    return Artifact(arms.artifact_folder(results, "smoke", arm))


def run(
    executor: Recording, results: Path, wanted: list[Plan], arm: str = "reference", *, together: bool = True
) -> tuple[Outcome, str]:
    """How one of the arms ended, and what was said."""
    plan = next(plan for plan in wanted if plan.arm == arm)
    echo, said = launching.echo()
    outcome = run_arm(plan, artifact(results, arm), echo=echo, executor=executor, together=wanted if together else ())
    return outcome, said.getvalue()


def record(results: Path, arm: str) -> JobRecord:
    found = job_state.read_record(artifact(results, arm))
    assert found is not None
    return found


def fails(start: Start) -> None:
    executors.ends(start.artifact, start.launch, ok=False)


def test_arms_that_must_run_are_one_job_in_their_order(tmp_path: Path) -> None:
    executor = Recording()
    outcome, said = run(executor, tmp_path, plans(tmp_path))

    assert outcome.ok
    assert executor.arms() == [ARMS]
    assert "arm twin-1: job 7, 2 ranks, steps 1-4" in said
    assert "arm resumed: job 7, 2 ranks, steps 3-4" in said


def test_an_arm_of_its_own_is_a_job_of_its_own(tmp_path: Path) -> None:
    executor = Recording()
    for arm in ARMS:
        run(executor, tmp_path, plans(tmp_path), arm, together=False)
    assert executor.arms() == [["reference"], ["twin-1"], ["resumed"]]
    assert all(re.fullmatch("[0-9a-f]{32}", request.starts[0].launch) for request in executor.requests)
    assert record(tmp_path, "resumed").restored == record(tmp_path, "reference").launch


def test_arms_of_one_job_are_numbered_and_say_where_its_files_are(tmp_path: Path) -> None:
    run(Recording(), tmp_path, plans(tmp_path))
    launches = [record(tmp_path, arm).launch for arm in ARMS]
    base, _, _ = launches[0].partition("-")
    assert launches == [f"{base}-{number}" for number in range(3)]
    assert {record(tmp_path, arm).lead for arm in ARMS} == {"reference"}


def test_an_arm_restored_from_one_of_the_same_job_says_from_which_start(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    assert record(tmp_path, "resumed").restored == record(tmp_path, "reference").launch
    assert record(tmp_path, "twin-1").restored is None
    # Hence the next look finds nothing to do.
    for arm in ARMS:
        _, said = run(executor, tmp_path, plans(tmp_path), arm)
        assert f"arm {arm}: kept" in said
    assert executor.arms() == [ARMS]


def test_plan_and_record_lie_there_before_the_job_and_its_id_after(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    assert [seen and seen.job for seen in executor.submitted] == [None, None, None]
    assert [seen and seen.launch for seen in executor.submitted] == [record(tmp_path, arm).launch for arm in ARMS]
    assert {record(tmp_path, arm).job for arm in ARMS} == {"7"}
    assert [Plan.from_json(artifact(tmp_path, arm).plan.read_text()) for arm in ARMS] == plans(tmp_path)


def test_an_arm_that_stands_is_not_started_with_the_others(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path), together=False)
    run(executor, tmp_path, plans(tmp_path), "twin-1")
    assert executor.arms() == [["reference"], ["twin-1", "resumed"]]
    assert record(tmp_path, "twin-1").lead == "twin-1"
    assert record(tmp_path, "resumed").restored == record(tmp_path, "reference").launch


def test_an_arm_starts_again_with_the_one_whose_checkpoint_it_starts_from(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    artifact(tmp_path, "reference").fingerprint(0).unlink()
    run(executor, tmp_path, plans(tmp_path))
    assert executor.arms()[1] == ["reference", "resumed"]
    assert record(tmp_path, "resumed").restored == record(tmp_path, "reference").launch


def test_an_arm_that_ran_elsewhere_runs_again_and_says_where(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    executor.where = "2 nodes of a cluster"
    _, said = run(executor, tmp_path, plans(tmp_path))
    assert "arm reference: runs: it ran on nowhere, and is to run on 2 nodes of a cluster" in said
    assert executor.arms() == [ARMS, ARMS]


def test_arms_that_run_in_another_job_are_left_alone(tmp_path: Path) -> None:
    executor = Recording(fails)
    run(executor, tmp_path, plans(tmp_path))
    executor.live = {artifact(tmp_path, "twin-1").folder}
    before = record(tmp_path, "twin-1")
    run(executor, tmp_path, plans(tmp_path))
    assert executor.arms()[1] == ["reference", "resumed"]
    assert record(tmp_path, "twin-1") == before


def test_every_arm_of_a_live_job_is_waited_for_there(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    executor.live = {artifact(tmp_path, arm).folder for arm in ARMS}
    for arm in ARMS:
        outcome, said = run(executor, tmp_path, plans(tmp_path), arm)
        assert outcome.ok
        assert f"arm {arm}: re-attached to job 7" in said
    assert executor.arms() == [ARMS]


@pytest.mark.parametrize(("arm", "on"), [("twin-1", ("n5", "n3")), ("resumed", ("n5", "n3"))])
def test_where_the_recipe_wants_the_same_nodes_arms_follow_the_reference(
    tmp_path: Path, arm: str, on: tuple[str, ...]
) -> None:
    executor = Recording(lambda start: executors.ends_well(start, nodes=("n5", "n3")))
    wanted = on_cluster(tmp_path, "same-nodes")
    run(executor, tmp_path, wanted, together=False)
    run(executor, tmp_path, wanted, arm, together=False)
    assert [(request.on, request.off) for request in executor.requests] == [((), ()), (on, ())]


@pytest.mark.parametrize(("arm", "off"), [("twin-1", ("n5", "n3")), ("resumed", ())])
def test_where_the_recipe_wants_other_nodes_twins_avoid_the_references(
    tmp_path: Path, arm: str, off: tuple[str, ...]
) -> None:
    executor = Recording(lambda start: executors.ends_well(start, nodes=("n5", "n3")))
    wanted = on_cluster(tmp_path, "other-nodes")
    run(executor, tmp_path, wanted, together=False)
    run(executor, tmp_path, wanted, arm, together=False)
    assert [(request.on, request.off) for request in executor.requests] == [((), ()), ((), off)]


@pytest.mark.parametrize("placement", ["same-nodes", "any"])
def test_nodes_are_free_where_the_reference_runs_in_the_same_job_or_nobody_minds(
    tmp_path: Path, placement: str
) -> None:
    executor = Recording()
    wanted = on_cluster(tmp_path, placement)
    run(executor, tmp_path, wanted)
    artifact(tmp_path, "reference").fingerprint(0).unlink()
    run(executor, tmp_path, wanted)
    if placement == "any":
        artifact(tmp_path, "twin-1").fingerprint(0).unlink()
        run(executor, tmp_path, wanted, "twin-1")
    assert {(request.on, request.off) for request in executor.requests} == {((), ())}


def test_a_refused_job_leaves_no_folder_and_what_was_there_is_superseded(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    earlier = {arm: record(tmp_path, arm) for arm in ARMS}
    executor.refusal = "sbatch refused the job: Invalid account"
    with pytest.raises(LaunchError, match="sbatch refused the job: Invalid account"):
        run(executor, tmp_path, plans(tmp_path, seed=7))

    for arm in ARMS:
        assert not artifact(tmp_path, arm).folder.exists()
        aside = Artifact(tmp_path / "smoke" / "superseded" / arm)
        assert job_state.read_record(aside) == earlier[arm]
        assert aside.fingerprint(1).read_bytes() == b"whole"


def test_a_missing_checkpoint_is_said_before_anything_makes_way(tmp_path: Path) -> None:
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    artifact(tmp_path, "reference").checkpoint(2).rmdir()
    artifact(tmp_path, "resumed").fingerprint(0).unlink()
    before = record(tmp_path, "resumed")
    with pytest.raises(LaunchError, match=r"step-000002, which is not there.*`samebits run recipes/smoke.yaml ref"):
        run(executor, tmp_path, plans(tmp_path), "resumed", together=False)
    assert record(tmp_path, "resumed") == before
    assert executor.arms() == [ARMS]


def test_leftovers_without_a_plan_are_removed_not_kept(tmp_path: Path) -> None:
    left = artifact(tmp_path, "reference").launch / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    run(Recording(), tmp_path, plans(tmp_path), together=False)
    assert not left.exists()
    assert not (tmp_path / "smoke" / "superseded").exists()


def test_ranks_take_over_what_finds_software_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    executor = Recording()
    run(executor, tmp_path, plans(tmp_path))
    assert executor.requests[0].inherited["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "NCCL_ALGO" not in executor.requests[0].inherited


def test_the_outcome_of_an_earlier_start_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    """Slurm starts the job again, which has just begun when it vanishes for good."""

    def begins_again(start: Start) -> None:
        executors.ends_well(start)
        assert job_state.renew(start.artifact, job_state.resumed_as(start.launch, 1))

    executor = Recording(executors.keeps_silent, later=begins_again)
    outcome, _ = run(executor, tmp_path, plans(tmp_path), together=False)
    assert (outcome.ok, outcome.message) == (False, "job 7 ended and left no word")
    assert outcome.launch == record(tmp_path, "reference").launch == f"{executor.requests[0].starts[0].launch}.1"


def test_this_machine_refuses_a_recipe_with_an_image_and_starts_nothing(tmp_path: Path) -> None:
    wanted = launching.plan(container={"image": clusters.IMAGE})
    echo, _ = launching.echo()
    with pytest.raises(
        LaunchError, match=r"smoke: container\.image is train\.sqsh@sha256:.* entered on a cluster only"
    ):
        run_arm(wanted, artifact(tmp_path, "reference"), echo=echo, executor=LocalExecutor())
    assert not artifact(tmp_path, "reference").folder.exists()


def test_a_recipe_whose_container_is_left_out_runs_on_this_machine(tmp_path: Path) -> None:
    LocalExecutor().check(launching.plan(), artifact(tmp_path, "reference"))
