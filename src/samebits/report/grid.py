"""Tables on a terminal: text that reads no markup, and columns that fold."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from samebits.report import words


def grid_table(*columns: str) -> Table:
    """Return an empty table with these headings, whose columns fold where the terminal is narrow."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def grid_rows(entries: list[tuple[str, str]]) -> Table:
    """Return a table of labels and values without a heading."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for label, value in entries:
        made.add_row(label, plain_text(value))
    return made


def plain_text(value: str, style: str = "") -> Text:
    """Return text in which nothing is read as markup and control characters are made visible."""
    return Text(words.printable(value), style=style)
