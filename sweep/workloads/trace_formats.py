"""Trace files: what format one is, by its content, and its rows."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

from ..arrays import Floats
from .trace_rows import Rows, shortened

FormatName = Literal["azure", "mooncake", "csv", "parquet"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
PRIORITY = "priority"  # a further column, of CSV and Parquet, that a file need not have
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_COLUMNS = ("timestamp", "input_length", "output_length")
# What tools and public traces call these columns, the best name first; case does not matter, and a space counts as "_".
# A name that ends in "_ms" holds milliseconds.
SYNONYMS = {
    "arrival_s": (
        *("arrival_s", "arrival_time_s", "timestamp_s", "time_s", "arrival_ms", "arrival_time_ms", "timestamp_ms"),
        *("arrival", "arrival_time", "arrival_timestamp", "arrived_at", "timestamp", "time"),
    ),
    "prompt_tokens": (
        *("prompt_tokens", "input_tokens", "context_tokens", "contexttokens", "request_tokens", "num_prefill_tokens"),
        *("prompt_len", "prompt_length", "prompt_size", "input_len", "input_length"),
    ),
    "output_tokens": (
        *("output_tokens", "completion_tokens", "generated_tokens", "generatedtokens", "response_tokens"),
        *("num_decode_tokens", "output_len", "output_length", "output_size", "token_size"),
    ),
    PRIORITY: (PRIORITY,),
}
_BLOCK = 4096  # rows converted at once; more are slower, for the garbage collector visits them all


class Ask(NamedTuple):
    """How a file is to be read."""

    path: Path
    format: str | None  # None: found out
    columns: Mapping[str, str] | None  # ours -> the file's; None: by SYNONYMS
    stop_at_bad: bool
    enough: Callable[[Floats], bool]

    def expect(self, what: str, *formats: str) -> None:
        if self.format is not None and self.format not in formats:
            raise ValueError(f"{self.path}: holds {what}: format={self.format!r} does not fit")

    def rows(self, format: str, columns: dict[str, str], unit: str, ticks_per_s: float) -> Rows:
        return Rows(str(self.path), format, columns, unit, ticks_per_s, self.stop_at_bad, self.enough)


def read_rows(ask: Ask) -> Rows:
    """All rows of a file, or as many as are needed.

    FileNotFoundError, or ValueError for a file that cannot be read, has no known format, or lacks a column. Bad rows
    are in the answer.
    """
    try:
        with open(ask.path, "rb") as file:
            magic = file.peek(4)[:4]
            if magic == b"PAR1":
                ask.expect("Parquet", "parquet")
                return _read_parquet(ask)
            packed = magic[:2] == b"\x1f\x8b"
            return _read_text(ask, gzip.GzipFile(fileobj=file) if packed else file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{ask.path}: there is no such trace file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{ask.path}: its gzip data is damaged or cut short: {error}") from None
    except OSError as error:
        raise ValueError(f"{ask.path}: cannot be read: {error.strerror or error}") from None


def _read_text(ask: Ask, file: BinaryIO | gzip.GzipFile) -> Rows:
    # Bytes that are no UTF-8 stay where they are, as surrogates: they make their row bad, not the file.
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        blank, head = 0, ""
        for head in text:
            if head.strip():
                break
            blank += 1
        if not head.strip():
            raise ValueError(f"{ask.path}: is empty")
        if "\0" in head or any("\ud800" <= character <= "\udfff" for character in head):
            raise ValueError(f"{ask.path}, line {blank + 1}: is not UTF-8 text: must be CSV, JSON lines or Parquet")
        if head.lstrip().startswith("{"):
            ask.expect("JSON lines", "mooncake")
            return _read_json(ask, chain([head], text), blank)
        return _read_csv(ask, head, text, blank + 1)


def _read_csv(ask: Ask, head: str, text: Iterator[str], header_line: int) -> Rows:
    delimiter = max(",;\t", key=head.count)
    try:
        header = [name.strip() for name in next(csv.reader([head], delimiter=delimiter, skipinitialspace=True))]
    except csv.Error as error:
        raise ValueError(f"{ask.path}, line {header_line}: is not CSV: {error}") from None
    if (
        ask.columns is None
        and ask.format != "csv"
        and sorted(map(_plain, header)) == sorted(map(_plain, AZURE_COLUMNS))
    ):
        ask.expect("the Azure format", "azure")
        format = "azure"
    else:
        ask.expect(f"CSV with the columns {shortened(', '.join(header), 200)}", "csv")
        format = "csv"
    at, ticks_per_s = _find_columns(f"{ask.path}, line {header_line}", header, ask.columns)
    rows = ask.rows(format, {key: header[i] for key, i in at.items()}, "line", ticks_per_s)
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    start = header_line + 1  # where the next record starts: one with a quoted line end covers several lines
    try:
        while True:
            numbers, records, seen = [], [], 0
            for record in islice(reader, _BLOCK):
                number, start = start, header_line + 1 + reader.line_num
                seen += 1
                if len(record) == len(header):
                    numbers.append(number)
                    records.append(record)
                elif any(map(str.strip, record)):
                    fields = f"has {len(record)} field{'s' * (len(record) != 1)}, and the header has {len(header)}"
                    rows.refuse(number, "wrong number of fields", fields)
            columns = list(zip(*records, strict=True)) or [()] * len(header)
            if not seen or rows.add(numbers, *(columns[i] for i in at.values())):
                return rows
    except csv.Error as error:  # a quote that is never closed: what follows it is lost, so it is no bad row to skip
        raise ValueError(f"{ask.path}, line {start}: is not CSV: {error}") from None


def _read_json(ask: Ask, text: Iterator[str], blank: int) -> Rows:
    if ask.columns is not None:
        raise ValueError(f"columns={dict(ask.columns)!r}: has no effect on JSON lines, which {ask.path} holds")
    rows = ask.rows("mooncake", dict(zip(COLUMNS, MOONCAKE_COLUMNS, strict=True)), "line", 1e3)
    number, known = blank, False
    while block := list(islice(text, _BLOCK)):
        numbers, values = [], []
        for line in block:
            number += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                values.append([record[name] for name in MOONCAKE_COLUMNS])
                numbers.append(number)
                known = True
            except KeyError as error:
                if not known:  # other data, not a bad row
                    keys = shortened(", ".join(record), 120)
                    raise ValueError(
                        f"{ask.path}, line {number}: has no {error} but {keys}: JSON lines must be in Mooncake's "
                        f"format, with {', '.join(MOONCAKE_COLUMNS)}"
                    ) from None
                rows.refuse(number, "a key is missing", f"has no {error}")
            except TypeError:
                rows.refuse(number, "not a JSON object", "is JSON, but not an object")
            except (ValueError, RecursionError) as error:
                rows.refuse(number, "not valid JSON", f"is not valid JSON, cut short perhaps: {error}")
        if rows.add(numbers, *(list(zip(*values, strict=True)) or [()] * 3)):
            break
    return rows


def _read_parquet(ask: Ask) -> Rows:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(ask.path)
        header = list(file.schema_arrow.names)
        at, ticks_per_s = _find_columns(str(ask.path), header, ask.columns)
        names = {key: header[i] for key, i in at.items()}
        table = file.read(list(dict.fromkeys(names.values())))
        arrival, *others = (table.column(name) for name in names.values())
        first = ""
        if pa.types.is_timestamp(arrival.type):
            first = next((str(value) for value in arrival if value.is_valid), "")
            ticks_per_s = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[arrival.type.unit]
            stamps = arrival.cast(pa.int64())
            arrival = pc.subtract(stamps, pc.min(stamps))  # since nanoseconds from 1970 on are not exact in float64
        rows = ask.rows("parquet", names, "row", ticks_per_s)
        values = [c.to_pylist() if c.null_count else c.to_numpy() for c in (arrival, *others)]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{ask.path}: cannot be read as Parquet: {error}") from None
    rows.add(range(1, table.num_rows + 1), *values)
    if first:
        rows.arrivals, rows.first = "stamps", first
    rows.stopped = False
    return rows


def _find_columns(where: str, header: list[str], columns: Mapping[str, str] | None) -> tuple[dict[str, int], float]:
    """Positions of COLUMNS in a header, in that order, of PRIORITY behind them where there is one, and the ticks of a
    second in the first."""
    given = dict(columns or {})
    for key in given:
        if key not in (known := (*COLUMNS, PRIORITY, "arrival_ms")):
            raise ValueError(f"columns={given!r}: has {key!r}: must have keys of {', '.join(known)}")
    if "arrival_s" in given and "arrival_ms" in given:
        raise ValueError(f"columns={given!r}: must have one of arrival_s and arrival_ms")
    in_ms = "arrival_ms" in given
    if in_ms:
        given["arrival_s"] = given.pop("arrival_ms")
    plain = [_plain(name) for name in header]
    at = {}
    for key in (*COLUMNS, PRIORITY):
        wanted = (_plain(given[key]),) if key in given else SYNONYMS[key]
        name = next((name for name in wanted if name in plain), None)
        if name is None:
            has = f"{where}: has no column for {key}, but {shortened(', '.join(header), 200)}"
            if key in given:
                raise ValueError(f"{has}: columns names {given[key]!r}")
            if key == PRIORITY:
                continue
            raise ValueError(
                f"{has}: must have one of {', '.join(wanted)}, or be told by columns={{{key!r}: its name}} "
                f"(--set 'columns={{{key} = \"its name\"}}')"
            )
        if plain.count(name) > 1:
            raise ValueError(f"{where}: has {plain.count(name)} columns named {shortened(header[plain.index(name)])!r}")
        at[key] = plain.index(name)
        in_ms = in_ms or (key == "arrival_s" and key not in given and name.endswith("_ms"))
    return at, 1e3 if in_ms else 1.0


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")
