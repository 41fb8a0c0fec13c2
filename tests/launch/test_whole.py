from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import executors
import launching
import timed
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.job_state import LaunchError, Outcome, read_outcome, read_record
from samebits.launch.start import Start
from samebits.launch.submit import LocalExecutor
from samebits.launch.whole import run_whole
from samebits.plan import overhead_runs
from samebits.spec.plan import Plan


def plans(**overhead: object) -> list[Plan]:
    return overhead_runs.plans(timed.recipe(**overhead), "overhead")


def run(wanted: list[Plan], results: Path, executor: executors.Recording) -> Outcome:
    return run_whole(wanted, folder(results), echo=launching.echo()[0], executor=executor)


def folder(results: Path) -> Path:
    return results / "smoke" / "overhead"


def names(wanted: list[Plan]) -> list[str]:
    return [plan.arm for plan in wanted]


def test_all_runs_are_one_job_in_the_order_of_the_plan(tmp_path: Path) -> None:
    executor = executors.Recording()
    assert run(plans(), tmp_path, executor).ok
    assert executor.arms() == [names(plans())]


def test_runs_that_stand_are_not_made_again(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    assert run(plans(), tmp_path, executor).ok
    assert len(executor.requests) == 1


def test_all_runs_are_made_again_where_that_is_asked_for(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    echo = launching.echo()[0]
    assert run_whole(plans(), folder(tmp_path), echo=echo, executor=executor, again=True).ok
    assert executor.arms() == [names(plans())] * 2


def test_hundreds_of_runs_need_no_hundreds_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, executor = plans(blocks=100), executors.Recording()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    # Above what this process of many tests holds open already.
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, hard))
    try:
        assert run(wanted, tmp_path, executor).ok
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("lost", ["deterministic-2", "baseline-4"])
def test_where_one_run_is_gone_all_are_made_again(tmp_path: Path, lost: str) -> None:
    executor = executors.Recording()
    run(plans(blocks=2), tmp_path, executor)
    shutil.rmtree(folder(tmp_path) / lost)
    run(plans(blocks=2), tmp_path, executor)
    assert executor.arms() == [names(plans(blocks=2))] * 2


@pytest.mark.parametrize("overhead", [{"blocks": 5}, {"blocks": 3}, {"steps": 20}, {"warm_up": 9}])
def test_another_experiment_is_made_whole(tmp_path: Path, overhead: dict[str, object]) -> None:
    """Blocks that are added to those that somebody has looked at are no experiment."""
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    run(plans(**overhead), tmp_path, executor)
    assert executor.arms()[1] == names(plans(**overhead))


@pytest.mark.parametrize("overhead", [{"limit_percent": 50.0}, {"half_width_percent": 2.0}, {"also": ("capture",)}])
def test_what_only_judges_makes_no_run_again(tmp_path: Path, overhead: dict[str, object]) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    run(plans(**overhead), tmp_path, executor)
    assert len(executor.requests) == 1


def test_runs_of_an_experiment_with_more_blocks_make_way(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(blocks=3), tmp_path, executor)
    run(plans(blocks=2), tmp_path, executor)
    assert sorted(path.name for path in folder(tmp_path).iterdir() if path.is_dir()) == sorted(names(plans(blocks=2)))


def test_a_run_of_another_job_than_the_rest_does_not_stand(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    artifact = Artifact(folder(tmp_path) / "deterministic-1")
    record, outcome = read_record(artifact), read_outcome(artifact)
    assert record is not None
    assert outcome is not None
    dataclasses.replace(record, launch="another-1").write(artifact)
    dataclasses.replace(outcome, launch="another-1").write(artifact)
    run(plans(), tmp_path, executor)
    assert len(executor.requests) == 2


def test_a_run_that_failed_is_what_the_experiment_says(tmp_path: Path) -> None:
    def third_fails(start: Start) -> None:
        if start.plan.timing and (start.plan.timing.block, start.plan.timing.position) < (1, 3):
            executors.ends_well(start)
        elif start.plan.arm == "deterministic-2":
            executors.ends(start.artifact, start.launch, ok=False)

    outcome = run(plans(), tmp_path, executors.Recording(third_fails))
    assert (outcome.ok, outcome.message) == (False, "arm: the loss is a teapot")
    assert read_outcome(Artifact(folder(tmp_path) / "baseline-2")) is None


def test_a_job_that_left_no_word_behind_is_told(tmp_path: Path) -> None:
    outcome = run(plans(), tmp_path, executors.Recording(executors.keeps_silent))
    assert (outcome.ok, outcome.message) == (False, "job 7 ended and left no word")


def test_a_job_that_still_runs_any_of_the_runs_is_waited_for(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    executor.live = {folder(tmp_path).absolute() / "deterministic-2"}
    assert run(plans(), tmp_path, executor).ok
    assert len(executor.requests) == 1


def test_a_job_that_still_runs_another_experiment_is_not_taken_over(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    executor.live = {folder(tmp_path).absolute() / "deterministic-2"}
    with pytest.raises(LaunchError, match="still runs it as it was before"):
        run(plans(steps=99), tmp_path, executor)


def test_runs_whose_processes_live_on_are_neither_moved_nor_made_again(tmp_path: Path) -> None:
    """As on a node that was taken for lost."""
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    living = Artifact(folder(tmp_path) / "deterministic-2")
    record = read_record(living)
    assert record is not None
    living.outcome.unlink()
    with job_state.running(living, record.launch) as refusal:
        assert not refusal
        with pytest.raises(LaunchError, match=r"arm deterministic-2: process .* still runs its earlier start"):
            run(plans(), tmp_path, executor)
    assert living.plan.exists()
    assert len(executor.requests) == 1


def test_a_record_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    (folder(tmp_path) / "baseline-3" / "launch" / "job.json").write_text("{")
    with pytest.raises(LaunchError, match="cannot be read"):
        run(plans(), tmp_path, executor)


def test_another_place_makes_all_runs_again(tmp_path: Path) -> None:
    executor = executors.Recording()
    run(plans(), tmp_path, executor)
    executor.where = "elsewhere"
    run(plans(), tmp_path, executor)
    assert len(executor.requests) == 2


def test_on_this_machine_runs_are_made_one_after_the_other(tmp_path: Path) -> None:
    echo, said = launching.echo()
    command = launching.command("ok")
    outcome = run_whole(plans(blocks=1), folder(tmp_path), echo=echo, executor=LocalExecutor(), command=command)
    assert outcome.ok, said.getvalue()
    folders = [folder(tmp_path) / plan.arm for plan in plans(blocks=1)]
    begun = [(path / "logs").stat().st_ctime_ns for path in folders]
    ended = [(path / "outcome.json").stat().st_mtime_ns for path in folders]
    assert all(end <= begin for end, begin in zip(ended, begun[1:], strict=False))
    assert "5 runs done" in said.getvalue()


def test_on_this_machine_too_runs_behind_one_that_failed_are_not_made(tmp_path: Path) -> None:
    outcome = run_whole(
        plans(blocks=1),
        folder(tmp_path),
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
from samebits.launch.arm import CancelledError
from samebits.launch.console import Echo
from samebits.launch.submit import LocalExecutor
from samebits.launch.whole import run_whole
plans = experiments.plans(timed.recipe(blocks=1), "overhead")
try:
    command = launching.command("hang")
    run_whole(plans, Path(sys.argv[1]), echo=Echo(sys.stderr), executor=LocalExecutor(), command=command)
except CancelledError as cancelled:
    print(cancelled)
    sys.exit(cancelled.status)
"""


def test_an_interrupt_ends_the_job_and_nothing_of_it_runs(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, tests, tests.parent / "src")))}
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
