"""CSV files with a header: columns by name, numbers checked, every complaint with the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..arrays import Floats, Ints
from ..messages import listed, meant, shown
from ..workloads.trace_source import Gunzip, Lines, open_trace, shown_path

MAX_ROWS = 2_000_000
_MAX_WHOLE = 2.0**53


class Columns:
    """The columns of a CSV file, as text until they are asked for."""

    def __init__(self, path: Path, header: list[str], rows: list[list[str]], lines: list[int]) -> None:
        self.path, self.shown = path, shown_path(path)
        self.header = header
        self.lines = lines  # of the file, from 1
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def need(self, names: Sequence[str]) -> None:
        """ValueError for columns that are missing, all of them at once."""
        missing = [name for name in names if name not in self.header]
        if missing:
            hint = meant(missing[0], self.header)
            what = f"column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise ValueError(f"{self.shown}, line 1: has no {what}{hint}; it has {listed(self.header, 40)}")

    def text(self, name: str) -> list[str]:
        """A column as it stands there."""
        self.need([name])
        place = self.header.index(name)
        return [row[place].strip() for row in self._rows]

    def numbers(self, name: str, *, least: float = 0.0, above: bool = False, missing: float | None = None) -> Floats:
        """A column of finite numbers of at least `least`, or `above` it; an empty field is `missing`, if that is
        given. [R]"""
        found = np.empty(len(self._rows))
        for i, value in enumerate(self.text(name)):
            if not value and missing is not None:
                found[i] = missing
                continue
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number) or number < least or (above and number == least):
                limit = "above" if above else "of at least"
                self.refuse(i, f"{name}={shown(value)}: must be a number {limit} {least:g}")
            found[i] = number
        return found

    def whole(self, name: str, *, least: int = 0, missing: int | None = None) -> Ints:
        """A column of integers of at least `least`. [R]"""
        found = self.numbers(name, least=least, missing=missing)
        wrong = np.flatnonzero((found != np.rint(found)) | (found > _MAX_WHOLE))
        if wrong.size:
            self.refuse(int(wrong[0]), f"{name}={shown(self.text(name)[wrong[0]])}: must be an integer")
        return found.astype(np.int64)

    def refuse(self, row: int, words: str) -> NoReturn:
        """ValueError about a row."""
        raise ValueError(f"{self.shown}, line {self.lines[row]}: {words}")


def read_columns(path: Path) -> Columns:
    """The columns of a CSV file, which may be compressed with gzip; ValueError where it is none, with the line."""
    shown_name = shown_path(path)
    with open_file(path) as text:
        reader = csv.reader(Lines(text, shown_name), skipinitialspace=True, strict=True)
        rows: list[list[str]] = []
        lines: list[int] = []
        header: list[str] | None = None
        try:
            for record in reader:
                if not any(map(str.strip, record)):
                    continue
                if header is None:
                    header = [name.strip() for name in record]
                    continue
                if len(record) != len(header):
                    count = f"has {len(record)} field{'s' * (len(record) != 1)}, and the header has {len(header)}"
                    raise ValueError(f"{shown_name}, line {reader.line_num}: {count}")
                rows.append(record)
                lines.append(reader.line_num)
                if len(rows) > MAX_ROWS:
                    raise ValueError(f"{shown_name}: has more than {MAX_ROWS:,} rows: must be cut into smaller files")
        except csv.Error as error:
            raise ValueError(f"{shown_name}, line {reader.line_num}: is not CSV: {error}") from None
    if header is None:
        raise ValueError(f"{shown_name}: is empty: must be CSV with a header")
    if not rows:
        raise ValueError(f"{shown_name}, line 1: no row follows the header")
    return Columns(path, header, rows, lines)


def open_file(path: Path) -> io.TextIOWrapper:
    """The text of a file, unpacked where it is compressed; ValueError for what is no text."""
    raw = open_trace(path)
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    stream: Any = Gunzip(raw, shown_path(path)) if packed else raw
    return _Text(stream, path, packed)


class _Text(io.TextIOWrapper):
    """UTF-8 text whose faults name the file."""

    def __init__(self, stream: Any, path: Path, packed: bool) -> None:
        super().__init__(io.BufferedReader(stream) if packed else stream, encoding="utf-8-sig")
        self._where = shown_path(path)

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        try:
            return super().readline(size)
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{self._where}: is no text: {error}") from None

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.readline, "")

    def read(self, size: int | None = -1, /) -> str:
        try:
            return super().read(size)
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{self._where}: is no text: {error}") from None
