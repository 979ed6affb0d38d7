"""The tables of a run, read back into pandas with units and definitions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from .. import checks
from ..messages import nearest
from .filenames import JOURNAL_NAME, RESULTS, table_file
from .foreign import check_schema, conform, experiment_of
from .parquet_files import read_schema, read_table
from .schemas import SCHEMAS, definitions, units

if TYPE_CHECKING:
    import pandas as pd

_NOT_CATEGORIES = ("cell_id", "error", "reason")  # text columns of cells whose values hardly repeat
_ANSWERS = ("cells", "goodput", "placement")  # tables of which a run, a search or a placement has one

TableName = Literal["cells", "timings", "requests", "steps", "instances", "goodput", "probes", "placement"]


def load(run_directory: str | os.PathLike[str], table: TableName = "cells") -> pd.DataFrame:
    """A table of a run as a pandas DataFrame.

    Parameters
    ----------
    run_directory
        The directory of a run, such as results/quickstart.
    table
        "cells" (one row a cell), "timings" (likewise: how it was simulated), "requests", "steps" or "instances" (of the
        cells that a run was asked to record); of a search for goodput "goodput" (one row a search) or "probes" (one row
        a rate that was simulated); of a placement "placement" (one row a candidate).

    Returns
    -------
    pandas.DataFrame
        Text parameters are categories in the order of the configuration, whole numbers are Int64 (so that a cell
        without measures holds <NA>), truth values with gaps boolean, other numbers float64. `attrs` holds plain dicts:
        "units" and "definitions" by column, and "config", the experiment as it was run.

    Raises
    ------
    ValueError
        For a directory that is not a run, a table that the run does not have, a file that is not a table of servesweep,
        one that a newer servesweep wrote, or a column that holds something else than it should.
    """
    checks.one_of("table", table, SCHEMAS)
    folder = checks.path("run_directory", run_directory)
    searched = table in ("goodput", "probes", "placement")
    cells = folder / table_file(table if searched else "cells")  # the table that knows the experiment
    if not is_folder(folder):
        raise ValueError(no_such_run(folder))
    path = folder / table_file(table)
    for file in (cells, path):
        if file.exists() and not file.is_file():
            raise ValueError(f"{file} is {'a directory' if file.is_dir() else 'no regular file'}, not a table of a run")
    if searched and not path.exists():
        command = "placement" if table == "placement" else "goodput"
        how = f"`servesweep {command}` writes it{'' if table == 'probes' else ' when it ends'}"
        raise ValueError(f"{folder} is not a finished search: it has no {path.name}; {how}")
    if not cells.exists():
        began = (folder / JOURNAL_NAME).exists()
        rest = "the run was stopped; start it again, and it goes on" if began else "it has no cells.parquet"
        found = [name for name in ("goodput", "placement") if (folder / table_file(name)).exists()]
        if found and not began:
            read = f'load(..., table="{found[0]}") or `servesweep export --table {found[0]}`'
            rest = f"it is a search, whose answer {read} gives"
        raise ValueError(f"{folder} is not a finished run: {rest}")
    if not path.exists():
        raise ValueError(
            f"{folder} has no {path.name}: the run was not asked to record {table}. Run it again with --{table} CELLS, "
            f'or with {table} = CELLS in [output] of its experiment; CELLS is "all", or chooses some cells'
        )
    data = table_of(folder, table)
    schema = data.schema if cells == path else read_schema(cells)
    if cells != path:
        check_schema(schema, "cells", cells)
    frame = _to_pandas(data)
    frame.attrs = {
        "units": units(data.schema),
        "definitions": definitions(data.schema),
        "config": experiment_of(schema, cells),
    }
    return frame


def no_such_run(name: str | Path) -> str:
    """What is wrong with a name that no directory has: the run of that name under results/, or the closest."""
    path = Path(name)
    if path.is_file():
        return f"{path} is not a run: it is a file, and a run is a directory"
    runs = {file.parent.name: file.parent for kind in _ANSWERS for file in Path(RESULTS).glob(f"*/{table_file(kind)}")}
    if path.name in runs:
        hint = f'; did you mean "{runs[path.name]}"?'
    else:
        hint = nearest(path.name, sorted(runs)) if runs else f"; there are no runs under {RESULTS}/"
    return f"{path} is not a run: there is no such directory{hint}"


def is_folder(path: Path) -> bool:
    """Whether there is such a directory; ValueError where nobody may look, or for a name that no file can have."""
    try:
        return path.is_dir()
    except OSError as error:
        raise ValueError(f"{path} is not a run: {error.strerror}") from None


def table_of(directory: Path, table: TableName) -> pa.Table:
    """A table of a directory in Arrow, with the types of its schema; ValueError for one that cannot be used."""
    path = directory / table_file(table)
    data = read_table(path)
    check_schema(data.schema, table, path)
    return conform(data, table, path)


def _to_pandas(data: pa.Table) -> pd.DataFrame:
    import pandas as pd

    frame = data.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get, ignore_metadata=True)
    for field in data.schema:
        if field.type == pa.bool_() and data[field.name].null_count:
            frame[field.name] = frame[field.name].astype("boolean")
        if field.type == pa.string() and field.name not in _NOT_CATEGORIES:
            # Rows are in plan order, so values appear in the order that the configuration lists them.
            order = [value for value in data[field.name].unique().to_pylist() if value is not None]
            frame[field.name] = pd.Categorical(frame[field.name], categories=order)
    return frame
