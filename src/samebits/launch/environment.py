"""The environment of a rank: nothing that somebody's shell happens to hold, all that the recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping

from samebits.recipe import determinism
from samebits.spec.plan import Plan

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    # Some machines need these two for right results of old OpenBLAS builds; every rank records the first.
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)
"""Finding software, files and devices: passed on from whoever starts the arm. All else is left behind."""


_FOUND = ("PATH", "LD_LIBRARY_PATH")
"""Of a job's batch step, where the cluster file's `setup` may have added a module's folders."""


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a rank takes over from the surroundings of whoever starts the arm."""
    return {name: environment[name] for name in INHERITED if name in environment}


def of_plan(plan: Plan) -> dict[str, str]:
    """What every rank of an arm is started with; the recipe's own variables win."""
    threads = str(plan.recipe.launch.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # Hashes of text, and with them the order of sets, are otherwise drawn anew in every process.
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        **determinism.environment(plan.recipe.determinism, plan.relaxed),
    }


def left_off(plan: Plan) -> list[str]:
    """Variables of determinism that no rank of the arm may see."""
    asked = determinism.environment(plan.recipe.determinism)
    return [name for name in asked if name in plan.relaxed]


def of_srun(environment: Mapping[str, str], outside: Mapping[str, str]) -> dict[str, str]:
    """What srun, and with it every task outside the image, is started with: the job's own variables, and what
    `outside` asks for. Options of srun that come from somebody's shell (SRUN_, SLURM_ ones that a step reads) stay, as
    Slurm itself sets most of them."""
    own = {name: value for name, value in environment.items() if name.startswith(("SLURM", "SRUN_"))}
    return {**own, **outside, **{name: environment[name] for name in _FOUND if name in environment}}


def of_local_rank(rank: int, world: int, port: int, launch: str) -> dict[str, str]:
    """What torch.distributed and samebits.worker.main expect, all ranks being on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "SAMEBITS_LAUNCH": launch,
    }
