"""Opening trace files, with guards: no file, whatever it holds, takes time or memory without end."""

import errno
import gzip
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

from .trace_rows import escaped

MAX_LINE = 2**23  # characters of a line, or of a CSV record over several lines: a prompt of a million tokens fits
MAX_EXPANSION = 100  # times its size that a compressed file may grow; real traces grow 3- to 10-fold
FREE_EXPANSION = 2**22  # bytes up to which any growth is allowed
BLOCK_CHARACTERS = 2**24  # of text, held at once
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_trace(path: Path) -> BinaryIO:
    """An open file; OSError for what is no plain file: a pipe, a socket or a device may never end, or never begin."""
    return open(path, "rb", opener=_opener)


def _opener(path: str, flags: int) -> int:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"is {kind}: must be a file")
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # should it have become a pipe since


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path for messages: without control characters, and of a long one the end."""
    text = escaped(os.fspath(path))
    return text if len(text) <= 300 else "..." + text[-297:]


class Gunzip(gzip.GzipFile):
    """Text out of gzip; ValueError where it grows as no real trace does."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed, self._where, self._expanded = file, where, 0

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        self._expanded += len(data)
        if self._expanded > FREE_EXPANSION and self._expanded > MAX_EXPANSION * self._packed.tell():
            raise ValueError(
                f"{self._where}: its gzip data grows more than {MAX_EXPANSION}-fold ({self._expanded:,} bytes so far): "
                "must grow less, or be unpacked before"
            )
        return data


class Lines:
    """The lines of a text with their ends; ValueError for one that is too long, or never ends.

    `since` counts the characters since the reader last set it to 0, as it should after so many as `BLOCK_CHARACTERS`.
    """

    def __init__(self, text: TextIO, where: str) -> None:
        self._text, self._where = text, where
        self.since = 0

    def __iter__(self) -> Iterator[str]:
        most = BLOCK_CHARACTERS + MAX_LINE  # a record that began in time, but over several lines
        for number, line in enumerate(iter(partial(self._text.readline, MAX_LINE + 1), ""), 1):
            self.since += (length := len(line))
            if length > MAX_LINE or self.since > most:
                raise ValueError(
                    f"{self._where}, line {number}: goes on for more than {MAX_LINE:,} characters, perhaps after a "
                    "quote that is never closed: must be CSV, JSON lines or Parquet"
                )
            yield line
