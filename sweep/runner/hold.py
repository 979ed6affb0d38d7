"""A directory of results belongs to one run, search or placement at a time, and to one experiment.

Who works there holds a lock on a file that says so. It goes when the work ends, however it ends; only a process that
is killed leaves it behind, without the lock. Whoever comes next takes it over, and what the other one left half
written goes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ..experiment.tables import ConfigError
from ..messages import listed, shown
from ..tables.atomic_write import remove_leftovers
from ..tables.filenames import (
    GOODPUT_FILES,
    PARTS,
    PLACEMENT_FILES,
    RECORDED,
    RUN_FILES,
    UNFINISHED,
    table_file,
)
from ..tables.foreign import experiment_of
from ..tables.parquet_files import read_schema, text_column
from ..tables.unfinished import who, worker_of

_KEYS = {"run": "cells", "search": "goodput", "placement": "placement"}  # the table without which nothing counts
_PART = re.compile(rf"[0-9]+\.({'|'.join(RECORDED)})\.parquet")
_MOST_KEYS = 3  # that differ, named in a message


class Hold:
    """A directory that this process works in, until `close`. ConfigError when another one does.

    notes  sentences about what is not as it should be
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self.notes: list[str] = []
        self._path = directory / UNFINISHED
        self._file = -1
        while self._file < 0:
            self._file = self._locked(kind)
        about = {"kind": kind, "pid": os.getpid(), "host": platform.node(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
        with suppress(OSError):  # a full disk is told by what must be written
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{json.dumps(about)}\n".encode(), 0)
        remove_leftovers(directory, {"probe", *RUN_FILES, *GOODPUT_FILES, *PLACEMENT_FILES}, alone=True)
        remove_leftovers(directory / PARTS, _PART, alone=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if self._file >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1

    def _locked(self, kind: str) -> int:
        """The open file with its lock; -1 when another process has just let go of it."""
        no_follow = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | no_follow, 0o666)
        except OSError as error:
            raise ConfigError([f"output {self._path}: cannot be written: {error.strerror}"]) from None
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(self._path), os.fstat(file)):
                return file
        except ImportError:  # on Windows, where nothing keeps two apart
            return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(file)
            worker = worker_of(self._path.parent) or {}
            raise ConfigError(
                [
                    f"{self._path.parent} is in use by another {worker.get('kind', kind)}{who(worker)}: wait until it "
                    "ends, or choose another directory"
                ]
            ) from None
        except OSError as error:  # a file system without locks
            self.notes.append(f"{self._path}: cannot be locked ({error.strerror}): start nothing else here")
            return file
        os.close(file)
        return -1


def refuse_other(
    directory: Path, kind: str, config: Mapping[str, Any], ids: Collection[str] | None = None, *, fresh: bool = False
) -> None:
    """ConfigError when a directory holds what this work would replace, or should not lie beside.

    A directory belongs to one experiment, by its name. Work of one kind replaces that of the same settings, `config`;
    a run also one whose cells it has all, by `ids`; with `fresh` any.
    """
    config = _as_kept(config)
    for other, table in _KEYS.items():
        path = directory / table_file(table)
        try:
            held = experiment_of(read_schema(path), path)
            lost = set(text_column(path, "cell_id")) - set(ids) if ids is not None and other == kind else set()
        except ValueError:  # no table, or none that can be read
            continue
        if other == kind and not fresh and held != config and (lost or ids is None):
            differ = listed(_differences(held, config), _MOST_KEYS)
            what = f", {len(lost):,} of whose cells are not asked for" if lost else ""
            raise ConfigError(
                [
                    f"{directory} holds a finished {kind} of other settings{what} ({differ}): --fresh replaces it, "
                    "another --out keeps both"
                ]
            )
        if other != kind and held and held.get("name") != config.get("name"):
            raise ConfigError(
                [
                    f"{directory} holds a {other} of another experiment, {shown(held.get('name'))}, beside which a "
                    f"{kind} of {shown(config.get('name'))} should not lie: choose another --out"
                ]
            )


def holds(directory: Path, kind: str, config: Mapping[str, Any]) -> bool:
    """Whether a directory has the answer of work with these settings."""
    path = directory / table_file(_KEYS[kind])
    try:
        held = experiment_of(read_schema(path), path)
    except ValueError:  # no table, or none that can be read
        return False
    return held == _as_kept(config)


def _as_kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a table gives them back."""
    kept: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return kept


def _differences(held: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    there, here = _flat(held), _flat(config)
    return [
        f"{key} = {shown(there.get(key))} there, {shown(here.get(key))} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat
