"""The sections of a recipe that say where its arms run: launch, container, cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from samebits.spec.strict import Count, Positive, Section

Placement = Literal["any", "same-nodes", "other-nodes"]


@dataclass(frozen=True, kw_only=True)
class Launch(Section):
    """How the ranks of an arm are started and watched."""

    time_minutes: Count
    """An arm that runs longer is ended."""
    threads: Count
    """Compute threads per rank (OMP_NUM_THREADS and torch)."""
    hang_minutes: Positive = 30.0
    """An arm that ends no step for so long is asked for its stacks and ended."""


@dataclass(frozen=True, kw_only=True)
class Container(Section):
    """The image that the ranks run in; it is never changed or rebuilt."""

    image: str
    """NAME@sha256:HEX: of a registry, or a file below the cluster file's `images`; never a tag."""
    python: str = "python3"
    """The interpreter inside the image that has torch and numpy."""


@dataclass(frozen=True, kw_only=True)
class Slurm(Section):
    """What sbatch and srun are asked for. A recipe's entry wins over the cluster file's."""

    account: str | None = None
    """Who pays; absent: the user's default."""
    partition: str | None = None
    """Absent: the cluster's default."""
    qos: str | None = None
    """Quality of service; absent: the default."""
    constraint: str | None = None
    """Features that every node must have."""
    reservation: str | None = None
    """Nodes that are set aside."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch, by name without dashes; an empty text is an option without a value."""
    srun: tuple[str, ...] = ()
    """Further options of srun, as written on its command line."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Section):
    """Where the arms run; world = nodes x ranks_per_node."""

    nodes: Count
    """Of one arm."""
    ranks_per_node: Count
    """One per GPU where there are GPUs."""
    placement: Placement = "any"
    """`same-nodes`: all arms in one allocation, one after the other. `other-nodes`: twins on none of the reference's
    nodes."""
    slurm: Slurm | None = None
    """Absent: as the cluster file says."""
