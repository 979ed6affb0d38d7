"""Files that are there whole, or not at all; and no other file than the one that was named."""

from __future__ import annotations

import errno
import filecmp
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_BESIDE = re.compile(r"\.(.+)\.([0-9]+)", re.DOTALL)  # a file written beside: of which name, by which process
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
    beside = _beside(path)
    try:
        _write_beside(path, write, mode)
        os.replace(beside, path)
    except OSError as error:
        raise _about(path, error) from None  # nobody knows the name of the other one
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)  # the rename itself must survive a power cut


def write_together(
    files: Mapping[Path, Callable[[BinaryIO], object]], *, key: Path, without: Iterable[Path] = ()
) -> None:
    """Write files of one directory that belong together, so that none ever lies beside one of another set.

    All are written beside first. Then `key`, without which the others count for nothing, goes, unless it stays as it
    is; it comes back as the last one. A process that is killed on the way leaves no `key`.

    Parameters
    ----------
    files
        What writes the content of each.
    key
        One of them.
    without
        Files that are no part of the new set, and go.

    Raises
    ------
    OSError
        They cannot be written. Until all have been written beside, what was there before stays.
    """
    try:
        for path, write in files.items():
            _write_beside(path, write)
        if os.path.lexists(key) and not _is_same(key, _beside(key)):
            key.unlink()
            sync_directory(key.parent)
        for path in without:
            path.unlink(missing_ok=True)
        for path in (*(path for path in files if path != key), key):
            try:
                os.replace(_beside(path), path)
            except OSError as error:
                raise _about(path, error) from None
    finally:
        for path in files:
            _beside(path).unlink(missing_ok=True)
    sync_directory(key.parent)


def remove_leftovers(directory: Path, names: Collection[str] | re.Pattern[str], *, alone: bool = False) -> None:
    """Take away what killed processes wrote beside files of these names.

    Parameters
    ----------
    directory, names
        Where the files lie, if anywhere, and what they are called. Nothing is removed behind a link.
    alone
        Whether no other process writes them now. Otherwise what belongs to a process that still runs stays.
    """
    with suppress(OSError):  # what cannot be looked at or removed does no harm
        for entry in list(os.scandir(directory)) if not directory.is_symlink() else ():
            found = _BESIDE.fullmatch(entry.name)
            if found is None or entry.is_dir(follow_symlinks=False):
                continue
            if not (names.fullmatch(found[1]) if isinstance(names, re.Pattern) else found[1] in names):
                continue
            if alone or not _runs(int(found[2])):
                with suppress(OSError):
                    os.unlink(entry.path)


def take_away(directory: Path, names: Iterable[str]) -> None:
    """Remove files of these names, if there are any. Nothing is removed behind a link, nor what is a folder."""
    if not directory.is_symlink():
        for path in (directory / name for name in names):
            if path.is_symlink() or path.is_file():
                path.unlink()


def beside_name(name: str) -> str:
    """What stands for a name in the names of files written beside."""
    return name if len(os.fsencode(name)) < _LONGEST else name[: _LONGEST // 4]


def _beside(path: Path) -> Path:
    return path.with_name(f".{beside_name(path.name)}.{os.getpid()}")


def _write_beside(path: Path, write: Callable[[BinaryIO], object], mode: int | None = None) -> None:
    beside = _beside(path)
    try:
        beside.unlink(missing_ok=True)  # of a killed process that had this number
        with open(beside, "wb", opener=_open_new) as file:
            if mode is not None:
                os.chmod(beside, mode)
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _about(path, error) from None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return not one.is_symlink() and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _runs(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


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
            real = Path(os.path.realpath(path))
            remove_leftovers(real.parent, [beside_name(real.name)])
            write_whole(real, write, mode=None if mode is None else stat.S_IMODE(mode))
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
