"""The verbs: `samebits VERB`. Rules call them, people call them, tests call them.

Exit status of `compare`, `verdict`, `check`, `localize`, `stress` and `overhead` (of its runs as evidence): 0 pass,
1 fail, 2 invalid, 3 inconclusive. Every verb: 2 for input that it cannot accept (a message says which and why), 4 where
an arm did not finish or samebits itself failed, 141 where the reader of standard output went away.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import samebits
from samebits.commands import inspect, judging, localize, running, stress
from samebits.commands.status import guarded

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Proves, or disproves and locates, that a training recipe computes the same bits every time.",
    epilog="Exit status: 0 pass, 1 fail, 2 invalid or bad input, 3 inconclusive, 4 an arm or samebits itself failed.",
)
for verbs in (running, judging, localize, stress, inspect):
    app.add_typer(verbs.app)
app.add_typer(inspect.image_app, name="image")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"samebits {samebits.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Proves, or disproves and locates, that a training recipe computes the same bits every time."""


def main() -> None:
    sys.exit(guarded(app))
