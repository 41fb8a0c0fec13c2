"""What is made of Slurm's answers, whatever they are. The commands are stand-ins; tests/slurm asks the real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.launch import slurm_cli
from samebits.launch.slurm_cli import SlurmError, View

Answer = Callable[..., None]
CONFIG = "AccountingStorageType   = {}\n"
PURGED = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Makes a command print a text and end with a status."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    slurm_cli.accounting.cache_clear()

    def make(command: str, out: str = "", error: str = "", status: int = 0) -> None:
        (tmp_path / f"{command}.out").write_text(out)
        (tmp_path / f"{command}.err").write_text(error)
        path = tmp_path / command
        path.write_text(f"#!/bin/sh\ncat {path}.out\ncat {path}.err >&2\nexit {status}\n")
        path.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("line", "live"),
    [
        ("PENDING|Resources||smoke-reference-0\n", True),
        ("RUNNING|None|n[1-2]|smoke-reference-0\n", True),
        ("COMPLETING|None|n[1-2]|smoke-reference-0\n", True),
        ("SUSPENDED|None|n1|smoke-reference-0\n", True),
        ("REQUEUED|BeginTime||smoke-reference-0\n", True),
        ("STOPPED|None|n1|smoke-reference-0\n", True),
        ("CANCELLED|None|n1|smoke-reference-0\n", False),
        ("TIMEOUT|TimeLimit|n1|smoke-reference-0\n", False),
        ("NODE_FAIL|None|n1|smoke-reference-0\n", False),
        ("OUT_OF_MEMORY|None|n1|smoke-reference-0\n", False),
    ],
)
def test_a_state_of_the_queue_is_live_or_not(answer: Answer, line: str, live: bool) -> None:
    answer("squeue", line)
    assert slurm_cli.view("7").live is live


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("COMPLETED|n1|smoke\n", "COMPLETED"),
        ("CANCELLED by 1000|n1|smoke\n", "CANCELLED"),
        ("NODE_FAIL|n1|smoke\nCOMPLETED|n2|smoke\n", "COMPLETED"),
        ("RUNNING|n1|smoke\n", "GONE"),
        ("", "GONE"),
    ],
)
def test_a_job_that_the_controller_forgot_is_looked_up_in_the_accounts(answer: Answer, said: str, state: str) -> None:
    answer("squeue", error=PURGED, status=1)
    answer("scontrol", CONFIG.format("accounting_storage/slurmdbd"))
    answer("sacct", said)
    assert slurm_cli.view("7").state == state
    assert not slurm_cli.view("7").live


@pytest.mark.parametrize("kind", ["(null)", "accounting_storage/none"])
def test_without_accounting_sacct_is_never_asked(answer: Answer, kind: str) -> None:
    answer("squeue", error=PURGED, status=1)
    answer("scontrol", CONFIG.format(kind))
    assert slurm_cli.view("7") == View(state="GONE")


def test_a_controller_that_does_not_answer_is_not_an_ended_job(answer: Answer) -> None:
    answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", status=1)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        slurm_cli.view("7")


def test_a_missing_command_says_where_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="`squeue` is not on PATH"):
        slurm_cli.view("7")


def test_cancelling_a_job_that_is_gone_is_no_trouble(answer: Answer) -> None:
    answer("scancel", error="scancel: error: Kill job error on job id 7: Invalid job id specified", status=1)
    slurm_cli.cancel("7")
    answer("scancel", error="scancel: error: Access/permission denied", status=1)
    with pytest.raises(SlurmError, match="permission denied"):
        slurm_cli.cancel("7")


@pytest.mark.parametrize("said", ["Welcome to the cluster\n", "RUNNING\n", "||||\n", "running|None|n1|x\n"])
def test_an_answer_that_is_none_is_trouble_and_not_an_end(answer: Answer, said: str) -> None:
    answer("squeue", said)
    with pytest.raises(SlurmError, match="no state of a job"):
        slurm_cli.view("7")


def test_a_greeting_before_the_answer_is_passed_over(answer: Answer) -> None:
    answer("squeue", "Welcome to the cluster\nRUNNING|None|n1|smoke|odd\n")
    assert slurm_cli.view("7") == View(state="RUNNING", name="smoke|odd", reason="None", nodes="n1")
