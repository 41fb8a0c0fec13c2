"""Real arms of a small recipe (2 ranks, 4 steps) to plant faults in; what is shared runs once a session."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import builders
from samebits.compare.collect import collect
from samebits.fingerprint.paths import Artifact
from samebits.launch.console import Echo
from samebits.launch.run_arms import run_arms
from samebits.plan import arms
from samebits.spec.plan import Plan
from samebits.spec.questions import Fault
from samebits.spec.sections import Recipe

Launch = Callable[..., Artifact]


SMALL: dict[str, Any] = {
    "name": "small",
    "model": {
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "ffn_hidden": 64,
        "sequence_length": 16,
        "vocabulary": 128,
        "moe": builders.moe(ffn_hidden=32),
        "mtp": {"layers": 1, "loss_scaling": 0.1},
    },
    "parallel": {"expert": 2},
    "steps": 4,
    "checkpoint": {"every": 2, "resume_from": 2},
}
"""MoE over EP 2, MTP, distributed optimizer, bf16, dropout: the smoke recipe, smaller."""


def small_recipe(**changes: Any) -> Recipe:
    return builders.recipe(**(SMALL | changes))


@dataclasses.dataclass(frozen=True)
class Arms:
    """Runs arms into one folder."""

    results: Path

    def run(self, recipe: Recipe, arm: str, name: str, *faults: Fault) -> Artifact:
        """The arm, run and collected, in the folder `name`; restored ones start from this folder's `reference`."""
        plan = arms.plan(recipe, arm, self.results)
        if faults:
            plan = dataclasses.replace(plan, faults=tuple(arms.placed(recipe, fault) for fault in faults))
        artifact = self.start(plan, name)
        collect(artifact.folder)
        return artifact

    def start(self, plan: Plan, name: str) -> Artifact:
        artifact = Artifact(arms.artifact_folder(self.results, plan.recipe.name, name))
        said = io.StringIO()
        outcome = run_arms([(plan, artifact)], echo=Echo(said))
        assert outcome.ok, f"{outcome.message}\n{said.getvalue()}"
        return artifact


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    return Arms(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def reference(small: Arms) -> Artifact:
    return small.run(small_recipe(), "reference", "reference")
