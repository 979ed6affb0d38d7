"""Rows and columns of a run that somebody chose by name: wrong names list the right ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..escapes import one_line
from ..experiment.cell_selection import conditions, is_written
from ..experiment.instance_tables import ROLE_TABLES
from ..experiment.keys import column_of
from ..experiment.reader import ready_experiments
from ..measures.columns import MEASURES
from ..messages import nearest
from ..tables.filenames import RESULTS
from ..tables.reading import is_folder, no_such_run
from ..tables.schemas import CELLS_SCHEMA

if TYPE_CHECKING:
    import pandas as pd

_ABOUT_THE_ROW = ("cell_id", "status", "error", "step_times_source")


def find_run(name: str) -> Path:
    """The directory of a run: `name` itself, or `name` under results/.

    ValueError when there is neither, naming the runs under results/.
    """
    for path in (Path(name), Path(RESULTS) / name):
        if is_folder(path):
            return path
    text = no_such_run(name)
    if Path(name).is_file() and Path(name).suffix == ".toml":
        text += f"; `servesweep run {one_line(name)}` runs the experiment in it"
    elif name in ready_experiments():
        text += f"; it is an experiment, which `servesweep run {name}` runs into {Path(RESULTS) / name}"
    raise ValueError(text)


def parameters(df: pd.DataFrame) -> list[str]:
    """Columns that say what a cell is, in the order of the table."""
    return [str(name) for name in df.columns if name not in MEASURES and name not in _ABOUT_THE_ROW]


def measured(df: pd.DataFrame) -> list[str]:
    """Columns that say what came out, in the order of the table."""
    return [str(name) for name in df.columns if name in MEASURES]


class BadTable(ValueError):
    """A table that lacks what is asked of it, or holds what cannot be."""


def need_columns(df: pd.DataFrame, names: Iterable[str]) -> None:
    """BadTable for a column that is missing."""
    for name in names:
        if name not in df.columns:
            raise BadTable(f"the table has no column {name}")


def need_rows(df: pd.DataFrame) -> None:
    """BadTable for a table without rows."""
    if df.empty:
        raise BadTable("the table has no rows")


def axes(df: pd.DataFrame) -> list[str]:
    """Columns of the axes of a sweep, which are the lists of its configuration, in the order of the table.

    A table that has lost its configuration tells them by its parameters: those with several values. BadTable where the
    column of an axis is missing, as cells that differ in it would count as one.
    """
    tables = {name: table for name, table in df.attrs.get("config", {}).items() if isinstance(table, dict)}
    if not tables:
        known = set(CELLS_SCHEMA.names) - {"n_gpus"}
        return [name for name in parameters(df) if name in known and df[name].nunique(dropna=False) > 1]
    columns = {
        column_of(name, key)
        for name, table in tables.items()
        for key, value in table.items()
        if isinstance(value, list) and key != "n_gpus"
    }
    # Where a role has a value of its own, the column of all instances is empty and those of the roles tell.
    own = {key for role in ROLE_TABLES for key in tables.get(role, {}) if key in columns}
    columns |= {column_of(role, key) for role in ROLE_TABLES for key in own}
    need_columns(df, (name for name in CELLS_SCHEMA.names if name in columns))
    return [name for name in parameters(df) if name in columns]


def check_names(names: Sequence[str], known: Sequence[str], what: str = "column") -> None:
    """ValueError for the first name that is not known, listing the closest and all that are."""
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no {what}{nearest(name, known)}")


def check_numbers(df: pd.DataFrame, names: Sequence[str]) -> None:
    """ValueError for a name that is no column, or a column that does not hold numbers."""
    numbers = [str(name) for name in df.columns if df[name].dtype.kind in "iuf"]
    check_names(names, list(map(str, df.columns)))
    check_names(names, numbers, "column of numbers")


def rows_where(df: pd.DataFrame, selection: str) -> pd.DataFrame:
    """The rows that a text chooses: "policy=chunked,block_size=16"; a column that is named twice may have either value.

    ValueError for an unknown column, a text that is no condition, or a choice of no row; the values that the column
    has are then listed.
    """
    import numpy as np

    wanted = conditions(selection)
    if not wanted:
        raise ValueError(f"{selection!r}: must be conditions such as policy=chunked,block_size=16")
    check_names(list(wanted), list(map(str, df.columns)))
    need_rows(df)
    chosen = np.ones(len(df), bool)
    for name, texts in wanted.items():
        there = df[name].drop_duplicates().tolist()
        values = [value for value in there if any(is_written(plain(value), text) for text in texts)]
        if not values:
            near = nearest(texts[0], map(plain_text, there))
            raise ValueError(f"{name}={'/'.join(texts)}: no row has it{near}")
        chosen &= df[name].isin(values).to_numpy(bool)
    if not chosen.any():
        raise ValueError(f"{selection!r}: chooses none of the {len(df):,} rows")
    return df[chosen]


def one_cell(df: pd.DataFrame, cell: str) -> Any:
    """The row of the cell whose id begins with `cell`, or that conditions choose; ValueError for none or several."""
    if conditions(cell):
        chosen = rows_where(df, cell)
        if len(chosen) > 1:
            raise ValueError(f"cell {cell!r}: chooses {len(chosen):,} cells, but must choose one")
        return chosen.iloc[0]
    found = df[df["cell_id"].str.startswith(cell)]
    if len(found) != 1:
        many = f"{len(found)} cell ids begin" if len(found) else "no cell id begins"
        raise ValueError(f"cell {cell!r}: {many} with it; `servesweep show RUN --sort COLUMN` lists ids")
    return found.iloc[0]


def plain(value: Any) -> Any:
    """A pandas value as a plain one, None for missing."""
    import pandas as pd

    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def plain_text(value: Any) -> str:
    """A parameter as it is written in an experiment; "-" for missing."""
    value = plain(value)
    return "-" if value is None else f"{value:.10g}" if isinstance(value, float) else one_line(value)


def short_text(value: Any) -> str:
    """A value in few digits; "-" for missing."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else one_line(value)
