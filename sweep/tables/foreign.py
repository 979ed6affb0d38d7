"""Tables as others may have left them: written again by pandas or another tool, edited, cut or damaged.

What holds the same values in another type is taken as it was meant; for the rest a message names the column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..escapes import one_line
from .schemas import CONFIG_KEY, SCHEMA_VERSION, SCHEMAS

STATUSES = ("ok", "infeasible", "failed")
_OF_CELLS = ("cells", "goodput", "probes", "placement")  # a row a cell or so: few enough to look at every number
_AT_LEAST_ONE = ("n_gpus", "n_requests")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # pandas writes it when rows were left out
_PANDAS_ATTRS = b"PANDAS_ATTRS"
_DEEPEST = 8  # of an experiment's tables in each other: they have three


def check_schema(schema: pa.Schema, table: str, path: Path) -> None:
    """ValueError for what is no table of this name, or one that a newer servesweep wrote."""
    metadata = schema.metadata or {}
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: column {one_line(name)!r} is there {names.count(name)} times")
    missing = [field.name for field in SCHEMAS[table] if not field.nullable and field.name not in names]
    is_ours = b"servesweep.table" in metadata
    if is_ours:
        version = metadata.get(b"servesweep.schema_version", b"").decode("ascii", "replace")
        if metadata[b"servesweep.table"] != table.encode() or not re.fullmatch(r"[0-9]{1,9}", version):
            raise ValueError(f"{path} is not a {table} table written by servesweep")
        if int(version) > SCHEMA_VERSION:
            raise ValueError(
                f"{path} has schema version {version}, but this servesweep reads up to {SCHEMA_VERSION}: "
                "upgrade servesweep"
            )
    if missing:
        what = "has" if is_ours else f"is not a {table} table written by servesweep: it has"
        raise ValueError(f"{path} {what} no column {missing[0]}")


def conform(data: pa.Table, table: str, path: Path) -> pa.Table:
    """A table with the types of its schema, in the order of the file; one that has them already as it is.

    Columns that the schema does not have stay when they hold numbers, text or flags. ValueError, with the name of the
    column, for one whose values are not those of its type, or are missing where every row has one.
    """
    schema = SCHEMAS[table]
    columns, fields = [], []
    for field, column in zip(data.schema, data.columns, strict=True):
        if field.name in schema.names:
            due = schema.field(field.name)
            column = _converted(column, due.type, field.name, path)
            _check_values(column, due, table, path)
            is_whole = field.equals(due) and b"unit" in (field.metadata or {})
            field = field if is_whole else due
        elif _PANDAS_INDEX.fullmatch(field.name):
            continue
        else:
            column = _converted(column, _plain_type(field.type), field.name, path)
            field = pa.field(field.name, column.type)
        columns.append(column)
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=data.schema.metadata))


def experiment_of(schema: pa.Schema, path: Path) -> dict[str, Any]:
    """The experiment in the metadata of a table; empty where it was lost."""
    metadata = schema.metadata or {}
    try:
        if CONFIG_KEY in metadata:
            found = json.loads(metadata[CONFIG_KEY])
        else:  # as pandas keeps what `load` gave it
            found = json.loads(metadata.get(_PANDAS_ATTRS, b"{}")).get("config", {})
    except (ValueError, AttributeError, RecursionError):
        found = None
    if not isinstance(found, dict) or _depth(found) > _DEEPEST:
        raise ValueError(f"{path}: the experiment in its metadata cannot be read")
    return found


def _converted(column: pa.ChunkedArray, due: pa.DataType, name: str, path: Path) -> pa.ChunkedArray:
    found = column.type
    try:
        if found != due:
            column = _cast(column, due)
        if _is_text(due):
            for chunk in column.chunks:
                chunk.validate(full=True)  # bytes of other encodings, places in a dictionary that has none
    except (pa.ArrowException, ValueError, TypeError) as error:
        why = "" if isinstance(error, _WrongType) else f" ({str(error).partition(chr(10))[0]})"
        raise ValueError(f"{path}: column {one_line(name)} holds {found}: must hold {_words(due)}{why}") from None
    return column


class _WrongType(TypeError):
    """Values that are never those of another type."""


def _cast(column: pa.ChunkedArray, due: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        for chunk in column.chunks:
            chunk.validate(full=True)
        column = column.cast(column.type.value_type)
    found = column.type
    if pa.types.is_null(found):
        return pa.chunked_array([pa.nulls(len(column), due)])
    if not any(alike(found) and alike(due) for alike in (_is_text, _is_number, pa.types.is_boolean)):
        raise _WrongType
    if pa.types.is_integer(due) and pa.types.is_floating(found):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, found), column)
    if pa.types.is_dictionary(due):
        return column.cast(due.value_type).dictionary_encode().cast(due)
    return column.cast(due)


def _check_values(column: pa.ChunkedArray, field: pa.Field, table: str, path: Path) -> None:
    where = f"{path}: column {field.name}"
    if column.null_count and not field.nullable:
        raise ValueError(f"{where} is missing in {column.null_count:,} of {len(column):,} rows, but every row has one")
    if table not in _OF_CELLS:
        return
    if pa.types.is_floating(field.type):
        if pc.any(pc.is_inf(column)).as_py():
            raise ValueError(f"{where} holds inf: must hold finite numbers")
        if not field.nullable and pc.any(pc.is_nan(column)).as_py():
            raise ValueError(f"{where} holds nan: must hold finite numbers")
    if field.name in _AT_LEAST_ONE and len(column) and pc.min(column).as_py() < 1:
        raise ValueError(f"{where} holds {pc.min(column).as_py()}: must be at least 1")
    if field.name == "status":
        other = [text for text in column.unique().to_pylist() if text not in STATUSES]
        if other:
            raise ValueError(f"{where} holds {one_line(other[0])!r}: must be one of {', '.join(STATUSES)}")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column that was added is read as."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if _is_number(kind) else pa.bool_() if pa.types.is_boolean(kind) else pa.string()


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _words(kind: pa.DataType) -> str:
    return "text" if _is_text(kind) else str(kind)


def _depth(value: Any) -> int:
    """How deep tables and lists lie in each other, counted up to one too many."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= _DEEPEST:
        level = list(_inside(level))
        depth += 1
    return depth


def _inside(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value
