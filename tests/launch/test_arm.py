"""Running an arm, again and again, over stub ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import launching
from samebits.fingerprint.paths import Artifact
from samebits.launch import job_state
from samebits.launch.arm import CancelledError, run_arm
from samebits.launch.console import Echo
from samebits.launch.job_state import LaunchError, Outcome
from samebits.spec.plan import Plan


def folder(results: Path, wanted: Plan) -> Artifact:
    return Artifact(results / "smoke" / "arms" / wanted.arm)


def run(results: Path, wanted: Plan, mode: str = "ok") -> tuple[Outcome, str]:
    echo, said = launching.echo()
    outcome = run_arm(wanted, folder(results, wanted), echo=echo, command=launching.command(mode))
    return outcome, said.getvalue()


def restored(results: Path, **changes: object) -> Plan:
    """An arm `resumed` from the checkpoint of step 2."""
    body = json.loads(launching.plan("resumed", **changes).to_json())
    checkpoint = folder(results, launching.plan()).checkpoint(2).absolute()
    return Plan.from_json(json.dumps({**body, "first_step": 3, "restore": str(checkpoint)}))


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
    path = folder(tmp_path, wanted).folder / lost
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
    assert len(launching.starts(folder(tmp_path, wanted))) == 2


def test_a_missing_checkpoint_is_named_with_the_arm_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"step-000002, which is not there.*samebits run recipes/smoke.yaml reference"
    ):
        run(tmp_path, restored(tmp_path))


def test_an_arm_runs_again_where_its_checkpoint_was_written_anew(tmp_path: Path) -> None:
    run(tmp_path, launching.plan())
    assert run(tmp_path, restored(tmp_path))[0].ok
    assert "kept" in run(tmp_path, restored(tmp_path))[1]
    folder(tmp_path, launching.plan()).fingerprint(0).unlink()
    run(tmp_path, launching.plan())
    _, said = run(tmp_path, restored(tmp_path))
    assert "arm reference has run again, and with it the checkpoint that this arm starts from" in said


def test_a_job_that_is_killed_is_reported_with_its_log(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = folder(tmp_path, wanted)

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
    artifact = folder(tmp_path, wanted)

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


PATH = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


def waiting(results: Path, mode: str) -> subprocess.Popen[bytes]:
    """An earlier pipeline: runs the reference in a process of its own."""
    code = (
        f"import sys; sys.path[:0] = {PATH!r}; import test_arm, launching, pathlib; test_arm.run(pathlib.Path({str(results)!r}), launching.plan(), {mode!r})"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_live_job_of_a_killed_pipeline_is_found_again_and_no_second_one_starts(tmp_path: Path) -> None:
    wanted = launching.plan()
    artifact = folder(tmp_path, wanted)
    earlier = waiting(tmp_path, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    earlier.kill()
    earlier.wait()
    outcome, said = run(tmp_path, wanted)
    assert outcome.ok
    assert "arm reference: re-attached to job" in said
    assert len(launching.starts(artifact)) == 2


def test_a_live_job_of_another_plan_is_neither_killed_nor_doubled(tmp_path: Path) -> None:
    artifact = folder(tmp_path, launching.plan())
    earlier = waiting(tmp_path, "slow")
    launching.wait_for(lambda: len(launching.starts(artifact)) == 2)
    with pytest.raises(LaunchError, match=r"job \d+, .* still runs it .*seed: 1234 -> 7.* `kill \d+`"):
        run(tmp_path, launching.plan(seed=7))
    assert earlier.wait(timeout=60) == 0
    assert len(launching.starts(artifact)) == 2


def test_two_pipelines_at_once_share_one_job(tmp_path: Path) -> None:
    pair = [waiting(tmp_path, "slow") for _ in range(2)]
    assert [process.wait(timeout=120) for process in pair] == [0, 0]
    assert len(launching.starts(folder(tmp_path, launching.plan()))) == 2


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
        assert not folder(disk, launching.plan()).folder.exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_away_from_a_terminal_the_changing_line_appears_now_and_then(tmp_path: Path) -> None:
    echo, said = launching.echo()
    for step in range(100):
        echo.update(f"step {step}")
    echo.line("done")
    assert said.getvalue() == "step 0\ndone\n"


def test_on_a_terminal_the_changing_line_is_redrawn_and_cleared(tmp_path: Path) -> None:
    class Terminal:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    echo = Echo(terminal, tmp_path / "log")  # type: ignore[arg-type]
    echo.update("step 1")
    echo.update("step 2")
    echo.line("done")
    assert terminal.text == "step 1\r\x1b[Kstep 2\r\x1b[Kdone\n"
    assert (tmp_path / "log").read_text() == "step 1\ndone\n"
