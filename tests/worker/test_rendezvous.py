"""Which rank a process is, where Slurm starts it."""

from __future__ import annotations

import pytest

from samebits.worker import rendezvous
from samebits.worker.rendezvous import RendezvousError

TASK = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "WORLD_SIZE": "8"}
RANK = {"RANK": "3", "LOCAL_RANK": "3"}


def completed(environment: dict[str, str]) -> tuple[str, str]:
    rendezvous.complete(environment)
    return environment["RANK"], environment["LOCAL_RANK"]


def test_a_task_of_slurm_is_the_rank_of_its_number() -> None:
    assert completed({**TASK}) == ("5", "1")


def test_what_the_launcher_says_stands_whatever_slurm_says() -> None:
    assert completed({**TASK, **RANK}) == ("3", "3")
    assert completed({**RANK, "WORLD_SIZE": "4"}) == ("3", "3")


def test_a_rank_inside_somebodys_job_of_another_size_is_what_its_launcher_says() -> None:
    assert completed({**TASK, **RANK, "SLURM_STEP_NUM_TASKS": "1"}) == ("3", "3")


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_LOCALID"])
def test_a_process_that_nobody_numbered_is_refused(missing: str) -> None:
    name = {"SLURM_PROCID": "RANK", "SLURM_LOCALID": "LOCAL_RANK"}[missing]
    environment = {key: value for key, value in TASK.items() if key != missing}
    with pytest.raises(RendezvousError, match=rf"^{name} and {missing} are not set; the launcher or srun must start"):
        rendezvous.complete(environment)


@pytest.mark.parametrize("tasks", ["4", "16", None])
def test_a_step_of_another_number_of_tasks_is_refused(tasks: str | None) -> None:
    environment = {key: value for key, value in TASK.items() if key != "SLURM_STEP_NUM_TASKS"}
    if tasks is not None:
        environment["SLURM_STEP_NUM_TASKS"] = tasks
    with pytest.raises(RendezvousError, match=rf"WORLD_SIZE is 8, but srun runs {tasks} tasks; start as many"):
        rendezvous.complete(environment)


def test_a_local_rank_alone_is_filled_in() -> None:
    assert completed({**TASK, "RANK": "5"}) == ("5", "1")
