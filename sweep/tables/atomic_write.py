"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path` and rename it, so that a reader finds the old file or the whole new one.

    Parameters
    ----------
    path
        The file to make or to replace.
    write
        Writes the content into the open file that it is given.

    Raises
    ------
    OSError
        It cannot be written; what was there before stays.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)  # the rename itself must survive a power cut


def sync_directory(directory: Path) -> None:
    """See the names of a directory's files on disk."""
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
