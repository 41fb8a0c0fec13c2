"""The job step that is an arm's ranks: `srun` into the image, as pure text.

Ranks are `nodes x ranks_per_node`, in blocks: rank r runs on node r // ranks_per_node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from samebits.fingerprint.paths import Artifact
from samebits.launch import rank_command
from samebits.recipe.image import Image
from samebits.spec.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Facts with which the ranks of a job's arms are started; the same for all its arms.

    options: of srun, the site's and the engine's. prefix: what enters the image. command: starts one rank, the
    artifact's folder is appended. outside: environment of srun. path: PYTHONPATH behind samebits' own sources.
    interface: between nodes; None: libraries choose. python: inside the image, where there is one.
    """

    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    options: tuple[str, ...]
    prefix: tuple[str, ...]
    command: tuple[str, ...]
    outside: Mapping[str, str]
    path: str
    interface: str | None
    image: Image | None
    verify: Literal["every-node", "first-node"]
    python: str = sys.executable

    @property
    def world(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The place at which the ranks of one start meet. address: name of the first node. port: free there a moment
    ago."""

    address: str
    port: int
    launch: str


def ranks(stage: Stage, artifact: Artifact, plan: Plan, meeting: Meeting) -> list[str]:
    """Return the command line that runs all ranks of an arm and ends when the last one has."""
    backwards = rank_command.nodes_reversed(plan, stage.nodes)
    each = stage.ranks_per_node if rank_command.one_process_per_node(plan.recipe) else 1
    variables = [f"{name}={value}" for name, value in inside(stage, artifact, plan, meeting).items()]
    return [
        *tasks(stage, stage.ranks_per_node // each, ranks=each, backwards=backwards),
        # A rank that ends early is the launcher's business: it leaves the others time to say what they saw.
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--output={artifact.log(0).parent}/rank-%5t.log",
        *stage.options,
        *stage.prefix,
        "env",
        # Of a prologue or an image; ours follow from Slurm's own.
        *("-u", "RANK", "-u", "LOCAL_RANK"),
        # Of an image or a site: settings whose cost is measured by leaving them off.
        *(word for name in rank_command.removed_variables(plan) for word in ("-u", name)),
        *variables,
        *rank_command.perturbation(plan, artifact.folder, stage.python),
        *stage.command,
        str(artifact.folder),
    ]


def image_check(stage: Stage, python: str, image: Image) -> list[str]:
    """Return the command that reads the image file and compares its sha256, on every node or on the first one."""
    check = [python, "-m", "samebits.recipe.image", str(image.file), image.digest]
    return [*tasks(stage, 1), *check] if stage.verify == "every-node" else check


def tasks(stage: Stage, each: int, *, ranks: int = 1, backwards: bool = False) -> list[str]:
    """Return srun's options for `each` tasks on every node. ranks: that one task starts. backwards: nodes in the order
    of the host file (see `rank_command`)."""
    return [
        "srun",
        f"--nodes={stage.nodes}",
        f"--ntasks={stage.nodes * each}",
        f"--ntasks-per-node={each}",
        # Since Slurm 22.05 srun does not take it over from sbatch.
        f"--cpus-per-task={stage.cpus_per_rank * ranks}",
        f"--distribution={'arbitrary' if backwards else 'block'}",
        "--input=none",
        "--export=ALL",
    ]


def inside(stage: Stage, artifact: Artifact, plan: Plan, meeting: Meeting) -> dict[str, str]:
    """Return the variables of every rank, set inside the image, over whatever the image or an engine sets. RANK and
    LOCAL_RANK follow from Slurm's own (samebits.worker.rendezvous)."""
    own = {
        **rank_command.rank_environment(plan),
        "WORLD_SIZE": str(stage.world),
        "LOCAL_WORLD_SIZE": str(stage.ranks_per_node),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(artifact.launch / "code"), stage.path))),
        # Thousands of ranks share the folder of their sources.
        "PYTHONDONTWRITEBYTECODE": "1",
        "SAMEBITS_LAUNCH": meeting.launch,
    }
    if stage.interface is not None:
        own |= {"GLOO_SOCKET_IFNAME": stage.interface, "NCCL_SOCKET_IFNAME": stage.interface}
    if stage.image is not None:
        own["SAMEBITS_IMAGE"] = stage.image.digest
    return own
