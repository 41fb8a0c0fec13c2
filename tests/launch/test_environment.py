"""What processes are started with: nothing that somebody's shell happens to hold."""

from __future__ import annotations

import builders
from samebits.launch import environment

SHELL = {"PATH": "/home/me/bin", "HOME": "/home/me", "NCCL_ALGO": "Tree", "LD_PRELOAD": "x.so", "PYTHONSTARTUP": "s.py"}
JOB = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "SLURMD_NODENAME": "n1", "SRUN_DEBUG": "3"}


def test_srun_gets_the_jobs_own_variables_and_what_is_asked_for() -> None:
    assert environment.of_srun({**SHELL, **JOB}, {"HOME": "/home/you"}) == {
        **JOB,
        "HOME": "/home/you",
        # As the cluster file's `setup` left it in the batch step.
        "PATH": "/home/me/bin",
    }


def test_what_is_asked_for_outside_wins_over_the_jobs_own() -> None:
    assert environment.of_srun({"SLURM_CPU_BIND": "cores"}, {"SLURM_CPU_BIND": "none"}) == {"SLURM_CPU_BIND": "none"}


def test_only_what_finds_software_files_and_devices_is_taken_over() -> None:
    found = {"PATH": "/home/me/bin", "HOME": "/home/me", "LD_LIBRARY_PATH": "/opt/lib", "CUDA_VISIBLE_DEVICES": "1"}
    assert environment.inherited({**SHELL, **JOB, **found}) == found


def test_a_recipes_variables_come_before_those_that_are_filled_in() -> None:
    plan = builders.plan(launch={"threads": 5}, determinism={"environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}})
    own = environment.of_plan(plan)
    assert (own["CUBLAS_WORKSPACE_CONFIG"], own["NCCL_ALGO"]) == (":16:8", "Ring")
    assert (own["OMP_NUM_THREADS"], own["MKL_NUM_THREADS"], own["PYTHONHASHSEED"]) == ("5", "5", "0")


def test_ranks_of_one_machine_meet_there() -> None:
    own = environment.of_local_rank(1, 2, 4711, "launch")
    assert (own["RANK"], own["LOCAL_RANK"], own["WORLD_SIZE"], own["LOCAL_WORLD_SIZE"]) == ("1", "1", "2", "2")
    assert (own["MASTER_ADDR"], own["MASTER_PORT"], own["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "4711", "lo")
    assert own["SAMEBITS_LAUNCH"] == "launch"
