"""The journal of a run: one line for everything that has ended, written at once and never changed.

A line is the CRC-32 of its JSON in eight hex digits, a space, and the JSON: what a crash or a bad disk damaged is
known, and left out. Only the process that runs the sweep writes, under a lock that ends with it. Every append is one
write and one fsync: when it returns, a kill of this process loses nothing of it, nor does a power cut.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..tables.atomic_write import sync_directory
from ..tables.filenames import JOURNAL_NAME
from ..tables.plain_files import open_plain

JOURNAL_VERSION = 2  # goes up when lines take another form; all before are still read

Record = dict[str, Any]
_as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


class JournalError(OSError):
    """The journal could not be written. What it held before is still there."""


class JournalInUse(RuntimeError):
    """Another run holds the journal."""


class JournalTooNew(RuntimeError):
    """A newer servesweep wrote the journal."""


def encode_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line.

    >>> encode_line({"cell": "241ff9dcaecf80a2", "status": "ok"})
    b'6372f096 {"cell":"241ff9dcaecf80a2","status":"ok"}\\n'
    """
    text = _as_json(record).encode("utf-8", "backslashreplace")  # names of files that are not UTF-8: escapes of JSON
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode_line(line: bytes) -> Record | None:
    """The record of a line; None when the line is damaged or not whole, or holds no record."""
    checksum, _, text = line.partition(b" ")
    if not text.endswith(b"\n"):
        return None
    text = text[:-1]
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        record = _from_json(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key stands there twice")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_from_json = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant).decode


class Journal:
    """The journal of a run's directory, held open and locked.

    damage  a sentence for each thing found wrong with it
    """

    def __init__(self, directory: Path, fresh: bool = False) -> None:
        """Open or begin the journal; `fresh` empties it.

        JournalInUse when another run holds it.
        """
        self.path = directory / JOURNAL_NAME
        self.damage: list[str] = []
        self._damaged: list[int] = []  # numbers of lines
        self._line = 0  # the last that was read
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_FOLLOW, 0o666)
        try:
            self._lock()
            if fresh:
                os.ftruncate(self._file, 0)
            self._cut_torn_line()
            sync_directory(directory)
        except BaseException:
            os.close(self._file)
            raise

    def records(self) -> Iterator[Record]:
        """All records, in the order they were written. Damaged lines are left out, and told in `damage`, those with
        them that `refuse` was called for.

        JournalTooNew when the journal has another form.
        """
        self._damaged = []
        with open_plain(self.path) as file:
            for self._line, line in enumerate(file, start=1):
                record = decode_line(line)
                version = None if record is None else record.get("journal")
                if record is None:
                    self.refuse()
                elif isinstance(version, int) and version > JOURNAL_VERSION:
                    raise JournalTooNew(
                        f"{self.path} has format {version}, but this servesweep reads up to "
                        f"{JOURNAL_VERSION}: upgrade servesweep, or start over with --fresh"
                    )
                else:
                    yield record
        if damaged := self._damaged:
            which = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
            lines = f"line {which} is" if len(damaged) == 1 else f"{len(damaged)} lines ({which}) are"
            self.damage.append(f"{self.path}: {lines} damaged and left out; what stood there runs again")

    def refuse(self) -> None:
        """Count the line of the last record as damaged: it is whole, but what it says cannot be."""
        self._damaged.append(self._line)

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records and see them on disk.

        JournalError when they cannot be written; then none of them is in the journal.
        """
        data = b"".join(map(encode_line, records))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:] if written else data)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)  # makes room, so it works on a full disk
            raise JournalError(error.errno, error.strerror, str(self.path)) from None
        self._size += len(data)

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self._size

    def close(self) -> None:
        """Let go of the journal and its lock."""
        os.close(self._file)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # on Windows, where nothing keeps two runs apart
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = last_run(self.path)
            facts = [holder.get(name) for name in ("pid", "host", "time")]
            who = "" if None in facts else " (process {} on {}, since {})".format(*facts)
            raise JournalInUse(
                f"{self.path.parent} is in use by another run{who}: wait until it ends, or choose another directory"
            ) from None
        except OSError as error:  # a file system without locks
            self.damage.append(f"{self.path}: cannot be locked ({error.strerror}): start no second run here")

    def _cut_torn_line(self) -> None:
        """Cut off a last line that was not written to its end, so that the next one begins a line."""
        size = end = os.fstat(self._file).st_size
        while end:
            begin = max(end - (1 << 16), 0)
            newline = os.pread(self._file, end - begin, begin).rfind(b"\n")
            end = begin + newline + 1
            if newline >= 0:
                break
        self._size = end
        if end < size:
            os.ftruncate(self._file, end)
            self.damage.append(
                f"{self.path}: the last line was not whole, {size - end} bytes were cut off; what they held runs again"
            )


def last_run(path: Path) -> Record:
    """The record with which the last run began that wrote into a journal; empty when there is none."""
    found: Record = {}
    with open_plain(path) as file:
        for line in file:
            if b'"journal":' in line:
                found = decode_line(line) or found
    return found
