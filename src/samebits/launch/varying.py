"""How the ranks of a stress run are started otherwise: through `samebits.worker.perturb`, and in another order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from samebits.launch.rank_command import by_node
from samebits.spec.plan import Plan

STRESS = "stress"
"""Folder of stress runs, beside `arms`."""
_ORDER = "node-order"
HOST_FILE = "SLURM_HOSTFILE"
"""Of srun: names a node for each task, for `--distribution=arbitrary`."""


def entered(plan: Plan, artifact: Path, python: str) -> list[str]:
    """What stands before the command of a rank; nothing where nothing is varied. artifact: folder of the arm."""
    return [python, "-m", "samebits.worker.perturb", str(artifact)] if plan.stress else []


def starting_order(plan: Plan) -> Sequence[int]:
    """Ranks, as one machine starts them."""
    ranks = range(plan.world)
    return ranks[::-1] if _ORDER in plan.stress else ranks


def nodes_reversed(plan: Plan, nodes: int) -> bool:
    """Whether the first ranks are to run on the last node. A line that starts its ranks itself orders them itself."""
    return _ORDER in plan.stress and nodes > 1 and not by_node(plan.recipe)


def host_file(nodes: Sequence[str], each: int) -> str:
    """A line for each task, the last node first, in blocks. each: tasks of a node."""
    return "".join(f"{node}\n" * each for node in reversed(nodes))
