"""A finding of `samebits localize` as one screen: the cause in the first line, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from samebits.compare.results import Finding, Status
from samebits.localize.finding import counted
from samebits.report import grid

_STYLE: dict[Status, str] = {"found": "bold red", "unnamed": "bold red"}
_MOST_FRAMES = 6
_MOST_ORIGINS = 6


def finding_text(finding: Finding) -> Group:
    """Everything that a finding says, the cause first."""
    word = Text(finding.status.upper(), style=_STYLE.get(finding.status, "bold magenta"))
    parts: list[RenderableType] = [Text.assemble(word, "  ", grid.plain_text(finding.sentence, "bold")), Text()]
    parts.append(grid.grid_rows(list(facts(finding))))
    if finding.cause and finding.cause.stack:
        parts += [Text(), grid.grid_rows(list(zip(("called from", *[""] * _MOST_FRAMES), stack(finding), strict=False)))]
    if finding.cells:
        parts += [Text(), cells_table(finding)]
    if finding.around:
        parts += [Text(), grid.grid_rows([("", line) for line in finding.around])]
    return Group(*parts)


def facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """(what, value) of all that a finding knows, in the order of use."""
    yield "arms", f"{finding.candidate} against {finding.reference}"
    if finding.status in _STYLE:
        yield "class", finding.symptom
    if finding.cause is not None:
        cause = finding.cause
        yield "where", f"{cause.scope or '(outside all modules)'}, {cause.phase}, number {cause.occurrence + 1} in step"
        if cause.form:
            yield "output", cause.form
    if finding.inputs is not None:
        yield "inputs", f"{finding.inputs} tensor{'s' * (finding.inputs != 1)}, read before it ran: equal"
    if told := counted(finding.before):
        yield "before it", f"{told}: all equal"
    if finding.refused:
        yield ("differs first" if finding.cause else "not named"), finding.refused
    if finding.suspect:
        yield "look at", finding.suspect
    for origin in finding.origins[:_MOST_ORIGINS]:
        yield "origin", f"{_ranks(origin.ranks)}: {origin.place}"
    if finding.receivers:
        yield "receivers", _ranks(finding.receivers)
    if finding.pattern:
        yield "pattern", finding.pattern
    yield from _tries(finding)


def _tries(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.tries:
        agreed = f", {finding.agreed} of them agreed" if finding.agreed else ""
        yield "pairs run", f"{finding.tries}{agreed}; traced: {_ranks(finding.traced)}"
    if finding.folders:
        yield "compare", f"samebits compare {' '.join(finding.folders)}"


def _ranks(text: str) -> str:
    return f"rank{'' if text.isdecimal() else 's'} {text}"


def stack(finding: Finding) -> tuple[str, ...]:
    """The innermost frames, outermost of them first."""
    frames = finding.cause.stack if finding.cause else ()
    return frames[-_MOST_FRAMES:]


def cells_table(finding: Finding) -> Table:
    """The same operation by dtype, shape and layout."""
    table = grid.grid_table("dtype", "shape", "layout", "same", "differs")
    for cell in finding.cells:
        row = (cell.dtype, cell.shape, cell.layout, str(cell.same), str(cell.differing))
        table.add_row(*map(grid.plain_text, row))
    return table
