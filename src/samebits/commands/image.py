"""Verbs on container images: image lock, image verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LockFile = Annotated[Path, typer.Option("--lock", help="The lock file.")]

app = typer.Typer(no_args_is_help=True, help="Lock images by digest, and verify that they are still the same.")


@app.command("lock")
def lock_image(
    source: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A registry's image with its tag, or a file.")],
    path: LockFile = Path("containers/images.lock.yaml"),
    name: Annotated[str | None, typer.Option(help="How recipes name this file.")] = None,
) -> None:
    """Write down the digest of an image; print what a recipe says to get it."""
    from samebits.launch import image_lock

    print(image_lock.lock(source, path, name))


@app.command("verify")
def verify_images(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All where none is given.")] = None,
    path: LockFile = Path("containers/images.lock.yaml"),
) -> None:
    """Read every image of the lock file again, or ask its registry; 2: another or missing, 4: cannot be checked."""
    from samebits.launch import image_lock

    raise typer.Exit(image_lock.show(names or [], path))
