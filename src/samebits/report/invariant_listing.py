"""What `samebits check` found, on a terminal: a row for each invariant, then each place where one does not hold."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from samebits.checks.invariants import Check, Invariant
from samebits.report import grid, words
from samebits.report.terminal import verdict_word

SHOWN = 8
"""Places of one invariant."""


def check_text(check: Check) -> Group:
    """The verdict and what was checked; what breaks comes before what could not be checked."""
    heading = f"{check.path} ({check.arm})" + (f", {check.run_fingerprint}" if check.run_fingerprint else "")
    first = Text.assemble(verdict_word(check.verdict), "  ", grid.plain_text(headline(check), "bold"))
    if check.problem is not None:
        return Group(first, grid.plain_text(heading), grid.plain_text(check.problem))
    return Group(first, grid.plain_text(heading), Text(), *_broken(check), _held(check), *_unchecked(check))


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
            yield Text.assemble(verdict_word("fail"), "  ", grid.plain_text(_sentence(invariant)))
            for breach in invariant.violated[:SHOWN]:
                yield grid.plain_text(f"  {breach}")
            if left := invariant.violations - min(SHOWN, len(invariant.violated)):
                yield grid.plain_text(f"  and {words.counted(left, 'more place')}")
            yield Text()


def _sentence(invariant: Invariant) -> str:
    counts = f"{invariant.violations:,} of {words.counted(invariant.checked, 'comparison')}"
    return f"{invariant.name}: not so: {invariant.meaning}; {counts}"


def _held(check: Check) -> RenderableType:
    table = grid.grid_table("invariant", "comparisons", "broken", "what must hold")
    for invariant in check.invariants:
        if invariant.checked:
            counts = words.whole(invariant.checked), words.whole(invariant.violations)
            table.add_row(*map(grid.plain_text, (invariant.name, *counts, invariant.meaning)))
    return table


def _unchecked(check: Check) -> Iterator[RenderableType]:
    rest = [invariant for invariant in check.invariants if not invariant.checked]
    if rest:
        yield Text()
        yield grid.plain_text("not checked:")
    for invariant in rest:
        yield grid.plain_text(f"  {invariant.name}: {invariant.unchecked}")
