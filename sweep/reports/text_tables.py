"""Tables and numbers for the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..analysis.selection import plain
from ..escapes import one_line
from ..streams import is_terminal


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    *,
    left: int = 1,
    last_is_text: bool = False,
) -> None:
    """A table on stdout; the first `left` columns are text, and the last one if so said, the others numbers.

    Lines are as long as they need to be where stdout is no terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(one_line(title), "table.title"), box=box.SIMPLE_HEAD, title_justify="left"
    )
    last_text = len(headers) - 1 if last_is_text else -1
    for place, header in enumerate(headers):
        table.add_column(Text(one_line(header)), justify="left" if place < left or place == last_text else "right")
    for row in rows:
        table.add_row(*(Text(one_line(text)) for text in row))
    Console(file=sys.stdout, width=None if is_terminal(sys.stdout) else 10_000).print(table)


def with_unit(value: Any, unit: str) -> str:
    """A value of a table as people read it; `unit` is the unit of its column."""
    value = plain(value)
    if value is None:
        return "-"
    if isinstance(value, str | bool):
        return one_line(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit == "s":
        return f"{1000 * value:,.4g} ms" if abs(value) < 10 else f"{value:,.1f} s"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
