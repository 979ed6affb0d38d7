"""Traces in Parquet: columns of any type of number, of text, and of times."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .trace_columns import Ask, find_columns
from .trace_rows import MAX_ROWS, Rows, Stamps, Unread, shortened
from .trace_source import FREE_EXPANSION, MAX_EXPANSION

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 65_536  # rows converted at once
_FREE_ROWS = 1_000_000  # that a file of any size may have, as constant columns take no room
_ROWS_A_BYTE = 4  # beyond; real traces take some bytes a row
_LONGEST = 1000  # characters of a number or a time that repeats
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_YEARS = (-62_135_596_800, 253_402_300_799)  # first and last second of the years 1 to 9999, after 1970


def read_parquet(ask: Ask, file: BinaryIO) -> Rows:
    """All rows of a Parquet file, up to the batch with the first bad one where reading stops there."""
    import pyarrow.parquet as pq

    with _damage(ask):
        source = pq.ParquetFile(file)
        header = list(source.schema_arrow.names)
    found = find_columns(ask.shown, header, ask.columns)
    names = {key: header[i] for key, i in found.at.items()}
    size = os.fstat(file.fileno()).st_size
    with _damage(ask):
        texts = [field.name for field in source.schema_arrow if field.name in names.values() and _is_bytes(field.type)]
        if texts:
            _refuse_bomb(source.metadata, size)
        # Texts that repeat stay in a dictionary: a small file may repeat a large one without end.
        source = pq.ParquetFile(file, read_dictionary=texts)
        kind = source.schema_arrow.field(names["arrival_s"]).type
    clock = _Clock(ask, source, names["arrival_s"], kind) if _is_clock(kind) else None
    rows = ask.rows("parquet", names, "row", clock.ticks_per_s if clock else found.ticks_per_s, found.unit_told)
    rows.most_rows = min(MAX_ROWS, _FREE_ROWS + _ROWS_A_BYTE * size)
    number = 1
    for batch in _batches(ask, source, list(names.values())):
        with _damage(ask):
            arrival, *others = (batch.column(name) for name in names.values())
            values = [clock.stamps(arrival) if clock else _values(arrival), *map(_values, others)]
        rows.add(range(number, number + batch.num_rows), *values)
        number += batch.num_rows
        if rows.hopeless:
            break
    rows.stopped = rows.hopeless
    return rows


@contextmanager
def _damage(ask: Ask) -> Iterator[None]:
    """Whatever pyarrow raises: damaged files make it fail in its own ways, in Python's, and in those of files."""
    try:
        yield
    except Exception as error:
        reason = shortened(str(error) or type(error).__name__, 200)
        raise ValueError(f"{ask.shown}: cannot be read as Parquet: {reason}") from None


def _batches(ask: Ask, source: Any, names: list[str]) -> Iterator[Any]:
    with _damage(ask):
        batches = source.iter_batches(_BATCH, columns=list(dict.fromkeys(names)))
    while True:
        with _damage(ask):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _refuse_bomb(metadata: Any, size: int) -> None:
    """ValueError when a file says that it grows too much. What it says of single columns is not asked: pyarrow ends the
    process when one is encrypted."""
    expanded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if expanded > max(FREE_EXPANSION, MAX_EXPANSION * size):
        raise ValueError(f"it grows more than {MAX_EXPANSION}-fold, to {expanded:,} bytes")


def _is_clock(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration))


class _Clock:
    """Reads an arrival column of timestamps, dates or durations, exactly: as ticks since its earliest."""

    def __init__(self, ask: Ask, source: Any, name: str, kind: "pa.DataType") -> None:
        import pyarrow as pa

        self._kind = kind
        self._unit = {pa.date32(): "s", pa.date64(): "ms"}.get(kind) or kind.unit
        self._scale = 86_400 if kind == pa.date32() else 1
        self.ticks_per_s = _UNITS[self._unit]
        self._words = "durations" if pa.types.is_duration(kind) else "timestamps"
        # First of all the earliest: nanoseconds since 1970 are not exact in float64, those since then are.
        self._origin = np.int64(2**63 - 1)
        for batch in _batches(ask, source, [name]):
            with _damage(ask):
                ticks, valid, inside = self._read(batch.column(0))
            self._origin = min(self._origin, ticks[valid & inside].min(initial=self._origin))

    def stamps(self, array: "pa.Array") -> Stamps:
        ticks, valid, inside = self._read(array)
        wrong = dict.fromkeys(np.flatnonzero(~inside & valid).tolist(), "is outside the years 1 to 9999")
        wrong |= dict.fromkeys(np.flatnonzero(~valid).tolist(), "is empty")
        # The difference of two int64 may not fit one; it fits uint64, and wraps to the right number there.
        after = np.where(valid & inside, ticks.view(np.uint64) - self._origin.view(np.uint64), 0).astype(np.float64)

        def text(i: int) -> Unread | None:
            if not valid[i]:
                return None
            try:
                return Unread(str(array[i]))
            except Exception:  # years that Python has no dates for, time zones that are nowhere
                return Unread(f"{ticks[i]} {self._unit} since 1970")

        return Stamps(after, wrong, text, self._words)

    def _read(self, array: "pa.Array") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ticks since 1970, as int64; whether each is there; whether it is a date that others would read. [R] each."""
        import pyarrow as pa
        import pyarrow.compute as pc

        valid = np.asarray(pc.is_valid(array))
        stored = array.cast(pa.int32() if self._kind == pa.date32() else pa.int64())
        ticks = stored.fill_null(0).to_numpy().astype(np.int64) * self._scale
        if pa.types.is_duration(self._kind):
            return ticks, valid, np.ones(len(ticks), bool)
        seconds = ticks // int(self.ticks_per_s)
        return ticks, valid, (seconds >= _YEARS[0]) & (seconds <= _YEARS[1])


def _values(array: "pa.Array") -> Any:
    """Numbers without gaps as NumPy has them; anything else as a list of None, numbers, texts, and what is neither."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        array.validate(full=True)  # damaged ones may point beyond their end
        known = [_short(value) for value in _values(array.dictionary)] + [None]
        return [known[i] for i in array.indices.fill_null(len(known) - 1).to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False)
    listed = _listed(array)
    if _is_text(kind) or any(check(kind) for check in (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)):
        return listed
    return [value if value is None else Unread(repr(value) if type(value) is bytes else str(value)) for value in listed]


def _short(value: Any) -> Any:
    """A value, unless it is a text so long that it is neither a number nor a time, and slow to try a million times."""
    return Unread(repr(value[:100])) if isinstance(value, str) and len(value) > _LONGEST else value


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return _is_text(kind) or any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary))


def _listed(array: "pa.Array") -> list[Any]:
    """Values in Python's types; where one has no such type, as a date in the year 300,000, the others still do."""
    try:
        listed: list[Any] = array.to_pylist()
        return listed
    except Exception:
        return [_listed_one(scalar) for scalar in array]


def _listed_one(scalar: "pa.Scalar[Any]") -> Any:
    try:
        return scalar.as_py()
    except Exception:
        return Unread(f"{getattr(scalar, 'value', 'a value')} of type {scalar.type}")
