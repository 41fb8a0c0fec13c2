"""Verbs that run something: plan, run, overhead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.status import Decided
from samebits.verbs.words import AsJson, ClusterOption, LogFile, RecipeFile, Results

if TYPE_CHECKING:
    from samebits.overhead import Experiment
    from samebits.plan import Plan
    from samebits.sections import Recipe

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
    from samebits import arms, determinism, experiment_table, plan_table, recipe
    from samebits.report import listing, terminal

    loaded = recipe.load(path)
    if sbatch:
        from samebits.launch import script

        print(script.text(loaded, results, cluster), end="")
        return
    rows = plan_table.describe(arms.plans(loaded, results), path)
    timed = experiment_table.describe(loaded, path, results)
    if as_json:
        print(plan_table.to_json(rows, timed), end="")
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
    from samebits.launch import verb
    from samebits.planting import parse

    fault = parse(plant) if plant is not None else None
    raise typer.Exit(verb.run(path, arm, results, stamp=stamp, log=log, fault=fault, cluster=cluster))


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
    from samebits import experiments
    from samebits.launch import verb

    chosen = experiments.chosen(attribute=attribute, capture=capture, null=null)
    experiments.check_slowdown(chosen, slowdown)

    def plans(recipe: Recipe) -> list[Plan]:
        return experiments.plans(recipe, chosen, slowdown)

    if status := verb.run_experiment(path, plans, results, stamp=stamp, log=log, cluster=cluster, again=again):
        raise typer.Exit(status)
    if stamp is None:
        _show_cost(path, chosen, results, slowdown, as_json=as_json)


def _show_cost(path: Path, chosen: Experiment, results: Path, slowdown: float, *, as_json: bool) -> None:
    from samebits import recipe
    from samebits.judge import encode, price, step_times
    from samebits.judge.verdicts import EXIT_STATUS
    from samebits.report import terminal

    cost = step_times.measured(recipe.load(path), chosen, results, slowdown)
    if as_json:
        print(encode.to_json(cost), end="")
    else:
        terminal.show(terminal.cost_text(cost))
    raise Decided(EXIT_STATUS[price.evidence(cost)])
