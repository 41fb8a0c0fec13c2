"""Collected synthetic arms whose pins say what their recipe asks for, alone or as a whole recipe's results."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import artifacts
from samebits.compare.collect import collect
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Moment
from samebits.plan import arms
from samebits.recipe import determinism
from samebits.spec.pins import Pins
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe


def pins(rank: int = 0, **groups: dict[str, str]) -> Pins:
    """In force is what `builders.recipe()` asks for, on one node. groups: entries added or replaced."""
    usual = {
        "runtime": {
            "deterministic_algorithms": "True",
            "fill_uninitialized_memory": "False",
            "deterministic_mode": "True",
            "cross_entropy_loss_fusion": "False",
            "moe_router_fusion": "False",
            "clock": "host",
            "threads": "1",
        },
        "environment": determinism.environment(artifacts.make_plan().recipe.determinism),
        "placement": {"host": "node-0"},
    }
    return artifacts.make_pins(
        rank, **{group: {**usual.get(group, {}), **groups.get(group, {})} for group in usual.keys() | groups.keys()}
    )


def on_rank(rank: int | None, **groups: dict[str, str]) -> Callable[[int], Pins]:
    """Other pins on one rank, or on all."""
    return lambda own: pins(own, **groups) if rank in (None, own) else pins(own)


def written(folder: Path, **changes: Any) -> Artifact:
    """A collected artifact; see `artifacts.write_artifact`."""
    artifact = artifacts.write_artifact(folder, **{"pins": pins, **changes})
    collect(artifact.folder)
    return artifact


_MEMORY = Path("/dev/shm")
_SCRATCH = tempfile.TemporaryDirectory(prefix="samebits-tests-", dir=_MEMORY if _MEMORY.is_dir() else None)
"""In memory where there is some: property tests write thousands of files, and each seal waits for the disk."""


def scratch() -> Path:
    """A new folder that goes away when the tests end."""
    return Path(tempfile.mkdtemp(dir=_SCRATCH.name))


def limited(*, arm: str = "reference", world: int = 2, **capture: Any) -> Plan:
    """A plan whose recipe limits what is captured."""
    plan = artifacts.make_plan(arm=arm, world=world)
    limits = dataclasses.replace(plan.recipe.capture, **capture)
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, capture=limits))


def pair(folder: Path, **changes: Any) -> tuple[Artifact, Artifact]:
    """A reference and a twin. changes: of the twin, `world`, `steps`, `every` and `capture` limits of both."""
    both = {name: value for name, value in changes.items() if name in ("world", "steps", "every")}
    return (
        written(folder / "reference", **both),
        written(folder / "twin-1", **{"arm": "twin-1", **changes}),
    )


@dataclasses.dataclass
class Results:
    """A recipe's results folder, arm by arm. Controls find what they planted unless a test changes them."""

    recipe: Recipe
    folder: Path

    def write(self, **changes: dict[str, Any]) -> Path:
        """All arms; returns the results folder. changes: by arm name, `-` as `_`; None leaves the arm out."""
        for name in arms.arms(self.recipe):
            change = changes.get(name.replace("-", "_"), {})
            if change is not None:
                self.write_arm(name, **change)
        return self.folder

    def write_arm(self, name: str, **changes: Any) -> Artifact:
        plan = arms.plan(self.recipe, name, self.folder)
        folder = arms.artifact_folder(self.folder, self.recipe.name, name)
        return written(folder, **{"plan": plan, **_planted(plan), **changes})


def _planted(plan: Plan) -> dict[str, Any]:
    """What a control arm does, as far as synthetic arms can: `ulp` and `rng-skip`."""
    if not plan.faults:
        return {}
    rank = plan.world - 1
    if plan.restore is None:
        step = plan.faults[0].step or 0
        return at("ulp", "parameter:w0", rank=rank, step=step)
    return at("rng-skip", "rng:torch", rank=rank, step=plan.first_step - 1, moment="restored")


def at(fault: str, item: str, *, rank: int, step: int, moment: str = "step") -> dict[str, Any]:
    """A fault that strikes one item, its note, and what it spreads to."""
    return {
        "change": (
            artifacts.altered(item, rank=rank, step=step, moment=Moment[moment.upper()]),
            artifacts.diverged(step=step),
        ),
        "notes": [artifacts.planted(fault, item, rank=rank, step=step, moment=moment)],
    }


def recipe(**changes: Any) -> Recipe:
    """Four steps, a checkpoint every two, two ranks, every gate."""
    return artifacts.make_plan(**changes).recipe
