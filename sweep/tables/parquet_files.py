"""Parquet files, opened by us: a name that pyarrow opens may be another file's ("~"), or none ("s3:")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from .plain_files import open_plain

_ROWS = 1 << 16  # read at once where only whether they can be read is asked

_Found = TypeVar("_Found")


class UnreadableTable(ValueError):
    """A file that cannot be read as Parquet."""


def read_table(path: Path, *, threads: bool = True) -> pa.Table:
    """All of a Parquet file; UnreadableTable otherwise. Where no more threads can be had, pyarrow may wait for ever."""
    return _from_file(path, lambda file: file.read(use_threads=threads))


def text_column(path: Path, column: str) -> list[str]:
    """One column of texts of a Parquet file; UnreadableTable otherwise."""

    def read(file: pq.ParquetFile) -> list[str]:
        return [str(text) for text in file.read([column], use_threads=False)[column].to_pylist()]

    return _from_file(path, read)


def read_schema(path: Path) -> pa.Schema:
    """The schema of a Parquet file; UnreadableTable otherwise."""
    return _from_file(path, lambda file: file.schema_arrow)


def checked_column(path: Path, column: str, schema: pa.Schema) -> pa.ChunkedArray:
    """One column of a Parquet file all of which can be read; UnreadableTable otherwise, or for another schema."""

    def read(file: pq.ParquetFile) -> pa.ChunkedArray:
        if not file.schema_arrow.equals(schema):
            raise UnreadableTable(f"{path}: {_difference(file.schema_arrow, schema)}")
        return pa.chunked_array(list(_pieces(file, column)), type=schema.field(column).type)

    return _from_file(path, read)


def _pieces(file: pq.ParquetFile, column: str) -> Iterator[pa.Array]:
    for batch in file.iter_batches(_ROWS):
        batch.validate(full=True)
        yield batch[column]


def _difference(found: pa.Schema, due: pa.Schema) -> str:
    for field in due:
        count = found.names.count(field.name)
        if count != 1:
            return f"{'has no' if not count else 'has twice the'} column {field.name}"
        if not found.field(field.name).equals(field):
            return f"column {field.name} holds {found.field(field.name).type}, not {field.type} as it was written"
    more = [name for name in found.names if name not in due.names]
    return f"column {more[0]} was added" if more else "its columns are in another order"


def _from_file(path: Path, read: Callable[[pq.ParquetFile], _Found]) -> _Found:
    try:
        with open_plain(path) as file:
            return read(pq.ParquetFile(file))
    except UnreadableTable:
        raise
    except Exception as error:  # what damaged files make pyarrow raise are errors of all kinds
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UnreadableTable(f"{path} cannot be read as Parquet: {reason}") from None
