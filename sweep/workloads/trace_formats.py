"""Trace files: what format one is, by its content, and its rows."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, BinaryIO, Literal, get_args

from ..messages import shown
from .trace_columns import COLUMNS, Ask, find_columns, is_azure
from .trace_parquet import read_parquet
from .trace_rows import Rows, shortened
from .trace_source import BLOCK_CHARACTERS, Gunzip, Lines, open_trace

FormatName = Literal["azure", "mooncake", "csv", "parquet"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
MOONCAKE_COLUMNS = ("timestamp", "input_length", "output_length")
_BLOCK = 4096  # rows converted at once; more are slower, for the garbage collector visits them all
_LINES_AHEAD = 100  # that tell JSON lines where the first is none


def read_rows(ask: Ask) -> Rows:
    """All rows of a file, or as many as are needed.

    FileNotFoundError, or ValueError for a file that cannot be read, has no known format, or lacks a column. Bad rows
    are in the answer.
    """
    try:
        with open_trace(ask.path) as file:
            magic = file.read(4)
            file.seek(0)
            if magic == b"PARE":
                raise ValueError(f"{ask.shown}: is encrypted Parquet: must be readable without keys")
            if magic == b"PAR1":
                ask.expect("Parquet", "parquet")
                return read_parquet(ask, file)
            return _read_text(ask, Gunzip(file, ask.shown) if magic[:2] == b"\x1f\x8b" else file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{ask.shown}: there is no such trace file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{ask.shown}: its gzip data is damaged or cut short: {error}") from None
    except OSError as error:
        raise ValueError(f"{ask.shown}: cannot be read: {error.strerror or error}") from None


def _read_text(ask: Ask, file: BinaryIO | Gunzip) -> Rows:
    # Bytes that are no UTF-8 stay where they are, as surrogates: they make their row bad, not the file.
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        lines = Lines(text, ask.shown)
        feed = iter(lines)
        blank, head = 0, ""
        for head in feed:
            lines.since = 0
            if head.strip():
                break
            blank += 1
        if not head.strip():
            raise ValueError(f"{ask.shown}: is empty")
        is_text = not ("\0" in head or any("\ud800" <= character <= "\udfff" for character in head))
        is_json = is_text and head.lstrip().startswith("{")
        ahead = [head]
        if not is_json:  # unless only the first line is bad
            ahead += _ahead(lines, feed)
            is_json = any(map(_is_mooncake, ahead))
        if is_json:
            ask.expect("JSON lines", "mooncake")
            return _read_json(ask, lines, chain(ahead, feed), blank)
        if not is_text:
            raise ValueError(f"{ask.shown}, line {blank + 1}: is not UTF-8 text: must be CSV, JSON lines or Parquet")
        return _read_csv(ask, head, lines, chain(ahead, feed), blank + 1)


def _ahead(lines: Lines, feed: Iterator[str]) -> Iterator[str]:
    lines.since = 0
    for line in islice(feed, _LINES_AHEAD):
        yield line
        if lines.since > BLOCK_CHARACTERS:
            break


def _is_mooncake(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        return set(MOONCAKE_COLUMNS) <= set(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _read_csv(ask: Ask, head: str, lines: Lines, text: Iterator[str], header_line: int) -> Rows:
    start = header_line  # where the next record starts: one with a quoted line end covers several lines
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        azure = ask.columns is None and ask.format != "csv" and is_azure(header)
        if azure:
            ask.expect("the Azure format", "azure")
        else:
            ask.expect(f"CSV with the columns {shortened(', '.join(header), 200)}", "csv")
        found = find_columns(f"{ask.shown}, line {header_line}", header, ask.columns)
        names = {key: header[i] for key, i in found.at.items()}
        rows = ask.rows("azure" if azure else "csv", names, "line", found.ticks_per_s, found.unit_told)
        needed = itemgetter(*found.at.values())
        start = header_line + reader.line_num
        while True:
            numbers: list[int] = []
            records: list[Any] = []
            seen = lines.since = 0
            for record in islice(reader, _BLOCK):
                number, start = start, header_line + reader.line_num
                seen += 1
                if len(record) == len(header):
                    numbers.append(number)
                    records.append(needed(record))
                elif any(map(str.strip, record)):
                    fields = f"has {len(record)} field{'s' * (len(record) != 1)}, and the header has {len(header)}"
                    rows.refuse(number, "wrong number of fields", fields)
                if lines.since > BLOCK_CHARACTERS:
                    break
            columns = list(zip(*records, strict=True)) or [()] * len(names)
            if not seen or rows.add(numbers, *columns):
                return rows
    except csv.Error as error:  # a quote that is never closed: what follows it is lost, so it is no bad row to skip
        raise ValueError(f"{ask.shown}, line {start}: is not CSV: {shortened(str(error), 120)}") from None


def _read_json(ask: Ask, lines: Lines, text: Iterator[str], blank: int) -> Rows:
    if ask.columns is not None:
        columns = shown(dict(ask.columns))
        raise ValueError(f"columns={columns}: has no effect on JSON lines, which {ask.shown} holds")
    rows = ask.rows("mooncake", dict(zip(COLUMNS, MOONCAKE_COLUMNS, strict=True)), "line", 1e3, unit_told=False)
    number, known, other = blank, False, ""
    while True:
        numbers: list[int] = []
        values: list[Any] = []
        hash_ids: list[Any] = []
        seen = lines.since = 0
        for line in islice(text, _BLOCK):
            number += 1
            seen += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                values.append([record[name] for name in MOONCAKE_COLUMNS])
                numbers.append(number)
                hash_ids.append(record.get("hash_ids"))
                known = True
            except KeyError as error:
                other = other or (
                    f"{ask.shown}, line {number}: has no {error} but {shortened(', '.join(record), 120)}: JSON lines "
                    f"must be in Mooncake's format, with {', '.join(MOONCAKE_COLUMNS)}"
                )
                rows.refuse(number, "a key is missing", f"has no {error}")
            except TypeError:
                rows.refuse(number, "not a JSON object", "is JSON, but not an object")
            except (ValueError, RecursionError) as error:
                reason = shortened(str(error), 120)
                rows.refuse(number, "not valid JSON", f"is not valid JSON, cut short perhaps: {reason}")
            if lines.since > BLOCK_CHARACTERS:
                break
        if other and not known:  # other data, not bad rows
            raise ValueError(other)
        given = list(zip(*values, strict=True)) or [()] * 3
        if not seen or rows.add(numbers, *given, hash_ids=hash_ids if ask.hash_ids else None):
            return rows
