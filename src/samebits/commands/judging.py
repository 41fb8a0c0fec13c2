"""Verbs that judge what lies there: collect, compare, check, report, verdict."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.commands.options import AsJson, Candidate, Folder, RecipeFile, Reference, Results, existing_folder
from samebits.commands.status import Decided

if TYPE_CHECKING:
    from samebits.gates.judgement import Judgement

app = typer.Typer()


@app.command()
def collect(
    folder: Folder,
    deep: Annotated[
        bool | None, typer.Option("--deep/--light", help="Re-read every record, or rely on what each rank verified.")
    ] = None,
    stamp: Annotated[
        Path | None, typer.Option(help="Gets the outcome, a refusal too; the exit status is then 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify every rank's file, refuse gaps, and seal the manifest; of an experiment's folder, those of all runs."""
    from samebits.overhead import step_times

    sealed = step_times.seal(folder, deep=deep, stamp=stamp)
    print(json.dumps(sealed.as_json) if as_json else sealed.text, file=sys.stderr if sealed.refused else sys.stdout)


@app.command()
def compare(
    reference: Reference,
    candidate: Candidate,
    as_json: AsJson = False,
) -> None:
    """Compare two artifacts, with or without a pipeline: identical, or where they part."""
    from samebits.compare.compare import compare as compared
    from samebits.compare.results import to_json
    from samebits.fingerprint.paths import Artifact
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    comparison = compared(Artifact(reference), Artifact(candidate))
    if as_json:
        print(to_json(comparison), end="")
    else:
        terminal.show(terminal.comparison_text(comparison))
    raise Decided(EXIT_STATUS[comparison.verdict])


@app.command()
def check(folder: Folder, as_json: AsJson = False) -> None:
    """Hold one artifact against itself: replicas, collectives, messages, recomputation, random streams, batches."""
    from samebits.checks.check import check as checked
    from samebits.compare.results import to_json
    from samebits.fingerprint.paths import Artifact
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    found = checked(Artifact(folder))
    if as_json:
        print(to_json(found), end="")
    else:
        terminal.show(terminal.check_text(found))
    raise Decided(EXIT_STATUS[found.verdict])


@app.command()
def report(path: RecipeFile, results: Results = Path("results"), as_json: AsJson = False) -> None:
    """Judge a recipe's arms; write report.html, report.json and junit.xml. Succeeds whatever the verdict."""
    from samebits.gates.judge import judge
    from samebits.recipe import load
    from samebits.report import html

    recipe = load.load(path)
    judgement = judge(recipe, existing_folder(results, "give the folder in which the arms ran, by --results"))
    folder = results / judgement.recipe
    folder.mkdir(exist_ok=True)
    html.write(judgement, folder)
    if as_json:
        print((folder / "report.json").read_text(encoding="utf-8"), end="")
    else:
        print(f"{judgement.recipe}: {judgement.verdict}; {folder / 'report.html'}")


def _warn_of_another_recipe(judgement: Judgement, folder: Path) -> None:
    """Warn on standard error where a report and its surroundings have parted: the folder has another recipe's name, or
    the recipe in `recipes/` is no longer the one that was judged."""
    from samebits.recipe import load

    if folder.resolve().name != judgement.recipe:
        print(f"samebits: {folder}: holds the results of recipe {judgement.recipe}", file=sys.stderr)
    path = Path("recipes") / f"{judgement.recipe}.yaml"
    if not path.exists():
        return
    try:
        now = json.dumps(dataclasses.asdict(load.load(path)))
    except load.RecipeError as error:
        print(f"samebits: cannot tell whether the recipe has changed since this verdict: {error}", file=sys.stderr)
        return
    if _without_places(now) != _without_places(judgement.recipe_text):
        print(
            f"samebits: {path} has changed since this verdict; judge again: `samebits report {path}`", file=sys.stderr
        )


def _without_places(recipe_text: str) -> dict[str, Any]:
    """Return a recipe without the paths that loading makes absolute, which differ in each checkout; `data.sha256`
    stands for the data, and a moved folder makes no arm run again either."""
    recipe: dict[str, Any] = json.loads(recipe_text)
    for section, key in (("data", "path"), ("command", "folder")):
        (recipe.get(section) or {}).pop(key, None)
    return recipe


@app.command()
def verdict(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS/NAME", help="A recipe's folder of results.")],
    as_json: AsJson = False,
) -> None:
    """Show the verdict of a report that is there; its exit status is the verdict's."""
    from samebits.gates.judge import check_standing
    from samebits.report import json as json_report
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    judgement = json_report.load(folder / "report.json")
    check_standing(judgement, folder)
    _warn_of_another_recipe(judgement, folder)
    if as_json:
        print((folder / "report.json").read_text(encoding="utf-8"), end="")
    else:
        terminal.show(terminal.judgement_text(judgement))
        print(f"\nreport: {folder / 'report.html'}")
    raise Decided(EXIT_STATUS[judgement.verdict])
