"""Rank of this process from Slurm's own variables, where the launcher could not know it."""

from __future__ import annotations

from collections.abc import MutableMapping

_FROM_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"}


class RendezvousError(ValueError):
    """A process whose rank is not known."""


def complete(environment: MutableMapping[str, str]) -> None:
    """Set RANK and LOCAL_RANK from Slurm's task where they are not set.

    Raises RendezvousError where neither is there, or where Slurm runs another number of tasks than WORLD_SIZE.
    """
    for name, source in _FROM_SLURM.items():
        if name in environment:
            continue
        if source not in environment:
            raise RendezvousError(f"{name} and {source} are not set; the launcher or srun must start this process")
        environment[name] = environment[source]
        tasks, world = environment.get("SLURM_STEP_NUM_TASKS"), environment.get("WORLD_SIZE")
        if tasks != world:
            raise RendezvousError(f"WORLD_SIZE is {world}, but srun runs {tasks} tasks; start as many")
