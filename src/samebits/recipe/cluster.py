"""The cluster file: what a site is like, whatever the recipe. `profiles/slurm/cluster.yaml` is one.

facts = load(Path("profiles/slurm/cluster.yaml"))
nodes, ranks_per_node = facts.layout(recipe)
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from samebits.recipe import typed
from samebits.recipe import yaml as document
from samebits.recipe.problem import Problem
from samebits.recipe.run_rules import reserved_options
from samebits.spec.sections import Recipe
from samebits.spec.strict import Count, Positive, Section
from samebits.spec.surroundings import Slurm

Engine = Literal["none", "pyxis", "apptainer", "charliecloud", "podman"]
"""What brings a command into an image."""
_LONGEST_POLL = 600
EXAMPLE = "profiles/slurm/cluster.yaml"


class ClusterError(ValueError):
    """A cluster file that cannot be used, or a recipe that does not fit it. One line per problem."""


@dataclass(frozen=True, kw_only=True)
class ClusterFile(Section):
    """Facts of a site."""

    scheduler: Literal["slurm"]
    """Whose jobs the arms are."""
    ranks_per_node: Count
    """For recipes without a section `cluster`: GPUs of a node, or ranks of a node without GPUs."""
    gpus: bool
    """Whether a rank has a GPU of its own, which Slurm is asked for."""
    cpus_per_rank: Count
    """Cores of a rank, data loading included."""
    engine: Engine
    """How ranks get into the image of a recipe; recipes without one run on the bare node."""
    images: str = "."
    """Folder of image files, from this file's folder, or absolute."""
    mounts: tuple[str, ...] = ()
    """Further paths that ranks see inside the image; results and data are seen in any case."""
    interface: str | None = None
    """Network interface between nodes (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); absent: the libraries choose."""
    verify_image: Literal["every-node", "first-node"] = "every-node"
    """Who reads an image file to check its sha256; one node is enough where all read the same file."""
    requeue: bool = True
    """Whether Slurm may start a preempted job, or one that lost a node, again; its arm then begins from nothing."""
    poll_seconds: Positive = 10.0
    """Between two questions to the controller about a job."""
    setup: tuple[str, ...] = ()
    """Lines of shell at the start of every job, such as `module load apptainer`."""
    slurm: Slurm = field(default_factory=Slurm)
    """Account, partition and further options."""

    def layout(self, recipe: Recipe) -> tuple[int, int]:
        """(nodes, ranks per node). Raises ClusterError where the recipe's ranks do not fill whole nodes."""
        world = recipe.parallel.world
        if recipe.cluster is not None:
            return recipe.cluster.nodes, recipe.cluster.ranks_per_node
        if world <= self.ranks_per_node:
            return 1, world
        if world % self.ranks_per_node:
            raise ClusterError(
                f"{recipe.name}: parallel.world is {world}, must be a multiple of the cluster file's ranks_per_node "
                f"({self.ranks_per_node}); say in the recipe how it lies: `cluster: {{nodes: N, ranks_per_node: M}}`"
            )
        return world // self.ranks_per_node, self.ranks_per_node

    def slurm_of(self, recipe: Recipe) -> Slurm:
        """What sbatch and srun are asked for: the recipe's entries before the site's."""
        own = recipe.cluster.slurm if recipe.cluster else None
        if own is None:
            return self.slurm
        named = {
            entry.name: getattr(own, entry.name) or getattr(self.slurm, entry.name) for entry in dataclasses.fields(own)
        }
        return Slurm(**{**named, "sbatch": {**self.slurm.sbatch, **own.sbatch}, "srun": (*self.slurm.srun, *own.srun)})


def load(path: Path) -> ClusterFile:
    """`images` as an absolute path. Raises ClusterError with all problems of the file."""
    try:
        body = document.read(path, noun="cluster file", example=EXAMPLE)
        facts = TypeAdapter(ClusterFile).validate_json(json.dumps(body))
    except document.DocumentError as error:
        raise ClusterError(str(error)) from error
    except ValidationError as error:
        raise _refusal(path, typed.problems(ClusterFile, error.errors(include_url=False))) from error
    found = [*_mount_problems(facts), *_other_problems(facts), *reserved_options(facts.slurm, "slurm")]
    if found:
        raise _refusal(path, found)
    return dataclasses.replace(facts, images=str((path.parent / facts.images).resolve()))


def _mount_problems(facts: ClusterFile) -> list[Problem]:
    return [
        Problem(f"mounts[{index}]", mount, "must be an absolute path, the same inside and outside", "write it out")
        for index, mount in enumerate(facts.mounts)
        if not mount.startswith("/") or ":" in mount
    ]


def _other_problems(facts: ClusterFile) -> list[Problem]:
    found = []
    if facts.interface is not None and not re.fullmatch(r"[A-Za-z0-9_.:^=,-]+", facts.interface):
        rule = "must be the name of a network interface, as `ip link` shows it"
        found.append(Problem("interface", facts.interface, rule, "give one name, or delete the key"))
    if facts.poll_seconds > _LONGEST_POLL:
        rule = f"must be at most {_LONGEST_POLL}: so long may an ended job go unnoticed"
        found.append(Problem("poll_seconds", facts.poll_seconds, rule, "use 15, for example"))
    return found


def _refusal(path: Path, problems: list[Problem]) -> ClusterError:
    return ClusterError("\n".join(f"{path}: {problem}" for problem in problems))
