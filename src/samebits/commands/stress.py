"""The verb stress: do variations that must not matter change nothing?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.commands.options import AsJson, ClusterOption, LogFile, RecipeFile, Results
from samebits.commands.status import TROUBLE, Decided

if TYPE_CHECKING:
    from samebits.stress.results import Stress

app = typer.Typer()


@app.command()
def stress(
    path: RecipeFile,
    results: Results = Path("results"),
    only: Annotated[str, typer.Option(help="Variations, such as hash-seed,contention; all where it is empty.")] = "",
    plant: Annotated[
        str | None, typer.Option(help="A fault to plant in every run, KIND[:rank=N][:step=N]: to test the tool.")
    ] = None,
    log: LogFile = None,
    cluster: ClusterOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe under variations that must not matter; find the one that does.

    Exit status: 0 nothing matters, 1 something does, 2 not comparable, 3 not reproduced, 4 a run did not finish.
    """
    from samebits.launch.console import Echo
    from samebits.launch.slurm import SlurmExecutor
    from samebits.recipe.cluster import load
    from samebits.recipe.planting import parse
    from samebits.stress.run import stressed

    def run() -> Stress:
        return stressed(
            path,
            results,
            echo=Echo(sys.stderr, log),
            only=tuple(filter(None, only.split(","))),
            executor=SlurmExecutor(load(cluster)) if cluster else None,
            fault=parse(plant) if plant is not None else None,
        )

    _show(_finished(run), as_json=as_json)


def _finished(run: Callable[[], Stress]) -> Stress:
    """Ends the program where a run was cancelled or did not finish."""
    from samebits.launch.job_state import LaunchError
    from samebits.launch.run_arms import CancelledError

    try:
        return run()
    except CancelledError as cancelled:
        print(cancelled, file=sys.stderr)
        raise typer.Exit(cancelled.status) from None
    except LaunchError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(TROUBLE) from None


def _show(found: Stress, *, as_json: bool) -> None:
    from samebits.compare.results import to_json
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    if as_json:
        print(to_json(found), end="")
    else:
        terminal.show(terminal.stress_text(found))
    raise Decided(EXIT_STATUS[found.verdict])
