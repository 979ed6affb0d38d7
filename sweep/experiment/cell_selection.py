"""Cells chosen by a text: "all", ids of cells, or conditions such as "policy=chunked,block_size=16"."""

from __future__ import annotations

from typing import Any

from ..messages import nearest, shown
from .instance_tables import ROLE_TABLES
from .keys import column_of, key_names
from .tables import TABLES


def conditions(selection: str) -> dict[str, list[str]]:
    """The conditions of a text: by column, the values that it may have. Empty where it is "all" or ids of cells.

    >>> conditions("policy=chunked, policy=mixed, block_size=16")
    {'policy': ['chunked', 'mixed'], 'block_size': ['16']}
    """
    parts = [part.partition("=") for part in selection.split(",")]
    found: dict[str, list[str]] = {}
    for column, _, value in parts if all(part[1] for part in parts) else ():
        found.setdefault(column.strip(), []).append(value.strip())
    return found


def is_written(value: Any, text: str) -> bool:
    """Whether a text writes a value of a column; "" and "-" write a missing one, None."""
    if value is None:
        return text in ("", "-")
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except ValueError:
            return False
    return bool(text == value)


def check_columns(selection: str) -> None:
    """ValueError for a choice of cells by a column that is no parameter."""
    tables = ("system", "instance", *ROLE_TABLES, "scheduler", "slo")
    columns = [
        *("cell_id", "workload", "prefix_tokens", "prefix_groups", "arrivals", "cv", "urgent_share", "n_requests"),
        *("seed", "request_rate_rps"),
        *(column_of(table, key) for table in tables for key in key_names(TABLES[table])),
        "step_times_source",
    ]
    for column in conditions(selection):
        if column not in columns:
            raise ValueError(f"{shown(selection)}: unknown column {shown(column)}{nearest(column, columns)}")
