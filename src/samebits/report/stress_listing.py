"""A stress run on a terminal, one screen: the verdict in a sentence, then what was varied and what came of it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from samebits.report import grid, terminal, words
from samebits.stress.results import Stress


def stress_text(stress: Stress) -> Group:
    return Group(
        Text.assemble(terminal.verdict_word(stress.verdict), "  ", grid.plain_text(stress.headline, "bold")),
        Text(),
        _table(stress),
        *_evidence(stress),
    )


def _table(stress: Stress) -> RenderableType:
    table = grid.grid_table("variation", "effect", "what it does")
    for row in stress.variations:
        table.add_row(grid.plain_text(row.name), grid.plain_text(row.effect), grid.plain_text(row.does))
        if row.how:
            table.add_row("", "", grid.plain_text(row.how, "dim"))
    return table


def _evidence(stress: Stress) -> list[RenderableType]:
    comparison = stress.comparison
    if comparison is None:
        return []
    rows = [("compared", f"{comparison.candidate_arm} with the reference: {words.scope_text(comparison.scope)}")]
    if comparison.divergence is not None and comparison.divergence.ranks:
        first = comparison.divergence.ranks[0]
        place = words.moment_text(first.moment, first.step)
        rows.append(("first", f"{first.first.item} at {place} on rank {first.rank} ({first.role})"))
        rows.append(("", comparison.divergence.explanation))
    rows.append(("runs", f"{words.counted(len(stress.runs), 'run')} beside the reference: {_runs(stress)}"))
    return [Text(), grid.grid_rows(rows)]


def _runs(stress: Stress) -> str:
    return ", ".join(f"{run.arm} {'differs' if run.differs else 'same'}" for run in stress.runs)
