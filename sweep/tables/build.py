"""The Parquet tables of a run: built to one schema, and written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..escapes import utf8
from ..measures.instances import ROLES
from ..measures.result import Result
from ..messages import nearest
from .atomic_write import write_whole
from .schemas import (
    CELLS_SCHEMA,
    CONFIG_KEY,
    GOODPUT_SCHEMA,
    INSTANCES_SCHEMA,
    PLACEMENT_SCHEMA,
    PROBES_SCHEMA,
    REQUESTS_SCHEMA,
    STEPS_SCHEMA,
    TIMINGS_SCHEMA,
    table_name,
)


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
    """Write a table as a Parquet file, the whole file or nothing."""
    write_whole(path, lambda file: write_parquet(file, table))


def write_parquet(file: BinaryIO, table: pa.Table) -> None:
    """Write a table into an open file. The same rows give the same bytes, whatever pieces they came in."""
    pq.write_table(
        table.combine_chunks(),
        file,
        version="2.6",
        compression="zstd",
        compression_level=3,
        row_group_size=1 << 20,
    )


def _with_config(table: pa.Table, config: Mapping[str, Any] | None) -> pa.Table:
    if config is None:
        return table
    text = json.dumps(config, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # What is left of a file's name that is not UTF-8 becomes an escape of JSON.
    return table.replace_schema_metadata(
        {**table.schema.metadata, CONFIG_KEY: text.encode("utf-8", "backslashreplace")}
    )


def _table(schema: pa.Schema, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> pa.Table:
    if isinstance(rows, Mapping):
        columns, length = rows, len(next(iter(rows.values()), ()))
        given = set(rows)
    else:
        length = len(rows)
        given = set().union(*rows)
        columns = {name: [row.get(name) for row in rows] for name in schema.names if name in given}
    for name in sorted(given - set(schema.names)):
        raise ValueError(f"{name!r} is not a column of {table_name(schema)}{nearest(name, schema.names)}")
    return pa.Table.from_arrays([_array(schema.field(x), columns.get(x), length) for x in schema.names], schema=schema)


def _array(field: pa.Field, values: Any, length: int) -> pa.Array:
    if values is None:
        array = pa.nulls(length, field.type)
    else:
        try:
            array = _as_array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"column {field.name} must hold {field.type} or nothing: {error}") from None
    if len(array) != length:
        raise ValueError(f"column {field.name} has {len(array)} values, but the first column has {length}")
    if array.null_count and not field.nullable:
        raise ValueError(
            f"column {field.name} is missing in {array.null_count} of {length} rows, but every row has one"
        )
    return array


def _as_array(values: Any, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind, from_pandas=True)  # NaN is null
    except UnicodeEncodeError:  # the name of a file, with bytes that are not UTF-8
        return pa.array([utf8(value) if isinstance(value, str) else value for value in values], type=kind)


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
