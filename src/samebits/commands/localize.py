"""Verbs that look for a cause: localize."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.commands.options import AsJson, ClusterOption, LogFile, Results, existing_folder
from samebits.commands.status import Decided

if TYPE_CHECKING:
    from samebits.compare.results import Finding
    from samebits.localize.search import LocalizeOptions

app = typer.Typer()


@app.command()
def localize(
    reference: Annotated[
        Path | None, typer.Argument(metavar="REFERENCE", help="An arm's folder.", show_default=False)
    ] = None,
    candidate: Annotated[
        Path | None, typer.Argument(metavar="CANDIDATE", help="The folder of an arm that differs.", show_default=False)
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Pairs that are run before it is not reproduced.")] = 5,
    work: Annotated[Path | None, typer.Option(help="Gets the pairs and the finding; else beside CANDIDATE.")] = None,
    of: Annotated[
        Path | None, typer.Option("--of", metavar="RECIPE", help="All arms of a recipe in which a gate failed.")
    ] = None,
    results: Results = Path("results"),
    stamp: Annotated[
        Path | None, typer.Option(help="With --of: written at the end; the exit status is then 0.")
    ] = None,
    log: LogFile = None,
    cluster: ClusterOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a traced pair of two arms that differ, and name the operation, module, rank and step that made them differ.

    Exit status: 0 no difference, 1 it is there, 2 not comparable, 3 not reproduced or not traced.
    """
    from samebits.localize.search import LocalizeOptions

    request = LocalizeOptions(tries=tries, cluster=cluster, log=log, work=work)
    if of is not None and reference is None:
        existing_folder(results, "give the folder in which the arms ran, by --results")
        _of_recipe(of, results, request, stamp, as_json=as_json)
    elif of is None and reference is not None and candidate is not None:
        existing_folder(reference)
        existing_folder(candidate)
        _of_arms(reference, candidate, request, as_json=as_json)
    else:
        raise typer.BadParameter("give REFERENCE and CANDIDATE, or --of RECIPE alone")


def _of_arms(reference: Path, candidate: Path, request: LocalizeOptions, *, as_json: bool) -> None:
    from samebits.compare.results import finding_status, to_json
    from samebits.localize.search import of_arms
    from samebits.report import terminal
    from samebits.spec.verdicts import EXIT_STATUS

    comparison, finding = of_arms(reference, candidate, request)
    if finding is None:
        if as_json:
            print(to_json(comparison), end="")
        else:
            terminal.show(terminal.comparison_text(comparison))
        raise Decided(EXIT_STATUS[comparison.verdict])
    _show([finding], as_json=as_json)
    raise Decided(finding_status(finding))


def _of_recipe(path: Path, results: Path, request: LocalizeOptions, stamp: Path | None, *, as_json: bool) -> None:
    from samebits.compare.results import finding_status
    from samebits.localize.search import of_recipe
    from samebits.spec.verdicts import EXIT_STATUS

    findings, verdict = of_recipe(path, results, request)
    if stamp is not None:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text("".join(f"{one.candidate}: {one.sentence}\n" for one in findings), encoding="utf-8")
        return
    _show(findings, as_json=as_json)
    if findings:
        raise Decided(max(map(finding_status, findings), key=(0, 3, 1).index))
    raise Decided(EXIT_STATUS[verdict])


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    from samebits.compare.results import to_json
    from samebits.report import terminal

    for finding in findings:
        if as_json:
            print(to_json(finding), end="")
        else:
            terminal.show(terminal.finding_text(finding))
