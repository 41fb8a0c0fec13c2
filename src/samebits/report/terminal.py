"""A judgement and a comparison on a terminal, at most 100 columns wide.

Strings from outside become `rich.text.Text`, which reads no markup, after `printable` took their control characters.
A verdict is a word first; colour comes on top where the terminal has it and NO_COLOR is not set.

Beside a judgement and a comparison: a finding of `samebits localize`, the invariants of `samebits check`, and a stress
run, each as one screen with its first sentence on top.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from samebits.checks.invariants import Check, Invariant
from samebits.compare.results import Comparison, Divergence, Finding, GateResult, RankDivergence, RecordView, Status
from samebits.fingerprint.format import ranks_text
from samebits.gates.judgement import Judgement
from samebits.localize.finding import counted
from samebits.overhead.results import Cost
from samebits.report import cost_listing, layout, words
from samebits.report.grid import grid_rows, grid_table, plain_text
from samebits.spec.verdicts import Verdict
from samebits.stress.results import Stress

_STYLE: dict[Status, str] = {"found": "bold red", "unnamed": "bold red"}
_MOST_FRAMES = 6
_MOST_ORIGINS = 6


def finding_text(finding: Finding) -> Group:
    """Everything that a finding says, the cause first."""
    word = Text(finding.status.upper(), style=_STYLE.get(finding.status, "bold magenta"))
    parts: list[RenderableType] = [Text.assemble(word, "  ", plain_text(finding.sentence, "bold")), Text()]
    parts.append(grid_rows(list(facts(finding))))
    if finding.cause and finding.cause.stack:
        parts += [Text(), grid_rows(list(zip(("called from", *[""] * _MOST_FRAMES), stack(finding), strict=False)))]
    if finding.cells:
        parts += [Text(), cells_table(finding)]
    if finding.around:
        parts += [Text(), grid_rows([("", line) for line in finding.around])]
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
    table = grid_table("dtype", "shape", "layout", "same", "differs")
    for cell in finding.cells:
        row = (cell.dtype, cell.shape, cell.layout, str(cell.same), str(cell.differing))
        table.add_row(*map(plain_text, row))
    return table


WIDTH = 100
_MOST_ROWS = 8
_TERMINAL_STYLE: dict[Verdict, str] = {
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
    first = Text.assemble(verdict_word(judgement.verdict), "  ", plain_text(judgement.headline, "bold"))
    return Group(
        first,
        Text(),
        plain_text(judgement.scope),
        Text(),
        *(part for finding in judgement.findings for part in (finding_text(finding), Text())),
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
    table = grid_table("nodes", "arms")
    for row in rows:
        table.add_row(*map(plain_text, row))
    return [table, Text()] if rows else []


def gates_table(judgement: Judgement) -> Table:
    """One row per gate; a row per comparison beneath a gate that did not pass."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("gate", overflow="fold", max_width=24)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for gate in judgement.gates:
        table.add_row(plain_text(gate.gate), verdict_word(gate.verdict), plain_text(gate.explanation))
        if gate.verdict != "pass":
            _add_comparisons(table, gate)
    if not judgement.gates:
        table.add_row("none", verdict_word(judgement.verdict), "no gate was judged")
    return table


def _add_comparisons(table: Table, gate: GateResult) -> None:
    for comparison in gate.comparisons[:_MOST_ROWS]:
        arms = f"{comparison.reference_arm} and {comparison.candidate_arm}"
        table.add_row("", "", plain_text(f"- {arms}: {words.outcome(gate, comparison)}", "dim"))
    if (left := len(gate.comparisons) - _MOST_ROWS) > 0:
        table.add_row("", "", plain_text(f"- and {words.counted(left, 'more comparison')}", "dim"))


def comparison_text(comparison: Comparison) -> Group:
    """Everything that a comparison of two arms says, most important first."""
    parts: list[RenderableType] = [_heading(comparison), grid_rows(_facts(comparison))]
    if comparison.divergence:
        parts += [Text(), grid_rows(_evidence(comparison.divergence))]
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
    table = grid_table("arm", "exact value", "digest", "dtype and shape")
    for arm, record in (
        (comparison.reference_arm, rank.first.reference),
        (comparison.candidate_arm, rank.first.candidate),
    ):
        table.add_row(plain_text(arm), *_record(record))
    return table


def _record(record: RecordView | None) -> list[Text]:
    if record is None:
        return [Text("no such record")]
    value = "skipped" if record.skipped else record.value or "not a scalar"
    return [plain_text(value), plain_text(record.digest), plain_text(record.form)]


def _groups_table(divergence: Divergence) -> Table:
    table = grid_table("ranks", "how many", "role", "first differs at", "item")
    for group in divergence.groups[:_MOST_ROWS]:
        place = words.moment_text(group.moment, group.step)
        cells = (group.ranks, words.whole(group.count), group.role, place, group.item)
        table.add_row(*(plain_text(cell) for cell in cells))
    if (left := len(divergence.groups) - _MOST_ROWS) > 0:
        table.add_row(plain_text(f"and {words.counted(left, 'more group')} of ranks"))
    return table


def _deviations_table(comparison: Comparison) -> Table:
    table = grid_table("deviating pin", "reference", "candidate", "ranks")
    for row in comparison.deviations:
        cells = (row.pin, row.reference, row.candidate, ranks_text(row.ranks))
        table.add_row(*(plain_text(cell) for cell in cells))
    return table


def verdict_word(verdict: Verdict) -> Text:
    """In its colour."""
    return Text(verdict.upper(), style=_TERMINAL_STYLE[verdict])


SHOWN = 8
"""Places of one invariant."""


def check_text(check: Check) -> Group:
    """The verdict and what was checked; what breaks comes before what could not be checked."""
    heading = f"{check.path} ({check.arm})" + (f", {check.run_fingerprint}" if check.run_fingerprint else "")
    first = Text.assemble(verdict_word(check.verdict), "  ", plain_text(headline(check), "bold"))
    if check.problem is not None:
        return Group(first, plain_text(heading), plain_text(check.problem))
    return Group(first, plain_text(heading), Text(), *_broken(check), _held(check), *_unchecked(check))


def headline(check: Check) -> str:
    if check.problem is not None:
        return "nothing can be said of this artifact"
    comparisons = words.counted(sum(one.checked for one in check.invariants), "comparison")
    broken = sum(one.violations > 0 for one in check.invariants)
    if broken:
        return f"{words.counted(broken, 'invariant')} broken, {comparisons}"
    held = sum(one.verdict == "pass" for one in check.invariants)
    return f"{words.counted(held, 'invariant')} hold{'s' * (held == 1)}, {comparisons}" if held else "nothing to check"


def _broken(check: Check) -> Iterator[RenderableType]:
    for invariant in check.invariants:
        if invariant.violations:
            yield Text.assemble(verdict_word("fail"), "  ", plain_text(_sentence(invariant)))
            for breach in invariant.violated[:SHOWN]:
                yield plain_text(f"  {breach}")
            if left := invariant.violations - min(SHOWN, len(invariant.violated)):
                yield plain_text(f"  and {words.counted(left, 'more place')}")
            yield Text()


def _sentence(invariant: Invariant) -> str:
    counts = f"{invariant.violations:,} of {words.counted(invariant.checked, 'comparison')}"
    return f"{invariant.name}: not so: {invariant.meaning}; {counts}"


def _held(check: Check) -> RenderableType:
    table = grid_table("invariant", "comparisons", "broken", "what must hold")
    for invariant in check.invariants:
        if invariant.checked:
            counts = words.whole(invariant.checked), words.whole(invariant.violations)
            table.add_row(*map(plain_text, (invariant.name, *counts, invariant.meaning)))
    return table


def _unchecked(check: Check) -> Iterator[RenderableType]:
    rest = [invariant for invariant in check.invariants if not invariant.checked]
    if rest:
        yield Text()
        yield plain_text("not checked:")
    for invariant in rest:
        yield plain_text(f"  {invariant.name}: {invariant.unchecked}")


def stress_text(stress: Stress) -> Group:
    return Group(
        Text.assemble(verdict_word(stress.verdict), "  ", plain_text(stress.headline, "bold")),
        Text(),
        _table(stress),
        *_stress_listing_evidence(stress),
    )


def _table(stress: Stress) -> RenderableType:
    table = grid_table("variation", "effect", "what it does")
    for row in stress.variations:
        table.add_row(plain_text(row.name), plain_text(row.effect), plain_text(row.does))
        if row.how:
            table.add_row("", "", plain_text(row.how, "dim"))
    return table


def _stress_listing_evidence(stress: Stress) -> list[RenderableType]:
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
    return [Text(), grid_rows(rows)]


def _runs(stress: Stress) -> str:
    return ", ".join(f"{run.arm} {'differs' if run.differs else 'same'}" for run in stress.runs)
