"""Requests, steps and instances of chosen cells on their way to the tables: in files of their own until the run ends.

Each batch leaves what was asked for in parts/, before the journal says that its cells have ended. In the end the tables
are put together in the order of the plan, and the parts go. So a table holds the same bytes however cells were batched
and however often the run was stopped, and a later run finds what it needs in the table.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..tables.atomic_write import own_folder
from ..tables.build import instances_table, requests_table, steps_table, write_table
from ..tables.filenames import PARTS, RECORDED, table_file
from ..tables.foreign import check_schema
from ..tables.parquet_files import checked_column, read_schema, read_table
from ..tables.schemas import SCHEMAS

_MAKE: Mapping[str, Callable[[Sequence[tuple[str, Any]]], pa.Table]] = {
    "requests": requests_table,
    "steps": steps_table,
    "instances": instances_table,
}


class Recorded:
    """The rows of some cells in one table, such as "requests", wherever they lie."""

    def __init__(self, directory: Path, table: str) -> None:
        self.table = table
        self._final = directory / table_file(table)
        self._parts = directory / PARTS
        self._places: dict[str, tuple[Path, int, int]] = {}  # by cell_id: file, and rows from, to
        self._next = 0

    def find(self) -> list[str]:
        """Find what earlier runs left. Returns a sentence for each file that cannot be used, which is left out.

        Every value is read: at the end of the run it is too late to run cells again.
        """
        damage = []
        numbered = sorted((int(path.name.partition(".")[0]), path) for path in _part_files(self._parts, self.table))
        for path in (self._final, *(path for _, path in numbered)):
            try:
                if path.is_file():
                    check_schema(read_schema(path), self.table, path)
                    self._note(path, checked_column(path, "cell_id", SCHEMAS[self.table]))
            except ValueError as error:
                damage.append(f"{error}; it is left out, and its cells run again")
        self._next = numbered[-1][0] + 1 if numbered else 0
        return damage

    def rows(self, cell_id: str) -> int:
        """How many rows there are of a cell."""
        _, begin, end = self._places.get(cell_id, (None, 0, 0))
        return end - begin

    def add(self, cells: Sequence[tuple[str, Any]]) -> None:
        """Keep the rows of cells on disk: (cell_id, result or log)."""
        path = own_folder(self._parts.parent, PARTS) / f"{self._next}.{table_file(self.table)}"
        self._next += 1
        part = _MAKE[self.table](cells)
        write_table(path, part)
        self._note(path, part["cell_id"])

    def table_of(self, cell_ids: Sequence[str]) -> pa.Table:
        """The table of these cells, in this order; those that were not kept are left out."""
        return self._together([cell_id for cell_id in cell_ids if cell_id in self._places])

    def _note(self, path: Path, column: pa.ChunkedArray) -> None:
        """Remember where the rows of each cell lie: cells follow each other, each in one piece."""
        column = column.unify_dictionaries().combine_chunks()
        if not len(column):
            return
        codes = column.indices.to_numpy()
        begins = np.concatenate([[0], (np.diff(codes) != 0).nonzero()[0] + 1])
        ends = np.concatenate([begins[1:], [len(codes)]])
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self._places[column.dictionary[int(codes[begin])].as_py()] = path, begin, end

    def _together(self, ids: Sequence[str]) -> pa.Table:
        schema = SCHEMAS[self.table]
        if not ids:
            return _MAKE[self.table]([])
        files: dict[Path, pa.Table] = {}
        pieces = []
        for cell_id in ids:
            path, begin, end = self._places[cell_id]
            if path not in files:
                files[path] = read_table(path, threads=False)
            pieces.append(files[path].slice(begin, end - begin))
        # Dictionaries of the pieces name cells in other orders: this one names them in the order of the table.
        index = np.repeat(np.arange(len(ids), dtype=np.int32), [len(piece) for piece in pieces])
        columns = [pa.DictionaryArray.from_arrays(pa.array(index), pa.array(ids, type=pa.string()))]
        for field in list(schema)[1:]:
            column = pa.chunked_array([chunk for piece in pieces for chunk in piece[field.name].chunks])
            if pa.types.is_dictionary(field.type):
                column = column.cast(pa.string()).combine_chunks().dictionary_encode()
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=schema)


def clear_parts(directory: Path) -> None:
    """Take away the parts, whose rows are in the tables."""
    parts = directory / PARTS
    for table in RECORDED:
        for path in _part_files(parts, table):
            path.unlink()
    if _is_own(parts) and not any(parts.iterdir()):
        parts.rmdir()


def drop_parts(directory: Path) -> None:
    """Take away all parts, for a run that starts over."""
    if os.path.lexists(directory / PARTS):
        shutil.rmtree(directory / PARTS)


def _part_files(parts: Path, table: str) -> list[Path]:
    """The parts of a table, which are named by numbers; nothing behind a link."""
    name = re.compile(rf"[0-9]+\.{re.escape(table_file(table))}")
    found = parts.iterdir() if _is_own(parts) else ()
    return [path for path in found if name.fullmatch(path.name) and (path.is_symlink() or not path.is_dir())]


def _is_own(parts: Path) -> bool:
    return parts.is_dir() and not parts.is_symlink()
