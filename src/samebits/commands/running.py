"""Verbs that run something: plan, run, overhead."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.commands.options import AsJson, ClusterOption, LogFile, RecipeFile, Results
from samebits.commands.status import Decided

if TYPE_CHECKING:
    from samebits.spec.overhead import Experiment
    from samebits.spec.plan import Plan
    from samebits.spec.sections import Recipe

app = typer.Typer()


@app.command()
def plan(
    path: RecipeFile,
    results: Results = Path("results"),
    as_json: AsJson = False,
    cluster: ClusterOption = None,
    sbatch: Annotated[bool, typer.Option("--sbatch", help="Print the jobs' scripts; needs --cluster.")] = False,
) -> None:
    """Show every arm that would run: its ranks, steps, faults, command and environment."""
    from samebits.overhead import run_table
    from samebits.plan import arms, overview
    from samebits.recipe import determinism
    from samebits.recipe import load as recipe
    from samebits.report import listing, terminal

    loaded = recipe.load(path)
    if sbatch:
        from samebits.launch import sbatch as script

        print(script.text(loaded, results, cluster), end="")
        return
    rows = overview.describe(arms.plans(loaded, results), path)
    timed = run_table.describe(loaded, path, results)
    if as_json:
        body = {
            "arms": [dataclasses.asdict(row) for row in rows],
            "experiments": [dataclasses.asdict(row) for row in timed],
        }
        print(json.dumps(body, indent=2))
        return
    terminal.show(*listing.plan_tables(rows, timed))
    for warning in determinism.warnings(determinism.environment(loaded.determinism)):
        print(f"warning: {warning}")


@app.command()
def run(
    path: RecipeFile,
    arm: Annotated[str, typer.Argument(metavar="ARM", help="One of those that `samebits plan` shows.")],
    results: Results = Path("results"),
    stamp: Annotated[Path | None, typer.Option(help="Written where the arm is finished.")] = None,
    log: LogFile = None,
    plant: Annotated[
        str | None, typer.Option(help="A fault to plant, KIND[:rank=N][:step=N][:target=NAME][:probability=P]: a test.")
    ] = None,
    cluster: ClusterOption = None,
) -> None:
    """Run one arm, or say why it need not run; one that is still running is waited for."""
    from samebits.commands import launching
    from samebits.recipe.planting import parse

    fault = parse(plant) if plant is not None else None
    raise typer.Exit(launching.run(path, arm, results, stamp=stamp, log=log, fault=fault, cluster=cluster))


@app.command()
def overhead(
    path: RecipeFile,
    results: Results = Path("results"),
    attribute: Annotated[bool, typer.Option("--attribute", help="Which determinism setting costs what.")] = False,
    capture: Annotated[bool, typer.Option("--capture", help="What each rung of capture costs.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Baseline against itself: a test of the instrument.")] = False,
    slowdown: Annotated[
        float, typer.Option(help="With --null: percent by which one of the two is slowed down; is it found?")
    ] = 0.0,
    again: Annotated[bool, typer.Option("--again", help="Make all runs anew, whatever is there.")] = False,
    stamp: Annotated[Path | None, typer.Option(help="Written where all runs are finished; nothing is judged.")] = None,
    log: LogFile = None,
    cluster: ClusterOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure what determinism costs, in interleaved runs of fresh processes; they are kept while nothing changes.

    Exit status: 0 measured, 1 not deterministic or not healthy, 2 not comparable, 3 not all runs are evidence.
    """
    from samebits.commands import launching
    from samebits.plan import overhead_runs

    chosen = overhead_runs.chosen(attribute=attribute, capture=capture, null=null)
    overhead_runs.check_slowdown(chosen, slowdown)

    def plans(recipe: Recipe) -> list[Plan]:
        return overhead_runs.plans(recipe, chosen, slowdown)

    if status := launching.run_experiment(path, plans, results, stamp=stamp, log=log, cluster=cluster, again=again):
        raise typer.Exit(status)
    if stamp is None:
        _show_cost(path, chosen, results, slowdown, as_json=as_json)


def _show_cost(path: Path, chosen: Experiment, results: Path, slowdown: float, *, as_json: bool) -> None:
    from samebits.compare.results import to_json
    from samebits.overhead import gate, step_times
    from samebits.recipe import load as recipe
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    cost = step_times.measured(recipe.load(path), chosen, results, slowdown)
    if as_json:
        print(to_json(cost), end="")
    else:
        terminal.show(terminal.cost_text(cost))
    raise Decided(EXIT_STATUS[gate.evidence(cost)])
