"""Tables for a terminal that are no verdict: a plan's arms, an artifact's contents, a block's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from samebits.compare.inspect import Shown, ShownFile, ShownRecord
from samebits.overhead.run_table import ExperimentRow
from samebits.plan.overview import PlanRow
from samebits.report import words


def plan_tables(rows: Sequence[PlanRow], timed: Sequence[ExperimentRow]) -> list[RenderableType]:
    """Arms, then experiments, each where there are any."""
    found = [plan_table(rows)] if rows else []
    return [*found, *([Text()] if rows and timed else []), *([experiment_table(timed)] if timed else [])]


def experiment_table(rows: Sequence[ExperimentRow]) -> RenderableType:
    """Three lines an experiment: its runs, its interval, its command."""
    return Group(*(_text(line) for row in rows for line in _experiment(row)))


def _experiment(row: ExperimentRow) -> Iterable[str]:
    ranks, steps = words.counted(row.ranks, "rank"), words.counted(row.steps, "timed step")
    yield (
        f"experiment {row.experiment}: {words.counted(row.runs, 'run')}: a rehearsal and "
        f"{words.counted(row.blocks, 'block')} of {' '.join(row.block)} (or the other way round); {ranks}, {steps} "
        f"after {row.warm_up} of warm-up each; at most "
        f"{words.duration(60.0 * row.time_minutes)}"
    )
    scatter = f"blocks scatter by {row.spread:.2g} %, as measured before"
    if not row.measured:
        scatter = f"if blocks scatter by {row.spread:.2g} % (a quiet machine; shared ones do by several times as much)"
    if row.half_width is None:
        yield f"  {scatter}; one block has no interval"
    else:
        yield f"  {scatter}: 9 in 10 such experiments have an interval within +-{row.half_width:.2g} %"
    wanted = f"+-{row.wanted_half_width:g} % as wanted (overhead.half_width_percent) then"
    yield f"  {wanted} takes {row.wanted_blocks or 'more than 1,000'} blocks (overhead.blocks is {row.blocks})"
    if not row.measured:
        yield "  measure once, then plan again: nothing was measured here yet"
    yield f"  {row.command}"


def plan_table(rows: Sequence[PlanRow]) -> RenderableType:
    """A row per arm; what all arms share stands below once."""
    table = _table("arm", "ranks", "steps", "tokens", "rung", "starts from", "planted")
    for row in rows:
        steps = f"{row.first_step} to {row.last_step}"
        start = row.start if row.start == "scratch" else f"{row.needs[0]}, step {row.first_step - 1}"
        cells = (
            row.arm,
            str(row.ranks),
            steps,
            "-" if row.tokens is None else words.whole(row.tokens),
            row.rung,
            start,
            "; ".join(row.faults) or "-",
        )
        table.add_row(*map(_text, cells))
    return Group(table, Text(), *_shared(rows))


def _shared(rows: Sequence[PlanRow]) -> Iterable[RenderableType]:
    for row in rows:
        yield _text(row.command)
    yield Text()
    yield _text("environment of every rank, beside what the launcher adds:")
    for name, value in sorted(rows[0].environment.items()):
        yield _text(f"  {name}={value}")


def artifact_table(shown: Shown) -> RenderableType:
    """A row per fingerprint file, its blocks where there is only one file, and every fault in words."""
    table = _table("rank", "coordinates", "host", "blocks", "records", "bytes", "state")
    for file in shown.files:
        rank = "?" if file.rank is None else str(file.rank)
        size = f"{words.size(file.valid_bytes)} of {words.size(file.bytes)}" if file.fault else words.size(file.bytes)
        cells = (
            rank,
            file.coordinates,
            file.host,
            str(len(file.blocks)),
            words.whole(file.records),
            size,
            _state(file),
        )
        table.add_row(*map(_text, cells))
    heading = f"{shown.path}: {shown.arm} {shown.run_fingerprint}".strip()
    faults = [f"{file.path}: {file.fault}" for file in shown.files if file.fault]
    problem = [shown.problem] if shown.problem else []
    blocks = [_block_table(shown.files[0])] if len(shown.files) == 1 else []
    return Group(_text(heading), table, *blocks, *map(_text, [*faults, *problem]))


def _state(file: ShownFile) -> str:
    if file.fault:
        return "damaged"
    return "sealed, verified" if file.verified else "sealed" if file.sealed else "unsealed"


def _block_table(file: ShownFile) -> Table:
    table = _table("moment", "step", "rung", "records", "skipped", "digest", "chain", "seconds")
    for block in file.blocks:
        counts = (str(block.records), str(block.skipped))
        cells = (block.moment, str(block.step), block.rung, *counts, block.digest, block.chain, f"{block.seconds:.3f}")
        table.add_row(*map(_text, cells))
    return table


def record_table(records: Iterable[ShownRecord]) -> Table:
    """A row per record of one block."""
    table = _table("seq", "phase", "item", "scope", "occ.", "form", "digest or value")
    for row in records:
        content = "(skipped)" if row.record.skipped else row.record.value or row.record.digest
        item = f"{row.kind}:{row.name}"
        cells = (str(row.seq), row.phase, item, row.scope, str(row.occurrence), row.record.form, content)
        table.add_row(*map(_text, cells))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(value: str) -> Text:
    return Text(words.printable(value))
