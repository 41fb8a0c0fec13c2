"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def existing_folder(path: Path, way_out: str = "give the folder of an arm") -> Path:
    """Return the path of a folder. Raises ArtifactError where there is none, since a mistyped path is bad input and not
    a lack of evidence."""
    from samebits.fingerprint.paths import ArtifactError

    if not path.is_dir():
        raise ArtifactError(f"{path}: no such folder; {way_out}")
    return path


def _artifact(path: Path) -> Path:
    return existing_folder(path)


RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe's YAML file.")]
Folder = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="An arm's folder.", callback=_artifact)]
Reference = Annotated[Path, typer.Argument(metavar="REFERENCE", help="An arm's folder.", callback=_artifact)]
Candidate = Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Another arm's folder.", callback=_artifact)]
Results = Annotated[Path, typer.Option(help="Folder of all results.")]
ClusterOption = Annotated[
    Path | None, typer.Option(help="A cluster file: arms are its jobs, for example profiles/slurm/cluster.yaml.")
]
LogFile = Annotated[Path | None, typer.Option("--log", help="Gets all lines too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output.")]
