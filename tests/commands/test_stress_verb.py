"""The verb's exit status, and that what it ends leaves nothing running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import builders
import launching

VERB = """
import functools, sys
import typer
from samebits.stress import run as stress
from samebits.commands.status import guarded
from samebits.commands import stress as verb

stress.stressed = functools.partial(stress.stressed, command=[sys.executable, *sys.argv[1:3]])
sys.argv = ["samebits", *sys.argv[3:]]
app = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(verb.app)
sys.exit(guarded(app))
"""
RANK = Path(__file__).parents[1].joinpath("dependent_rank.py")


def started(folder: Path, mode: str, *options: str) -> subprocess.Popen[str]:
    builders.recipe_file(folder, steps=4, checkpoint={"every": 2, "resume_from": 2})
    words = [sys.executable, "-c", VERB, str(RANK), mode, "stress", "smoke.yaml", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def stress(folder: Path, mode: str, *options: str) -> tuple[int, str, str]:
    process = started(folder, mode, *options)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


ONE = ("--only", "hash-seed")


@pytest.mark.parametrize(
    ("mode", "options", "status", "said"),
    [
        ("never", ONE, 0, "PASS"),
        ("with:hash-seed", ONE, 1, "FAIL"),
        ("pin:hash-seed", ONE, 2, "INVALID"),
        ("at-times:hash-seed", ONE, 3, "INCONCLUSIVE"),
        ("fails:hash-seed", ONE, 4, "the loss is a teapot"),
        ("never", ("--only", "hash"), 2, "'hash' is no variation"),
        ("never", (*ONE, "--plant", "ulp"), 3, "a fault is planted in every run"),
        ("never", (*ONE, "--cluster", "none.yaml"), 2, "none.yaml"),
    ],
)
def test_exit_status_and_first_words(
    mode: str, options: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    found, out, err = stress(tmp_path, mode, *options)
    assert found == status, f"{out}\n{err}"
    assert said in " ".join((out or err).split())
    assert ("Traceback" in err) is (status == 4)  # the rank's own, quoted


def test_json_is_all_of_standard_output_and_the_number_of_runs_is_said_before(tmp_path: Path) -> None:
    status, out, err = stress(tmp_path, "with:hash-seed", *ONE, "--json")
    body = json.loads(out)
    assert (status, body["verdict"], body["culprits"]) == (1, "fail", ["hash-seed"])
    assert err.index("1 variation; beside the reference 1 run where none matters") < err.index("arm reference: job")


def test_a_cancelled_verb_leaves_nothing_running_and_goes_on_where_it_was(tmp_path: Path) -> None:
    home = tmp_path / "results" / "smoke"
    files = [home / "stress" / "contention" / f"pids-{rank}.json" for rank in range(2)]
    process = started(tmp_path, "waits:contention", "--only", "contention")
    launching.wait_for(lambda: all(path.exists() and path.read_text() for path in files))
    pids = [pid for path in files for pid in json.loads(path.read_text())]
    assert len(pids) > len(files)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "arm contention: SIGTERM: cancelled job" in err
    launching.wait_for(lambda: not any(map(launching.alive, pids)), 10)
    before = (home / "arms" / "reference" / "outcome.json").read_text()
    status, out, err = stress(tmp_path, "never", "--only", "contention")
    assert (status, out.split()[0]) == (0, "PASS")
    assert "arm reference: kept" in err
    assert (home / "arms" / "reference" / "outcome.json").read_text() == before
