"""A judgement and a comparison on a terminal, at most 100 columns wide.

Strings from outside become `rich.text.Text`, which reads no markup, after `printable` took their control characters.
A verdict is a word first; colour comes on top where the terminal has it and NO_COLOR is not set.
"""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from samebits.compare.results import Comparison, Divergence, GateResult, RankDivergence, RecordView
from samebits.fingerprint.ranks import ranks_text
from samebits.gates.judgement import Judgement
from samebits.overhead.results import Cost
from samebits.report import cost_listing, found, grid, layout, words
from samebits.spec.verdicts import Verdict

WIDTH = 100
_MOST_ROWS = 8
_STYLE: dict[Verdict, str] = {
    "pass": "bold green",
    "fail": "bold red",
    "invalid": "bold yellow",
    "inconclusive": "bold magenta",
}


def show(*parts: RenderableType, file: TextIO | None = None) -> None:
    """Prints to `file`, standard output by default. What its encoding lacks is spelled out, not an error."""
    stream = file or sys.stdout
    probe = Console(file=stream)
    console = Console(file=stream, width=min(WIDTH, probe.width) if probe.is_terminal else WIDTH)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(capture.get().encode(encoding, "backslashreplace").decode(encoding))


def judgement_text(judgement: Judgement) -> Group:
    """Verdict, headline and scope, what made arms differ, where they ran, then the gates and what time costs."""
    first = Text.assemble(verdict_word(judgement.verdict), "  ", grid.plain_text(judgement.headline, "bold"))
    return Group(
        first,
        Text(),
        grid.plain_text(judgement.scope),
        Text(),
        *(part for finding in judgement.findings for part in (found.finding_text(finding), Text())),
        *_places(judgement),
        gates_table(judgement),
        *cost_listing.summary(judgement.costs),
    )


def cost_text(cost: Cost) -> Group:
    """Everything that an experiment says about time."""
    return Group(*cost_listing.parts(cost))


def _places(judgement: Judgement) -> list[RenderableType]:
    """Which arms ran where."""
    rows = [(place, ", ".join(arms)) for place, arms in layout.places(judgement)]
    table = grid.grid_table("nodes", "arms")
    for row in rows:
        table.add_row(*map(grid.plain_text, row))
    return [table, Text()] if rows else []


def gates_table(judgement: Judgement) -> Table:
    """One row per gate; a row per comparison beneath a gate that did not pass."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("gate", overflow="fold", max_width=24)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for gate in judgement.gates:
        table.add_row(grid.plain_text(gate.gate), verdict_word(gate.verdict), grid.plain_text(gate.explanation))
        if gate.verdict != "pass":
            _add_comparisons(table, gate)
    if not judgement.gates:
        table.add_row("none", verdict_word(judgement.verdict), "no gate was judged")
    return table


def _add_comparisons(table: Table, gate: GateResult) -> None:
    for comparison in gate.comparisons[:_MOST_ROWS]:
        arms = f"{comparison.reference_arm} and {comparison.candidate_arm}"
        table.add_row("", "", grid.plain_text(f"- {arms}: {words.outcome(gate, comparison)}", "dim"))
    if (left := len(gate.comparisons) - _MOST_ROWS) > 0:
        table.add_row("", "", grid.plain_text(f"- and {words.counted(left, 'more comparison')}", "dim"))


def comparison_text(comparison: Comparison) -> Group:
    """Everything that a comparison of two arms says, most important first."""
    parts: list[RenderableType] = [_heading(comparison), grid.grid_rows(_facts(comparison))]
    if comparison.divergence:
        parts += [Text(), grid.grid_rows(_evidence(comparison.divergence))]
        if comparison.divergence.ranks:
            parts += [Text(), _record_table(comparison, comparison.divergence.ranks[0])]
        parts += [Text(), _groups_table(comparison.divergence)]
    if comparison.deviations:
        parts += [Text(), _deviations_table(comparison)]
    return Group(*parts)


def _heading(comparison: Comparison) -> Text:
    meaning = {
        "pass": "the same bits, within what was compared",
        "fail": "the arms diverge",
        "invalid": "not comparable",
        "inconclusive": "not enough evidence",
    }[comparison.verdict]
    return Text.assemble(verdict_word(comparison.verdict), "  ", meaning)


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    rows = [
        ("reference", f"{comparison.reference} ({comparison.reference_arm})"),
        ("", f"run fingerprint {comparison.reference_fingerprint or 'none'}"),
        ("candidate", f"{comparison.candidate} ({comparison.candidate_arm})"),
        ("", f"run fingerprint {comparison.candidate_fingerprint or 'none'}"),
        ("compared", words.scope_text(comparison.scope)),
    ]
    rows += [("problem", message) for message in comparison.problems]
    for waived in comparison.waived:
        rows.append(("waiver", f"{waived.item}: {waived.reason} ({words.waiver_text(waived)})"))
    return rows


def _evidence(divergence: Divergence) -> list[tuple[str, str]]:
    rows = [("divergence", divergence.explanation), ("at", words.moment_text(divergence.moment, divergence.step))]
    if divergence.ranks:
        first = divergence.ranks[0]
        found = first.first
        scope = f" [{found.scope}]" if found.scope else ""
        occurrence = f", occurrence {found.occurrence}" if found.occurrence else ""
        rows.append((first.role, f"rank {first.rank} on {first.host}"))
        rows.append(("item", f"{found.item}{scope}, {found.phase} phase{occurrence}"))
    rows.append(("looks like", divergence.symptom.value))
    before = words.counted(divergence.identical_before, "record")
    rows.append(("identical", f"{before} before it; ranks that agree throughout: {divergence.agreeing or 'none'}"))
    rows.append(("differing", words.counted(divergence.differing_blocks, "block")))
    return rows


def _record_table(comparison: Comparison, rank: RankDivergence) -> Table:
    table = grid.grid_table("arm", "exact value", "digest", "dtype and shape")
    for arm, record in (
        (comparison.reference_arm, rank.first.reference),
        (comparison.candidate_arm, rank.first.candidate),
    ):
        table.add_row(grid.plain_text(arm), *_record(record))
    return table


def _record(record: RecordView | None) -> list[Text]:
    if record is None:
        return [Text("no such record")]
    value = "skipped" if record.skipped else record.value or "not a scalar"
    return [grid.plain_text(value), grid.plain_text(record.digest), grid.plain_text(record.form)]


def _groups_table(divergence: Divergence) -> Table:
    table = grid.grid_table("ranks", "how many", "role", "first differs at", "item")
    for group in divergence.groups[:_MOST_ROWS]:
        place = words.moment_text(group.moment, group.step)
        cells = (group.ranks, words.whole(group.count), group.role, place, group.item)
        table.add_row(*(grid.plain_text(cell) for cell in cells))
    if (left := len(divergence.groups) - _MOST_ROWS) > 0:
        table.add_row(grid.plain_text(f"and {words.counted(left, 'more group')} of ranks"))
    return table


def _deviations_table(comparison: Comparison) -> Table:
    table = grid.grid_table("deviating pin", "reference", "candidate", "ranks")
    for row in comparison.deviations:
        cells = (row.pin, row.reference, row.candidate, ranks_text(row.ranks))
        table.add_row(*(grid.plain_text(cell) for cell in cells))
    return table


def verdict_word(verdict: Verdict) -> Text:
    """In its colour."""
    return Text(verdict.upper(), style=_STYLE[verdict])
