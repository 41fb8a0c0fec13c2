"""What `samebits plan RECIPE` shows of the experiments that measure time: their runs, and how narrow their intervals
will come out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from samebits.overhead import statistics
from samebits.overhead.analysis import Runs, measure
from samebits.plan import overhead_runs
from samebits.spec.overhead import Experiment
from samebits.spec.sections import Recipe


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One experiment. block: the settings of the first one, in their order. runs: in all, with the rehearsal. steps:
    timed, of one run. spread: percent, of the block ratios, measured before or assumed. half_width: percent, of the
    interval, kept within by 9 of 10 experiments; None below two blocks. wanted_half_width: percent. wanted_blocks: that
    this takes; None where it takes more than anybody makes. time_minutes: at most."""

    experiment: Experiment
    block: tuple[str, ...]
    blocks: int
    runs: int
    ranks: int
    steps: int
    warm_up: int
    spread: float
    measured: bool
    half_width: float | None
    wanted_half_width: float
    wanted_blocks: int | None
    time_minutes: int
    command: str


def describe(recipe: Recipe, path: Path, results: Path) -> list[ExperimentRow]:
    """Of the experiments that the recipe's pipeline makes. path: of the recipe, as the commands name it. results: where
    earlier runs may lie, whose scatter is better than an assumption."""
    return list(_rows(recipe, path, results))


def _rows(recipe: Recipe, path: Path, results: Path) -> Iterator[ExperimentRow]:
    if (wanted := recipe.overhead) is None:
        return
    for experiment in overhead_runs.asked(recipe):
        order = overhead_runs.settings(recipe, experiment)
        block, known = tuple(overhead_runs.block(order, 1)), _spread(recipe, experiment, results)
        spread = known or statistics.SPREAD_ASSUMED
        runs = 1 + wanted.blocks * len(block)
        option = overhead_runs.option(experiment)
        yield ExperimentRow(
            experiment=experiment,
            block=block,
            blocks=wanted.blocks,
            runs=runs,
            ranks=recipe.parallel.world,
            steps=wanted.steps,
            warm_up=wanted.warm_up,
            spread=spread,
            measured=known is not None,
            half_width=statistics.half_width(wanted.blocks, spread) if wanted.blocks > 1 else None,
            wanted_half_width=wanted.half_width_percent,
            wanted_blocks=_blocks_for(wanted.half_width_percent, spread),
            time_minutes=runs * recipe.launch.time_minutes,
            command=shlex.join(["samebits", "overhead", str(path), *option]),
        )


def _spread(recipe: Recipe, experiment: Experiment, results: Path) -> float | None:
    """The widest of its effects', in runs that lie there and stand."""
    runs = Runs(recipe, experiment, results)
    found = measure(runs).findings if runs.present else None
    spreads = [effect.median.interval.spread for effect in (found.effects if found else ()) if effect.median.interval]
    return max(spreads, default=None)


def _blocks_for(width: float, spread: float) -> int | None:
    try:
        return statistics.blocks_for(width, spread)
    except ValueError:
        return None
