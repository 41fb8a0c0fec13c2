"""Run arms over stub ranks, or over an executor that starts nothing; again and again."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import builders
import clusters
import executors
import launching
import timed
from executors import Recording
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.job_state import ArmOutcome, JobRecord, LaunchError, read_outcome, read_record
from samebits.launch.local import LocalExecutor
from samebits.launch.run_arms import CancelledError, run_arms
from samebits.launch.submit import Start
from samebits.plan import arms, overhead_runs
from samebits.spec.plan import Plan

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]


def artifact_of(results: Path, arm: str = "reference") -> Artifact:
    return Artifact(arms.artifact_folder(results, "smoke", arm))


def run(results: Path, wanted: Plan, mode: str = "ok") -> tuple[ArmOutcome, str]:
    """How an arm of stub ranks ended on this machine, and what was said."""
    echo, said = launching.echo()
    outcome = run_arms([(wanted, artifact_of(results, wanted.arm))], echo=echo, command=launching.command(mode))
    return outcome, said.getvalue()


def restored(results: Path, **changes: object) -> Plan:
    """An arm `resumed` from the checkpoint of step 2."""
    checkpoint = artifact_of(results).checkpoint(2).absolute()
    return dataclasses.replace(launching.plan("resumed", **changes), first_step=3, restore=str(checkpoint))


def test_an_arm_runs_once_and_is_then_kept(tmp_path: Path) -> None:
    wanted = launching.plan()
    first, said = run(tmp_path, wanted)
    assert first.ok
    assert "arm reference: runs: it has not run yet" in said
    assert "steps 1-4" in said
    assert "arm reference: done in" in said
    again, said = run(tmp_path, wanted)
    assert said == f"arm reference: kept, unchanged since {first.ended}\n"
    assert again == first


def test_a_changed_recipe_runs_again_says_why_and_keeps_what_was_there(tmp_path: Path) -> None:
    first, _ = run(tmp_path, launching.plan())
    second, said = run(tmp_path, launching.plan(seed=7))
    assert "arm reference: runs: seed: 1234 -> 7" in said
    assert second.launch != first.launch
    aside = Artifact(tmp_path / "smoke" / "superseded" / "reference")
    assert job_state.read_outcome(aside) == first
    third, _ = run(tmp_path, launching.plan(seed=8))
    assert third.ok
    assert job_state.read_outcome(aside) == second


def test_what_changes_no_number_runs_nothing(tmp_path: Path) -> None:
    run(tmp_path, launching.plan())
    _, said = run(tmp_path, launching.plan(gates=["repeatability"], launch={"time_minutes": 3}))
    assert "kept" in said


def test_other_software_runs_again_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, launching.plan())
    monkeypatch.setattr("samebits.plan.arms.key", lambda *_: "another")
    _, said = run(tmp_path, launching.plan())
    assert "runs: the software, or samebits itself, is not what it ran with" in said


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("rank-00001.fp", "its fingerprint files of ranks 1 are gone"),
        ("checkpoints/step-000002", "its checkpoint of step 2 is gone"),
        ("outcome.json", "its last start did not finish"),
        ("plan.json", "its plan cannot be read"),
    ],
)
def test_an_arm_that_lost_something_runs_again(tmp_path: Path, lost: str, reason: str) -> None:
    wanted = launching.plan()
    run(tmp_path, wanted)
    path = artifact_of(tmp_path, wanted.arm).folder / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    outcome, said = run(tmp_path, wanted)
    assert reason in said
    assert outcome.ok
    assert path.exists()


def test_a_failed_arm_says_so_and_starts_again_from_nothing(tmp_path: Path) -> None:
    wanted = launching.plan("twin-1")
    failed, _ = run(tmp_path, wanted, "kill")
    assert not failed.ok
    outcome, said = run(tmp_path, wanted)
    assert outcome.ok
    assert "runs: its last start failed: arm twin-1: rank 1" in said
    assert "it starts from nothing" in said
    assert len(launching.starts(artifact_of(tmp_path, wanted.arm))) == 2


def test_a_missing_checkpoint_is_named_with_the_arm_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"step-000002, which is not there.*samebits run recipes/smoke.yaml reference"
    ):
        run(tmp_path, restored(tmp_path))


def test_an_arm_runs_again_where_its_checkpoint_was_written_anew(tmp_path: Path) -> None:
    run(tmp_path, launching.plan())
    assert run(tmp_path, restored(tmp_path))[0].ok
    assert "kept" in run(tmp_path, restored(tmp_path))[1]
    artifact_of(tmp_path).fingerprint(0).unlink()
    run(tmp_path, launching.plan())
    _, said = run(tmp_path, restored(tmp_path))
    assert "arm reference has run again, and with it the checkpoint that this arm starts from" in said


def test_a_job_that_is_killed_is_reported_with_its_log(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = artifact_of(tmp_path, wanted.arm)

    def kill_runner() -> None:
        launching.wait_for(lambda: launching.starts(artifact) and job_state.runner(artifact))
        os.kill(job_state.runner(artifact) or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill_runner)
    killer.start()
    outcome, _ = run(tmp_path, wanted, "hang")
    killer.join()
    assert not outcome.ok
    assert "ended without saying how" in outcome.message


def test_a_signal_cancels_the_job_and_leaves_nothing_running(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = artifact_of(tmp_path, wanted.arm)

    def interrupt() -> None:
        launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(CancelledError, match=r"SIGTERM: cancelled job \d+; nothing of it runs") as caught:
        run(tmp_path, wanted, "hang")
    interrupter.join()
    assert caught.value.status == 143
    assert not any(launching.alive(pid) for _, pid, _ in launching.starts(artifact))
    assert job_state.runner(artifact) is None


def waiting(results: Path, mode: str) -> subprocess.Popen[bytes]:
    """An earlier pipeline: runs the reference in a process of its own."""
    code = (
        f"import sys; sys.path[:0] = {FOLDERS!r}; import test_run_arms, launching, pathlib; "
        f"test_run_arms.run(pathlib.Path({str(results)!r}), launching.plan(), {mode!r})"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_live_job_of_a_killed_pipeline_is_found_again_and_no_second_one_starts(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = artifact_of(tmp_path, wanted.arm)
    earlier = waiting(tmp_path, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    earlier.kill()
    earlier.wait()
    outcome, said = run(tmp_path, wanted)
    assert outcome.ok
    assert "arm reference: re-attached to job" in said
    assert len(launching.starts(artifact)) == 2


def test_a_live_job_of_another_plan_is_neither_killed_nor_doubled(tmp_path: Path) -> None:
    artifact = artifact_of(tmp_path)
    earlier = waiting(tmp_path, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    with pytest.raises(LaunchError, match=r"job \d+, .* still runs it .*seed: 1234 -> 7.* `kill \d+`"):
        run(tmp_path, launching.plan(seed=7))
    assert earlier.wait(timeout=60) == 0
    assert len(launching.starts(artifact)) == 2


def test_two_pipelines_at_once_share_one_job(tmp_path: Path) -> None:
    pair = [waiting(tmp_path, "slow") for _ in range(2)]
    assert [process.wait(timeout=120) for process in pair] == [0, 0]
    assert len(launching.starts(artifact_of(tmp_path))) == 2


def test_a_results_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "smoke").write_text("a file where a folder must be")
    with pytest.raises(LaunchError, match=r"arm reference: .*smoke.*results folder must be writable"):
        run(tmp_path, launching.plan())


def test_a_full_disk_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {getattr(error, 'stderr', error)}")
    try:
        (disk / "smoke" / "arms").mkdir(parents=True)
        (disk / "smoke" / "arms" / ".reference.lock").touch()
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(1 << 20))
        with pytest.raises(LaunchError, match="No space left on device"):
            run(disk, launching.plan())
        assert not artifact_of(disk).folder.exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def recorded(
    executor: Recording, results: Path, wanted: list[Plan], arm: str = "reference", *, together: bool = True
) -> tuple[ArmOutcome, str]:
    """How one of the arms ended, where nothing runs, and what was said."""
    placed = {plan.arm: (plan, artifact_of(results, plan.arm)) for plan in wanted}
    echo, said = launching.echo()
    allocation = list(placed.values()) if together else ()
    outcome = run_arms([placed[arm]], echo=echo, executor=executor, allocation=allocation)
    return outcome, said.getvalue()


ARMS = ["reference", "twin-1", "resumed"]


def plans(results: Path, **changes: Any) -> list[Plan]:
    """ARMS, of four steps."""
    small = {"steps": 4, "checkpoint": {"every": 2, "resume_from": 2}, "gates": ["repeatability", "resume"]}
    return arms.plans(builders.recipe(**{**small, **changes}), results)


def on_cluster(results: Path, placement: str) -> list[Plan]:
    return plans(results, cluster={"nodes": 2, "ranks_per_node": 1, "placement": placement})


def record_of(results: Path, arm: str) -> JobRecord:
    found = job_state.read_record(artifact_of(results, arm))
    assert found is not None
    return found


def fails(start: Start) -> None:
    executors.ends(start.artifact, start.launch, ok=False)


def test_arms_that_must_run_are_one_job_in_their_order(tmp_path: Path) -> None:
    executor = Recording()
    outcome, said = recorded(executor, tmp_path, plans(tmp_path))

    assert outcome.ok
    assert executor.arms() == [ARMS]
    assert "arm twin-1: job 7, 2 ranks, steps 1-4" in said
    assert "arm resumed: job 7, 2 ranks, steps 3-4" in said


def test_an_arm_of_its_own_is_a_job_of_its_own(tmp_path: Path) -> None:
    executor = Recording()
    for arm in ARMS:
        recorded(executor, tmp_path, plans(tmp_path), arm, together=False)
    assert executor.arms() == [["reference"], ["twin-1"], ["resumed"]]
    assert all(re.fullmatch("[0-9a-f]{32}", request.starts[0].launch) for request in executor.requests)
    assert record_of(tmp_path, "resumed").restored == record_of(tmp_path, "reference").launch


def test_arms_of_one_job_are_numbered_and_say_where_its_files_are(tmp_path: Path) -> None:
    recorded(Recording(), tmp_path, plans(tmp_path))
    launches = [record_of(tmp_path, arm).launch for arm in ARMS]
    base, _, _ = launches[0].partition("-")
    assert launches == [f"{base}-{number}" for number in range(3)]
    assert {record_of(tmp_path, arm).lead for arm in ARMS} == {"reference"}


def test_an_arm_restored_from_one_of_the_same_job_says_from_which_start(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    assert record_of(tmp_path, "resumed").restored == record_of(tmp_path, "reference").launch
    assert record_of(tmp_path, "twin-1").restored is None
    # Hence the next look finds nothing to do.
    for arm in ARMS:
        _, said = recorded(executor, tmp_path, plans(tmp_path), arm)
        assert f"arm {arm}: kept" in said
    assert executor.arms() == [ARMS]


def test_plan_and_record_lie_there_before_the_job_and_its_id_after(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    assert [seen and seen.job for seen in executor.submitted] == [None, None, None]
    assert [seen and seen.launch for seen in executor.submitted] == [record_of(tmp_path, arm).launch for arm in ARMS]
    assert {record_of(tmp_path, arm).job for arm in ARMS} == {"7"}
    assert [Plan.from_json(artifact_of(tmp_path, arm).plan.read_text()) for arm in ARMS] == plans(tmp_path)


def test_an_arm_that_stands_is_not_started_with_the_others(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path), together=False)
    recorded(executor, tmp_path, plans(tmp_path), "twin-1")
    assert executor.arms() == [["reference"], ["twin-1", "resumed"]]
    assert record_of(tmp_path, "twin-1").lead == "twin-1"
    assert record_of(tmp_path, "resumed").restored == record_of(tmp_path, "reference").launch


def test_an_arm_starts_again_with_the_one_whose_checkpoint_it_starts_from(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    artifact_of(tmp_path, "reference").fingerprint(0).unlink()
    recorded(executor, tmp_path, plans(tmp_path))
    assert executor.arms()[1] == ["reference", "resumed"]
    assert record_of(tmp_path, "resumed").restored == record_of(tmp_path, "reference").launch


def test_an_arm_that_ran_elsewhere_runs_again_and_says_where(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    executor.where = "2 nodes of a cluster"
    _, said = recorded(executor, tmp_path, plans(tmp_path))
    assert "arm reference: runs: it ran on nowhere, and is to run on 2 nodes of a cluster" in said
    assert executor.arms() == [ARMS, ARMS]


def test_arms_that_run_in_another_job_are_left_alone(tmp_path: Path) -> None:
    executor = Recording(fails)
    recorded(executor, tmp_path, plans(tmp_path))
    executor.live = {artifact_of(tmp_path, "twin-1").folder}
    before = record_of(tmp_path, "twin-1")
    recorded(executor, tmp_path, plans(tmp_path))
    assert executor.arms()[1] == ["reference", "resumed"]
    assert record_of(tmp_path, "twin-1") == before


def test_every_arm_of_a_live_job_is_waited_for_there(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    executor.live = {artifact_of(tmp_path, arm).folder for arm in ARMS}
    for arm in ARMS:
        outcome, said = recorded(executor, tmp_path, plans(tmp_path), arm)
        assert outcome.ok
        assert f"arm {arm}: re-attached to job 7" in said
    assert executor.arms() == [ARMS]


@pytest.mark.parametrize(("arm", "on"), [("twin-1", ("n5", "n3")), ("resumed", ("n5", "n3"))])
def test_where_the_recipe_wants_the_same_nodes_arms_follow_the_reference(
    tmp_path: Path, arm: str, on: tuple[str, ...]
) -> None:
    executor = Recording(lambda start: executors.ends_well(start, nodes=("n5", "n3")))
    wanted = on_cluster(tmp_path, "same-nodes")
    recorded(executor, tmp_path, wanted, together=False)
    recorded(executor, tmp_path, wanted, arm, together=False)
    assert [(request.on, request.off) for request in executor.requests] == [((), ()), (on, ())]


@pytest.mark.parametrize(("arm", "off"), [("twin-1", ("n5", "n3")), ("resumed", ())])
def test_where_the_recipe_wants_other_nodes_twins_avoid_the_references(
    tmp_path: Path, arm: str, off: tuple[str, ...]
) -> None:
    executor = Recording(lambda start: executors.ends_well(start, nodes=("n5", "n3")))
    wanted = on_cluster(tmp_path, "other-nodes")
    recorded(executor, tmp_path, wanted, together=False)
    recorded(executor, tmp_path, wanted, arm, together=False)
    assert [(request.on, request.off) for request in executor.requests] == [((), ()), ((), off)]


@pytest.mark.parametrize("placement", ["same-nodes", "any"])
def test_nodes_are_free_where_the_reference_runs_in_the_same_job_or_nobody_minds(
    tmp_path: Path, placement: str
) -> None:
    executor = Recording()
    wanted = on_cluster(tmp_path, placement)
    recorded(executor, tmp_path, wanted)
    artifact_of(tmp_path, "reference").fingerprint(0).unlink()
    recorded(executor, tmp_path, wanted)
    if placement == "any":
        artifact_of(tmp_path, "twin-1").fingerprint(0).unlink()
        recorded(executor, tmp_path, wanted, "twin-1")
    assert {(request.on, request.off) for request in executor.requests} == {((), ())}


def test_a_refused_job_leaves_no_folder_and_what_was_there_is_superseded(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    earlier = {arm: record_of(tmp_path, arm) for arm in ARMS}
    executor.refusal = "sbatch refused the job: Invalid account"
    with pytest.raises(LaunchError, match="sbatch refused the job: Invalid account"):
        recorded(executor, tmp_path, plans(tmp_path, seed=7))

    for arm in ARMS:
        assert not artifact_of(tmp_path, arm).folder.exists()
        aside = Artifact(tmp_path / "smoke" / "superseded" / arm)
        assert job_state.read_record(aside) == earlier[arm]
        assert aside.fingerprint(1).read_bytes() == b"whole"


def test_a_missing_checkpoint_is_said_before_anything_makes_way(tmp_path: Path) -> None:
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    artifact_of(tmp_path, "reference").checkpoint(2).rmdir()
    artifact_of(tmp_path, "resumed").fingerprint(0).unlink()
    before = record_of(tmp_path, "resumed")
    with pytest.raises(LaunchError, match=r"step-000002, which is not there.*`samebits run recipes/smoke.yaml ref"):
        recorded(executor, tmp_path, plans(tmp_path), "resumed", together=False)
    assert record_of(tmp_path, "resumed") == before
    assert executor.arms() == [ARMS]


def test_leftovers_without_a_plan_are_removed_not_kept(tmp_path: Path) -> None:
    left = artifact_of(tmp_path, "reference").launch / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    recorded(Recording(), tmp_path, plans(tmp_path), together=False)
    assert not left.exists()
    assert not (tmp_path / "smoke" / "superseded").exists()


def test_ranks_take_over_what_finds_software_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    executor = Recording()
    recorded(executor, tmp_path, plans(tmp_path))
    assert executor.requests[0].inherited["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "NCCL_ALGO" not in executor.requests[0].inherited


def test_the_outcome_of_an_earlier_start_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    """Slurm starts the job again, which has just begun when it vanishes for good."""

    def begins_again(start: Start) -> None:
        executors.ends_well(start)
        assert job_state.renew(start.artifact, job_state.resumed_as(start.launch, 1))

    executor = Recording(executors.keeps_silent, later=begins_again)
    outcome, _ = recorded(executor, tmp_path, plans(tmp_path), together=False)
    assert (outcome.ok, outcome.message) == (False, "job 7 ended and left no word")
    assert outcome.launch == record_of(tmp_path, "reference").launch == f"{executor.requests[0].starts[0].launch}.1"


def test_this_machine_refuses_a_recipe_with_an_image_and_starts_nothing(tmp_path: Path) -> None:
    wanted = launching.plan(container={"image": clusters.IMAGE})
    echo, _ = launching.echo()
    with pytest.raises(
        LaunchError, match=r"smoke: container\.image is train\.sqsh@sha256:.* entered on a cluster only"
    ):
        run_arms([(wanted, artifact_of(tmp_path, "reference"))], echo=echo, executor=LocalExecutor())
    assert not artifact_of(tmp_path, "reference").folder.exists()


def test_a_recipe_whose_container_is_left_out_runs_on_this_machine(tmp_path: Path) -> None:
    LocalExecutor().check(launching.plan(), artifact_of(tmp_path, "reference"))


def runs(**overhead: object) -> list[Plan]:
    """All runs of an experiment."""
    return overhead_runs.plans(timed.recipe(**overhead), "overhead")


def folder(results: Path) -> Path:
    return results / "smoke" / "overhead"


def names(wanted: list[Plan]) -> list[str]:
    return [plan.arm for plan in wanted]


def placed(wanted: list[Plan], results: Path) -> list[tuple[Plan, Artifact]]:
    return [(plan, Artifact(folder(results) / plan.arm)) for plan in wanted]


def made(wanted: list[Plan], results: Path, executor: Recording, *, again: bool = False) -> ArmOutcome:
    """How the experiment ended, where nothing runs."""
    return run_arms(placed(wanted, results), echo=launching.echo()[0], executor=executor, again=again)


def test_all_runs_are_one_job_in_the_order_of_the_plan(tmp_path: Path) -> None:
    executor = Recording()
    assert made(runs(), tmp_path, executor).ok
    assert executor.arms() == [names(runs())]


def test_runs_that_stand_are_not_made_again(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    assert made(runs(), tmp_path, executor).ok
    assert len(executor.requests) == 1


def test_all_runs_are_made_again_where_that_is_asked_for(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    assert made(runs(), tmp_path, executor, again=True).ok
    assert executor.arms() == [names(runs())] * 2


def test_hundreds_of_runs_need_no_hundreds_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, executor = runs(blocks=100), Recording()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    # Above what this process of many tests holds open already.
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, hard))
    try:
        assert made(wanted, tmp_path, executor).ok
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("lost", ["deterministic-2", "baseline-4"])
def test_where_one_run_is_gone_all_are_made_again(tmp_path: Path, lost: str) -> None:
    executor = Recording()
    made(runs(blocks=2), tmp_path, executor)
    shutil.rmtree(folder(tmp_path) / lost)
    made(runs(blocks=2), tmp_path, executor)
    assert executor.arms() == [names(runs(blocks=2))] * 2


@pytest.mark.parametrize("overhead", [{"blocks": 5}, {"blocks": 3}, {"steps": 20}, {"warm_up": 9}])
def test_another_experiment_is_made_whole(tmp_path: Path, overhead: dict[str, object]) -> None:
    """Blocks that are added to those that somebody has looked at are no experiment."""
    executor = Recording()
    made(runs(), tmp_path, executor)
    made(runs(**overhead), tmp_path, executor)
    assert executor.arms()[1] == names(runs(**overhead))


@pytest.mark.parametrize("overhead", [{"limit_percent": 50.0}, {"half_width_percent": 2.0}, {"also": ("capture",)}])
def test_what_only_judges_makes_no_run_again(tmp_path: Path, overhead: dict[str, object]) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    made(runs(**overhead), tmp_path, executor)
    assert len(executor.requests) == 1


def test_runs_of_an_experiment_with_more_blocks_make_way(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(blocks=3), tmp_path, executor)
    made(runs(blocks=2), tmp_path, executor)
    assert sorted(path.name for path in folder(tmp_path).iterdir() if path.is_dir()) == sorted(names(runs(blocks=2)))


def test_a_run_of_another_job_than_the_rest_does_not_stand(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    artifact = Artifact(folder(tmp_path) / "deterministic-1")
    record, outcome = read_record(artifact), read_outcome(artifact)
    assert record is not None
    assert outcome is not None
    dataclasses.replace(record, launch="another-1").write(artifact)
    dataclasses.replace(outcome, launch="another-1").write(artifact)
    made(runs(), tmp_path, executor)
    assert len(executor.requests) == 2


def test_a_run_that_failed_is_what_the_experiment_says(tmp_path: Path) -> None:
    def third_fails(start: Start) -> None:
        if start.plan.timing and (start.plan.timing.block, start.plan.timing.position) < (1, 3):
            executors.ends_well(start)
        elif start.plan.arm == "deterministic-2":
            executors.ends(start.artifact, start.launch, ok=False)

    outcome = made(runs(), tmp_path, Recording(third_fails))
    assert (outcome.ok, outcome.message) == (False, "arm: the loss is a teapot")
    assert read_outcome(Artifact(folder(tmp_path) / "baseline-2")) is None


def test_a_job_that_left_no_word_behind_is_told(tmp_path: Path) -> None:
    outcome = made(runs(), tmp_path, Recording(executors.keeps_silent))
    assert (outcome.ok, outcome.message) == (False, "job 7 ended and left no word")


def test_a_job_that_still_runs_any_of_the_runs_is_waited_for(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    executor.live = {folder(tmp_path).absolute() / "deterministic-2"}
    assert made(runs(), tmp_path, executor).ok
    assert len(executor.requests) == 1


def test_a_job_that_still_runs_another_experiment_is_not_taken_over(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    executor.live = {folder(tmp_path).absolute() / "deterministic-2"}
    with pytest.raises(LaunchError, match="still runs it as it was before"):
        made(runs(steps=99), tmp_path, executor)


def test_runs_whose_processes_live_on_are_neither_moved_nor_made_again(tmp_path: Path) -> None:
    """As on a node that was taken for lost."""
    executor = Recording()
    made(runs(), tmp_path, executor)
    living = Artifact(folder(tmp_path) / "deterministic-2")
    record = read_record(living)
    assert record is not None
    living.outcome.unlink()
    with job_state.running(living, record.launch) as refusal:
        assert not refusal
        with pytest.raises(LaunchError, match=r"arm deterministic-2: process .* still runs its earlier start"):
            made(runs(), tmp_path, executor)
    assert living.plan.exists()
    assert len(executor.requests) == 1


def test_a_record_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    (folder(tmp_path) / "baseline-3" / "launch" / "job.json").write_text("{")
    with pytest.raises(LaunchError, match="cannot be read"):
        made(runs(), tmp_path, executor)


def test_another_place_makes_all_runs_again(tmp_path: Path) -> None:
    executor = Recording()
    made(runs(), tmp_path, executor)
    executor.where = "elsewhere"
    made(runs(), tmp_path, executor)
    assert len(executor.requests) == 2


def test_on_this_machine_runs_are_made_one_after_the_other(tmp_path: Path) -> None:
    echo, said = launching.echo()
    command = launching.command("ok")
    outcome = run_arms(placed(runs(blocks=1), tmp_path), echo=echo, executor=LocalExecutor(), command=command)
    assert outcome.ok, said.getvalue()
    folders = [folder(tmp_path) / plan.arm for plan in runs(blocks=1)]
    begun = [(path / "logs").stat().st_ctime_ns for path in folders]
    ended = [(path / "outcome.json").stat().st_mtime_ns for path in folders]
    assert all(end <= begin for end, begin in zip(ended, begun[1:], strict=False))
    assert "5 runs done" in said.getvalue()


def test_on_this_machine_too_runs_behind_one_that_failed_are_not_made(tmp_path: Path) -> None:
    outcome = run_arms(
        placed(runs(blocks=1), tmp_path),
        echo=launching.echo()[0],
        executor=LocalExecutor(),
        command=launching.command("raise"),
    )
    assert not outcome.ok
    assert "arm rehearsal" in outcome.message
    assert launching.starts(Artifact(folder(tmp_path) / "baseline-1")) == []


WAITING = """
import sys
from pathlib import Path
import launching, timed
from samebits.plan import overhead_runs as experiments
from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.local import LocalExecutor
from samebits.launch.run_arms import CancelledError, run_arms
plans = experiments.plans(timed.recipe(blocks=1), "overhead")
try:
    command = launching.command("hang")
    wanted = [(plan, Artifact(Path(sys.argv[1]) / plan.arm)) for plan in plans]
    run_arms(wanted, echo=Echo(sys.stderr), executor=LocalExecutor(), command=command)
except CancelledError as cancelled:
    print(cancelled)
    sys.exit(cancelled.status)
"""


def test_an_interrupt_ends_the_job_and_nothing_of_it_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)}
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, folder(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    first = Artifact(folder(tmp_path) / "rehearsal")
    launching.wait_for(first.progress.exists)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGINT
    assert "cancelled job" in said
    assert job_state.runner(first) is None
    assert launching.starts(Artifact(folder(tmp_path) / "baseline-1")) == []
