"""The verbs: `samebits VERB`. Rules call them, people call them, tests call them.

Exit status of `compare`, `verdict` and `overhead` (of its runs as evidence): 0 pass, 1 fail, 2 invalid, 3 inconclusive.
Every verb: 2 for input that it cannot accept (a message says which and why), 4 where an arm did not finish or samebits
itself failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.status import Decided, guarded

if TYPE_CHECKING:
    from samebits.overhead import Experiment
    from samebits.plan import Plan
    from samebits.sections import Recipe

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Proves, or disproves and locates, that a training recipe computes the same bits every time.",
    epilog="Exit status: 0 pass, 1 fail, 2 invalid or bad input, 3 inconclusive, 4 an arm or samebits itself failed.",
)

image = typer.Typer(no_args_is_help=True, help="Lock images by digest, and verify that they are still the same.")
app.add_typer(image, name="image")

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe's YAML file.")]
Folder = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="An arm's folder.")]
Results = Annotated[Path, typer.Option(help="Folder of all results.")]
ClusterOption = Annotated[
    Path | None, typer.Option(help="A cluster file: arms are its jobs, for example profiles/slurm/cluster.yaml.")
]
LockFile = Annotated[Path, typer.Option("--lock", help="The lock file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output.")]


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
    log: Annotated[Path | None, typer.Option(help="Gets all lines too.")] = None,
    plant: Annotated[
        str | None, typer.Option(help="A fault to plant, KIND[:rank=N][:step=N][:target=NAME]: to test the tool.")
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
    log: Annotated[Path | None, typer.Option(help="Gets all lines too.")] = None,
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
    from samebits.judge import sealing

    sealed = sealing.seal(folder, deep=deep, stamp=stamp)
    print(json.dumps(sealed.as_json) if as_json else sealed.text, file=sys.stderr if sealed.refused else sys.stdout)


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="An arm's folder.")],
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Another arm's folder.")],
    as_json: AsJson = False,
) -> None:
    """Compare two artifacts, with or without a pipeline: identical, or where they part."""
    from samebits.artifact.folder import Artifact
    from samebits.judge import encode
    from samebits.judge.compare import compare as compared
    from samebits.judge.verdicts import EXIT_STATUS
    from samebits.report import terminal

    comparison = compared(Artifact(reference), Artifact(candidate))
    if as_json:
        print(encode.to_json(comparison), end="")
    else:
        terminal.show(terminal.comparison_text(comparison))
    raise Decided(EXIT_STATUS[comparison.verdict])


@app.command()
def report(path: RecipeFile, results: Results = Path("results")) -> None:
    """Judge a recipe's arms; write report.html, report.json and junit.xml. Succeeds whatever the verdict."""
    from samebits import recipe
    from samebits.judge.verdict import judge
    from samebits.report import writer

    judgement = judge(recipe.load(path), results)
    folder = results / judgement.recipe
    folder.mkdir(parents=True, exist_ok=True)
    writer.write(judgement, folder)
    print(f"{judgement.recipe}: {judgement.verdict}; {folder / 'report.html'}")


@app.command()
def verdict(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS/NAME", help="A recipe's folder of results.")],
    as_json: AsJson = False,
) -> None:
    """Show the verdict of a report that is there; its exit status is the verdict's."""
    from samebits.judge.standing import check_standing
    from samebits.judge.verdicts import EXIT_STATUS
    from samebits.report import json_report, terminal

    judgement = json_report.load(folder / "report.json")
    check_standing(judgement, folder)
    if as_json:
        print((folder / "report.json").read_text(encoding="utf-8"), end="")
    else:
        terminal.show(terminal.judgement_text(judgement))
        print(f"\nreport: {folder / 'report.html'}")
    raise Decided(EXIT_STATUS[judgement.verdict])


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="An arm's folder, or one fingerprint file.")],
    step: Annotated[int | None, typer.Option(help="Show the records of this step.")] = None,
    moment: Annotated[str, typer.Option(help="step, saved, restored or final.")] = "step",
    rank: Annotated[int, typer.Option(help="Whose records, where an arm's folder is given.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what fingerprint files hold, how far they are valid and why they stop; damaged ones too."""
    from samebits.judge import encode
    from samebits.judge import show as showing
    from samebits.report import listing, terminal

    if step is None:
        shown = showing.show(path)
        body = encode.to_json(shown) if as_json else listing.artifact_table(shown)
    else:
        choice = showing.Choice(rank=rank, moment=moment, step=step)
        records = showing.show_records(path, choice)
        body = "".join(map(encode.to_json, records)) if as_json else listing.record_table(records)
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
    from samebits.artifact.folder import Artifact
    from samebits.judge.export import export as exported

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
    from samebits.schema import schema_text

    if cluster:
        from samebits.launch.cluster import ClusterFile

        print(schema_text(ClusterFile), end="")
        return
    from samebits.sections import Recipe

    print(schema_text(Recipe), end="")


@image.command("lock")
def lock_image(
    source: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A registry's image with its tag, or a file.")],
    path: LockFile = Path("containers/images.lock.yaml"),
    name: Annotated[str | None, typer.Option(help="How recipes name this file.")] = None,
) -> None:
    """Write down the digest of an image; print what a recipe says to get it."""
    from samebits.launch import image_verb

    print(image_verb.lock(source, path, name))


@image.command("verify")
def verify_images(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All where none is given.")] = None,
    path: LockFile = Path("containers/images.lock.yaml"),
) -> None:
    """Read every image of the lock file again, or ask its registry; 2: another or missing, 4: cannot be checked."""
    from samebits.launch import image_verb

    raise typer.Exit(image_verb.show(names or [], path))


def main() -> None:
    sys.exit(guarded(app))
