"""Verbs that show what lies there: show, export, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.commands.options import AsJson, Folder

app = typer.Typer()


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="An arm's folder, or one fingerprint file.")],
    step: Annotated[int | None, typer.Option(help="Show the records of this step.")] = None,
    moment: Annotated[str, typer.Option(help="step, saved, restored or final.")] = "step",
    rank: Annotated[int, typer.Option(help="Whose records, where an arm's folder is given.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what fingerprint files hold, how far they are valid and why they stop; damaged ones too."""
    from samebits.compare import inspect as showing
    from samebits.compare.results import to_json
    from samebits.report import listing, terminal

    if step is None:
        shown = showing.show(path)
        body = to_json(shown) if as_json else listing.artifact_table(shown)
    else:
        choice = showing.Choice(rank=rank, moment=moment, step=step)
        records = showing.show_records(path, choice)
        body = "".join(map(to_json, records)) if as_json else listing.record_table(records)
    if isinstance(body, str):
        print(body, end="")
    else:
        terminal.show(body)


@app.command()
def export(
    folder: Folder,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="Gets records.parquet and blocks.parquet.")],
    as_json: AsJson = False,
) -> None:
    """Write an artifact's records and blocks as Parquet, for pandas, polars and DuckDB."""
    from samebits.compare.export import export as exported
    from samebits.fingerprint.paths import Artifact

    done = exported(Artifact(folder), target)
    if as_json:
        print(json.dumps({"records": str(done.records), "blocks": str(done.blocks)}))
    else:
        print(f"{done.records}: {done.record_rows} rows\n{done.blocks}: {done.block_rows} rows")


@app.command()
def schema(
    cluster: Annotated[bool, typer.Option("--cluster", help="Of a cluster file.")] = False,
) -> None:
    """Print the JSON schema of a recipe, or of a cluster file."""
    from samebits.recipe.json_schema import schema_text

    if cluster:
        from samebits.recipe.cluster import ClusterFile

        print(schema_text(ClusterFile), end="")
        return
    from samebits.spec.sections import Recipe

    print(schema_text(Recipe), end="")
