"""The arms of a recipe as they lie in the results folder, each certified once and held against the recipe in force."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from samebits.compare import compatibility
from samebits.compare.certify import Arm, load
from samebits.overhead.analysis import Runs, measure
from samebits.overhead.results import Cost
from samebits.plan import arms, overhead_runs
from samebits.spec import pins
from samebits.spec.overhead import Experiment
from samebits.spec.plan import Plan
from samebits.spec.sections import Recipe


@dataclass(frozen=True)
class Evidence:
    """results: folder of all results."""

    recipe: Recipe
    results: Path
    _arms: dict[str, Arm] = field(default_factory=dict, repr=False)
    _runs: dict[Experiment, Runs] = field(default_factory=dict, repr=False)
    _costs: dict[Experiment, Cost] = field(default_factory=dict, repr=False)

    def cost(self, experiment: Experiment) -> Cost:
        if experiment not in self._costs:
            self._costs[experiment] = measure(self.runs(experiment))
        return self._costs[experiment]

    def runs(self, experiment: Experiment) -> Runs:
        if experiment not in self._runs:
            self._runs[experiment] = Runs(self.recipe, experiment, self.results)
        return self._runs[experiment]

    @property
    def made(self) -> list[Experiment]:
        """Experiments that the recipe asks for, `overhead` first, and others of which something lies there."""
        if self.recipe.overhead is None:
            return []
        wanted = overhead_runs.asked(self.recipe)
        others = (one for one in overhead_runs.EXPERIMENTS if one not in wanted and one != "null")
        return [*wanted, *(one for one in others if self.runs(one).present and self._stands(one))]

    def _stands(self, experiment: Experiment) -> bool:
        """Made on request, and of this recipe: with something to say."""
        cost = self.cost(experiment)
        return cost.findings is not None or bool(cost.failures)

    @property
    def names(self) -> list[str]:
        return arms.arms(self.recipe)

    @property
    def reference(self) -> Arm:
        return self.arm(arms.REFERENCE)

    def arm(self, name: str) -> Arm:
        if name not in self._arms:
            self._arms[name] = self._load(name)
        return self._arms[name]

    def _load(self, name: str) -> Arm:
        """An arm that was run otherwise than the recipe asks for keeps its bits and gets its deviations."""
        found = load(arms.artifact_folder(self.results, self.recipe.name, name), name)
        if found.certified is None:
            return found
        manifest = found.certified.manifest
        observed = {file.rank: file.pins for file in manifest.ranks}
        apart = compatibility.of_plan(self._plan(name), manifest.plan, compatibility.all_ranks(manifest))
        apart += pins.undeclared(self.recipe.pins, observed)
        return dataclasses.replace(found, name=name, deviations=tuple(apart))

    def _plan(self, name: str) -> Plan:
        return arms.plan(self.recipe, name, self.results)
