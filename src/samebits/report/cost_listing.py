"""What time costs, as tables on a terminal. Minus signs are plain hyphens there: every encoding has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from samebits.fingerprint.format import ranks_text
from samebits.overhead.results import Cost, Effect, Findings
from samebits.report import costs, figures, grid, words


def summary(found: Sequence[Cost]) -> list[RenderableType]:
    """A row per effect of all experiments; nothing where none was made."""
    table = grid.grid_table("experiment", "what", "cost", f"{figures.LEVEL_TEXT} interval", "detectable")
    for cost in found:
        if cost.findings is None:
            table.add_row(
                grid.plain_text(cost.experiment), grid.plain_text("no cost is stated: " + _first_reason(cost))
            )
            continue
        for effect in cost.findings.effects:
            table.add_row(*map(_text, (cost.experiment, *_cells(effect))))
    return [Text(), table] if found else []


def parts(cost: Cost) -> Iterator[RenderableType]:
    """All of one experiment, what speaks against it first."""
    yield grid.plain_text(f"{cost.experiment}: {costs.measured_text(cost)}", "bold")
    yield from (_text(f"no evidence: {reason}", "red") for reason in _reasons(cost))
    if cost.findings is not None:
        yield from _findings(cost, cost.findings)
    yield Text()
    yield _text(f"step times: {cost.file}")


def _findings(cost: Cost, found: Findings) -> Iterator[RenderableType]:
    yield from (_text(f"caution: {caution}", "yellow") for caution in found.cautions)
    for table in (_effects(found), _settings(cost, found), _phases(found)):
        yield Text()
        yield table
    if cost.experiment == "null":
        yield Text()
        yield _text(costs.zero_text(found.effects[0]))
    if cost.experiment == "overhead":
        where = words.counted(cost.ranks, figures.unit(cost))
        ends = figures.days_interval(cost, found.gpu_days_interval) or "no interval"
        yield Text()
        yield _text(f"in 100 days of training on {where}: {figures.days(cost, found.gpu_days)} ({ends})")


def _effects(found: Findings) -> Table:
    table = grid.grid_table("what", "cost", f"{figures.LEVEL_TEXT} interval", "detectable", "by means, interval")
    for effect in found.effects:
        means = f"{figures.percent(effect.mean)}, {figures.interval(effect.mean)}"
        table.add_row(*map(_text, (*_cells(effect), means)))
    return table


def _cells(effect: Effect) -> tuple[str, ...]:
    estimate = effect.median
    return (
        costs.label(effect),
        figures.percent(estimate),
        figures.interval(estimate),
        figures.detectable(estimate),
    )


def _settings(cost: Cost, found: Findings) -> Table:
    sized = any(setting.bytes_a_step is not None for setting in found.settings)
    columns = ("setting", "median step", "mean step", f"tokens/s per {figures.unit(cost)}", "stragglers")
    table = grid.grid_table(*columns, *(("a step and rank",) if sized else ()))
    for setting in found.settings:
        slow = f"{words.whole(setting.stragglers)} of {words.whole(setting.steps)}"
        times = figures.step_time(setting.median), figures.step_time(setting.mean)
        size = "-" if setting.bytes_a_step is None else words.size(round(setting.bytes_a_step))
        table.add_row(
            *map(_text, (setting.setting, *times, figures.rate(setting.tokens), slow, size)[: len(table.columns)])
        )
    return table


def _phases(found: Findings) -> Table:
    names = costs.phases(found.effects)
    table = grid.grid_table("percentage points of a step", *names)
    for effect in found.effects:
        entries = [costs.phase(effect, name) for name in names]
        table.add_row(
            *map(_text, (costs.label(effect), *(figures.points(entry) if entry else "-" for entry in entries)))
        )
    return table


def _reasons(cost: Cost) -> list[str]:
    """In the order in which they decide the gate."""
    return [
        *cost.failures,
        *(
            f"{row.pin} is {row.reference} and {row.candidate}, ranks {ranks_text(row.ranks)}"
            for row in cost.deviations
        ),
        *cost.problems,
    ]


def _first_reason(cost: Cost) -> str:
    return next(iter(_reasons(cost)), "no run was made")


def _text(value: str, style: str = "") -> Text:
    return grid.plain_text(value.replace("−", "-").replace("–", "-"), style)
