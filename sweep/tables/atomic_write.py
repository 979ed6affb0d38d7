"""Files that are there whole, or not at all; and no other file than the one that was named."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_LONGEST = 200  # bytes of a name with what is put around it: file systems take 255


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, mode: int | None = None) -> None:
    """Write a file beside `path` and rename it, so that a reader finds the old file or the whole new one.

    A link of this name is replaced, and what it points to stays as it is.

    Parameters
    ----------
    path
        The file to make or to replace.
    write
        Writes the content into the open file that it is given.
    mode
        Who may do what with the file. None: as for every new file.

    Raises
    ------
    OSError
        It cannot be written; what was there before stays.
    """
    path = Path(path)
    name = path.name if len(os.fsencode(path.name)) < _LONGEST else path.name[: _LONGEST // 4]
    beside = path.with_name(f".{name}.{os.getpid()}")
    beside.unlink(missing_ok=True)  # of a killed process that had this number
    try:
        with open(beside, "wb", opener=_open_new) as file:
            if mode is not None:
                os.chmod(beside, mode)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise _about(path, error) from None  # nobody knows the name of the other one
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)  # the rename itself must survive a power cut


def write_named(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """`write_whole` for a file that somebody asked for by name: a link is followed, and what is no plain file, such as
    /dev/stdout or a pipe, is written to.

    Parameters
    ----------
    path
        The file.
    write
        Writes the content into the open file that it is given.

    Raises
    ------
    OSError
        It cannot be written.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    try:
        if mode is None or (stat.S_ISREG(mode) and not os.path.abspath(path).startswith(("/dev/", "/proc/"))):
            if mode is not None and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            write_whole(os.path.realpath(path), write, mode=None if mode is None else stat.S_IMODE(mode))
        else:
            with open(path, "wb") as file:
                write(file)
    except OSError as error:
        raise _about(path, error) from None


def own_folder(directory: Path, name: str) -> Path:
    """A folder inside a directory of results, made where it is missing.

    Parameters
    ----------
    directory, name
        Where it lies, and its name.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    OSError
        It cannot be made; or its name is that of a link, behind which nothing may be written.
    """
    folder = directory / name
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link: must be a folder, or not be there", os.fspath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sync_directory(directory: Path) -> None:
    """See the names of a directory's files on disk."""
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _about(path: str | os.PathLike[str], error: OSError) -> OSError:
    return error if error.errno is None else OSError(error.errno, error.strerror, os.fspath(path))


def _open_new(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | _NO_FOLLOW, 0o666)
