"""stdout and stderr as they may be: closed, on a full disk, or with a reader who has gone.

What is said to people on stderr never stops a run. Results on stdout are another matter: a reader who leaves, as
`head` does, has had enough, but results that cannot be written are an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

from .escapes import lines


class StdoutLost(RuntimeError):
    """Results that cannot be written on stdout, as on a full disk."""


def say(text: str) -> None:
    """Tell people something, on stderr: stdout is for data. It is lost when stderr is closed, full or not read."""
    stderr().write(f"{lines(text)}\n")
    stderr().flush()


def tell(text: str) -> None:
    """Print text on stdout, as a terminal may show it."""
    print(lines(text))


def stderr() -> TextIO:
    """The present stderr for those that write there by themselves; what cannot be written is lost."""
    return cast(TextIO, _Tolerant(sys.stderr))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody watches; not when the stream is closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


@contextmanager
def guarded_stdout(alone: bool = False) -> Iterator[None]:
    """In the block, printing raises nothing when the reader of stdout has gone, and else `StdoutLost` when it fails;
    on stderr it never raises.

    Parameters
    ----------
    alone
        stdout is kept for what `printing` lets through, as one document of JSON: what others print goes to stderr.
    """
    global _results
    before = sys.stdout, sys.stderr, _results
    _results = cast(TextIO, _Results(sys.stdout))
    sys.stderr = stderr()
    sys.stdout = sys.stderr if alone else _results
    try:
        yield
        _results.flush()
    except SystemExit:  # as after --help
        _results.flush()
        raise
    finally:
        sys.stdout, sys.stderr, _results = before


@contextmanager
def printing(kept: str = "") -> Iterator[None]:
    """In the block, what is printed are results; in the end they have been written.

    Parameters
    ----------
    kept
        What StdoutLost says besides: where else the results are.
    """
    before = sys.stdout
    sys.stdout = _results or before
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except StdoutLost as error:
        raise StdoutLost(f"{error}{kept and '; '}{kept}") from None
    finally:
        sys.stdout = before


@contextmanager
def workable() -> Iterator[None]:
    """In the block, stdout and stderr can be flushed, as libraries do before they start a process."""
    before = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # it is None, or cannot be written, or is closed
            setattr(sys, name, _Tolerant(stream))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def print_bytes(content: bytes) -> None:
    """Write on stdout what is no text."""
    with printing():
        if sys.stdout is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)


def open_closed() -> None:
    """See that file descriptors 0, 1 and 2 are taken. Otherwise the next file that is opened would be stdout or stderr
    to libraries in C and to worker processes, which would write into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) == number:  # the lowest that is free
                os.set_inheritable(number, True)


def encode_all() -> None:
    """See that nothing fails to be encoded on stdout and stderr: what their encoding lacks, as bytes of a file's name
    that are not UTF-8, is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def let_go() -> None:
    """Write what is left in stdout and stderr, or lose it: left to the end of the process, it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                _to_nowhere(stream)


def _to_nowhere(stream: TextIO) -> None:
    """Have a stream lose what it holds and what comes."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
        stream.flush()


class _Stream:
    """A stream that is like another, which may be None."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str | bytes) -> int:
        self._do("write", text)
        return len(text)

    def flush(self) -> None:
        self._do("flush")

    def isatty(self) -> bool:
        return is_terminal(self._stream)

    def _do(self, what: str, *content: Any) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Tolerant(_Stream):
    def _do(self, what: str, *content: Any) -> None:
        with suppress(OSError, ValueError):  # ValueError: it has been closed
            if self._stream is not None:
                getattr(self._stream, what)(*content)


class _Results(_Stream):
    def _do(self, what: str, *content: Any) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, what)(*content)
        except BrokenPipeError:
            if hasattr(self._stream, "fileno"):
                _to_nowhere(self._stream)
        except OSError as error:
            _to_nowhere(self._stream)
            raise StdoutLost(f"stdout: cannot be written: {error.strerror}") from None

    @property
    def buffer(self) -> _Results:
        return _Results(getattr(self._stream, "buffer", None))


_results: TextIO | None = None  # while stdout is guarded
