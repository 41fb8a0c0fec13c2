"""The section `command` of a recipe: a launch line of one's own, run as it stands.

A line is split into words as a shell splits them, quotes included, and no shell runs it: nothing is expanded but the
placeholders below. What needs a shell (pipes, variables) stands in a script: `bash train.sh {save}`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from samebits.spec.questions import FaultKind
from samebits.spec.strict import Section

Launcher = Literal["ours", "torchrun", "own"]
Adapter = Literal["auto", "megatron", "torch"]

FAULTS: tuple[FaultKind, ...] = ("ulp", "gradient", "moment-drop", "rng-skip")
"""What can be planted in a training that is only watched."""

PLACEHOLDERS: dict[str, str] = {
    "save": "folder that checkpoints are saved to",
    "checkpoint": "folder that the reference saved its checkpoints to; of a resumed run",
    "step": "last step before the run begins: `checkpoint.resume_from`; 0 from scratch",
    "stop": "last step",
    "logs": "folder for whatever the line writes besides",
    "world": "ranks in all",
    "nodes": "number of nodes",
    "node": "number of this node, from 0",
    "ranks_per_node": "ranks of one node",
    "master_address": "where ranks meet",
    "master_port": "a port that is free there",
}
"""What a line may hold in braces; `{{` and `}}` stand for braces."""


@dataclass(frozen=True, kw_only=True)
class Command(Section):
    """A launch line of the user's own."""

    full: str
    """The line of a run from scratch, with placeholders such as {save} and {stop}."""
    resumed: str | None = None
    """The line of a run that goes on from {checkpoint} at step {step}; absent: no gate that restores."""
    launcher: Launcher
    """Who starts the ranks: `ours` (the line is run once a rank), `torchrun` or `own` (once a node)."""
    adapter: Adapter = "auto"
    """How steps are found: in `megatron`.training, or in the optimizer of any `torch` loop; `auto`: as imported."""
    folder: str = "."
    """Working directory, relative to the recipe's folder, or absolute."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables of every rank; those of determinism stand in `determinism.environment`."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Files whose sha256 (by path from `folder`) every rank checks before it starts: scripts, data."""


def filled(line: str, values: Mapping[str, str]) -> list[str]:
    """The words of a line, its placeholders replaced: a value stays within its word, whatever it holds."""
    return [word.format_map(values) for word in shlex.split(line)]
