"""Verbs that show what lies there (show, export, schema), and those on container images (image lock, image verify)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from samebits.commands.options import AsJson, Folder

LockFile = Annotated[Path, typer.Option("--lock", help="The lock file.")]

image_app = typer.Typer(no_args_is_help=True, help="Lock images by digest, and verify that they are still the same.")


@image_app.command("lock")
def lock_image(
    source: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A registry's image with its tag, or a file.")],
    path: LockFile = Path("containers/images.lock.yaml"),
    name: Annotated[str | None, typer.Option(help="How recipes name this file.")] = None,
) -> None:
    """Write down the digest of an image; print what a recipe says to get it."""
    from samebits.launch import image_lock

    print(image_lock.lock(source, path, name))


@image_app.command("verify")
def verify_images(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All where none is given.")] = None,
    path: LockFile = Path("containers/images.lock.yaml"),
) -> None:
    """Read every image of the lock file again, or ask its registry; 2: another or missing, 4: cannot be checked."""
    from samebits.launch import image_lock

    raise typer.Exit(image_lock.show(names or [], path))


app = typer.Typer()


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="An arm's folder, or one fingerprint file.")],
    step: Annotated[int | None, typer.Option(help="Show the records of this step.")] = None,
    moment: Annotated[str | None, typer.Option(help="step (the usual one), saved, restored or final.")] = None,
    rank: Annotated[int | None, typer.Option(help="Whose records, where an arm's folder is given; else 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what fingerprint files hold, how far they are valid and why they stop; damaged ones too."""
    from samebits.compare import inspect as showing
    from samebits.compare.results import to_json
    from samebits.report import listing, terminal

    if step is None and (rank is not None or moment is not None):
        raise typer.BadParameter("--rank and --moment choose among the records of a step: give --step, too")
    if step is None:
        shown = showing.show(path)
        body = to_json(shown) if as_json else listing.artifact_table(shown)
    else:
        choice = showing.Choice(rank=rank or 0, moment=moment or "step", step=step)
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
    from samebits.recipe.load import schema_text

    if cluster:
        from samebits.recipe.cluster import ClusterFile

        print(schema_text(ClusterFile), end="")
        return
    from samebits.spec.sections import Recipe

    print(schema_text(Recipe), end="")
