"""The Parquet tables of a run: built to one schema, written whole, read back into pandas with units and definitions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import checks
from ..checks import nearest
from ..measures.instances import ROLES
from ..measures.result import Result
from ..runner.journal import JOURNAL_NAME
from .schemas import (
    CELLS_SCHEMA,
    GOODPUT_SCHEMA,
    INSTANCES_SCHEMA,
    PLACEMENT_SCHEMA,
    PROBES_SCHEMA,
    REQUESTS_SCHEMA,
    SCHEMA_VERSION,
    SCHEMAS,
    STEPS_SCHEMA,
    TIMINGS_SCHEMA,
    definitions,
    units,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CELLS_SCHEMA",
    "GOODPUT_SCHEMA",
    "INSTANCES_SCHEMA",
    "PLACEMENT_SCHEMA",
    "PROBES_SCHEMA",
    "REQUESTS_SCHEMA",
    "STEPS_SCHEMA",
    "cells_table",
    "goodput_table",
    "instances_table",
    "load",
    "placement_table",
    "probes_table",
    "requests_table",
    "steps_table",
    "timings_table",
    "write_table",
]

_CONFIG_KEY = b"servesweep.config"
_NOT_CATEGORIES = ("cell_id", "error", "reason")  # text columns of cells whose values hardly repeat


def cells_table(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> pa.Table:
    """A table with the columns of `CELLS_SCHEMA`, one row a cell.

    Args:
        rows: one mapping a row, or one mapping of column name -> values. A column or a value that is missing, None or
            NaN becomes null.
        config: the experiment, as plain tables; it is kept in the file and comes back as `attrs["config"]`.

    Raises:
        ValueError: an unknown column, columns of different lengths, a value of the wrong type, or nothing in a column
            that every cell has.
    """
    return _with_config(_table(CELLS_SCHEMA, rows), config)


def goodput_table(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> pa.Table:
    """A table with the columns of `GOODPUT_SCHEMA`, one row a search; otherwise as `cells_table`."""
    return _with_config(_table(GOODPUT_SCHEMA, rows), config)


def probes_table(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> pa.Table:
    """A table with the columns of `PROBES_SCHEMA`, one row a rate that was simulated; otherwise as `cells_table`."""
    return _with_config(_table(PROBES_SCHEMA, rows), config)


def placement_table(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None = None) -> pa.Table:
    """A table with the columns of `PLACEMENT_SCHEMA`, one row a candidate; otherwise as `cells_table`."""
    return _with_config(_table(PLACEMENT_SCHEMA, rows), config)


def requests_table(cells: Sequence[tuple[str, Result]]) -> pa.Table:
    """A table with the columns of `REQUESTS_SCHEMA`: the requests of each (cell_id, result), in the given order."""
    columns: dict[str, Any] = {"request": [np.arange(len(result)) for _, result in cells]}
    for name in REQUESTS_SCHEMA.names[2:]:
        columns[name] = [getattr(result, name) for _, result in cells]
    return _long_table(REQUESTS_SCHEMA, [cell_id for cell_id, _ in cells], columns)


def steps_table(cells: Sequence[tuple[str, Mapping[str, np.ndarray[Any, Any]]]]) -> pa.Table:
    """A table with the columns of `STEPS_SCHEMA`: the log of each (cell_id, log), in the given order.

    A log holds one array a column, start_s to blocks_used and instance, one entry a step; roles are places in `ROLES`.
    """
    columns: dict[str, Any] = {"step": [np.arange(len(log["start_s"])) for _, log in cells]}
    return _table_of_logs(STEPS_SCHEMA, cells, columns)


def instances_table(cells: Sequence[tuple[str, Mapping[str, np.ndarray[Any, Any]]]]) -> pa.Table:
    """A table with the columns of `INSTANCES_SCHEMA`: the instances of each (cell_id, columns), in the given order.

    `columns` holds one array a column, one entry an instance; roles are places in `ROLES`.
    """
    return _table_of_logs(INSTANCES_SCHEMA, cells, {})


def _table_of_logs(
    schema: pa.Schema, cells: Sequence[tuple[str, Mapping[str, np.ndarray[Any, Any]]]], columns: dict[str, Any]
) -> pa.Table:
    columns = {**columns, **{name: [log[name] for _, log in cells] for name in schema.names[1:] if name not in columns}}
    return _long_table(schema, [cell_id for cell_id, _ in cells], columns)


def timings_table(cell_ids: Sequence[str], batches: Sequence[Mapping[str, Any] | None]) -> pa.Table:
    """A table with the columns of `TIMINGS_SCHEMA`: the batch of each cell as the journal has it, None without one."""
    names = dict(zip(("batch_cells", "batch_wall_s", "batch_cpu_s"), ("cells", "wall_s", "cpu_s"), strict=True))
    keys = {name: names.get(name, name) for name in TIMINGS_SCHEMA.names[1:]}
    columns = {name: [batch and batch[key] for batch in batches] for name, key in keys.items()}
    return _table(TIMINGS_SCHEMA, {"cell_id": list(cell_ids), **columns})


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write a Parquet file beside `path` and rename it, so that a reader finds the old file or the whole new one.

    The same rows give the same bytes, whatever pieces the table was put together from.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            pq.write_table(
                table.combine_chunks(),
                file,
                version="2.6",
                compression="zstd",
                compression_level=3,
                row_group_size=1 << 20,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def load(run_directory: str | os.PathLike[str], table: str = "cells") -> pd.DataFrame:
    """A table of a run as a pandas DataFrame.

    Text parameters are categories in the order of the configuration, whole numbers are Int64 (so that a cell without
    measures holds <NA>), other numbers float64. `df.attrs` holds plain dicts: "units" and "definitions" by column,
    and "config", the experiment as it was run.

    Args:
        run_directory: the directory of a run, such as results/quickstart.
        table: "cells" (one row a cell), "timings" (likewise: how it was simulated), "requests", "steps" or "instances"
            (of the cells that a run was asked to record); of a search for goodput "goodput" (one row a search) or
            "probes" (one row a rate that was simulated); of a placement "placement" (one row a candidate).

    Raises:
        ValueError: a directory that is not a run, a table that the run does not have, a file that is not a table of
            servesweep, or one that a newer servesweep wrote.
    """
    if table not in SCHEMAS:
        raise ValueError(f"table is {table!r}, but must be one of {', '.join(SCHEMAS)}")
    folder = checks.path("run_directory", run_directory)
    searched = table in ("goodput", "probes", "placement")
    cells = folder / f"{table if searched else 'cells'}.parquet"  # the table that knows the experiment
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a run: there is no such directory")
    path = folder / f"{table}.parquet"
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
        found = [name for name in ("goodput", "placement") if (folder / f"{name}.parquet").exists()]
        if found and not began:
            read = f'load(..., table="{found[0]}") or `servesweep export --table {found[0]}`'
            rest = f"it is a search, whose answer {read} gives"
        raise ValueError(f"{folder} is not a finished run: {rest}")
    if not path.exists():
        raise ValueError(
            f"{folder} has no {path.name}: the run was not asked to record {table}. Run it again with --{table} CELLS, "
            f'or with {table} = CELLS in [output] of its experiment; CELLS is "all", or chooses some cells'
        )
    data = _read(path, table)
    frame = _to_pandas(data)
    metadata = data.schema.metadata if cells == path else _read_schema(cells, "cells").metadata
    frame.attrs = {
        "units": units(data.schema),
        "definitions": definitions(data.schema),
        "config": json.loads(metadata.get(_CONFIG_KEY, b"{}")),
    }
    return frame


# ------------------------------------------------------------------------------------------------------------ building


def _with_config(table: pa.Table, config: Mapping[str, Any] | None) -> pa.Table:
    if config is None:
        return table
    text = json.dumps(config, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return table.replace_schema_metadata({**table.schema.metadata, _CONFIG_KEY: text.encode()})


def _table(schema: pa.Schema, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> pa.Table:
    if isinstance(rows, Mapping):
        columns, length = rows, len(next(iter(rows.values()), ()))
        given = set(rows)
    else:
        length = len(rows)
        given = set().union(*rows)
        columns = {name: [row.get(name) for row in rows] for name in schema.names if name in given}
    for name in sorted(given - set(schema.names)):
        raise ValueError(f"{name!r} is not a column of {_name(schema)}{nearest(name, schema.names)}")
    return pa.Table.from_arrays([_array(schema.field(x), columns.get(x), length) for x in schema.names], schema=schema)


def _array(field: pa.Field, values: Any, length: int) -> pa.Array:
    if values is None:
        array = pa.nulls(length, field.type)
    else:
        try:
            array = pa.array(values, type=field.type, from_pandas=True)  # NaN is null
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"column {field.name} must hold {field.type} or nothing: {error}") from None
    if len(array) != length:
        raise ValueError(f"column {field.name} has {len(array)} values, but the first column has {length}")
    if array.null_count and not field.nullable:
        raise ValueError(
            f"column {field.name} is missing in {array.null_count} of {length} rows, but every row has one"
        )
    return array


def _long_table(schema: pa.Schema, cell_ids: list[str], columns: dict[str, list[Any]]) -> pa.Table:
    lengths = [len(piece) for piece in next(iter(columns.values()))]
    index = np.repeat(np.arange(len(cell_ids), dtype=np.int32), lengths)
    joined: dict[str, Any] = {"cell_id": pa.DictionaryArray.from_arrays(index, pa.array(cell_ids, type=pa.string()))}
    for name, pieces in columns.items():
        joined[name] = np.concatenate(pieces) if pieces else []
    if "role" in columns:
        places = pa.array(np.asarray(joined["role"], dtype=np.int32))
        joined["role"] = pa.DictionaryArray.from_arrays(places, pa.array(ROLES, type=pa.string()))
    return _table(schema, joined)


def _name(schema: pa.Schema) -> str:
    return str(schema.metadata[b"servesweep.table"].decode())


# ------------------------------------------------------------------------------------------------------------- reading


def _read_schema(path: Path, table: str) -> pa.Schema:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    metadata = schema.metadata or {}
    version = metadata.get(b"servesweep.schema_version", b"").decode()
    if metadata.get(b"servesweep.table", b"").decode() != table or not version.isdecimal():
        raise ValueError(f"{path} is not a {table} table written by servesweep")
    if int(version) > SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, but this servesweep reads up to {SCHEMA_VERSION}: upgrade servesweep"
        )
    return schema


def _read(path: Path, table: str) -> pa.Table:
    _read_schema(path, table)
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None


def _to_pandas(data: pa.Table) -> pd.DataFrame:
    import pandas as pd

    frame = data.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get, ignore_metadata=True)
    for field in data.schema:
        if field.type == pa.string() and field.name not in _NOT_CATEGORIES:
            # Rows are in plan order, so values appear in the order that the configuration lists them.
            order = [value for value in data[field.name].unique().to_pylist() if value is not None]
            frame[field.name] = pd.Categorical(frame[field.name], categories=order)
    return frame
