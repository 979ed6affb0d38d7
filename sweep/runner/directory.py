"""The directory of a run or a search: where it is, whether its files can be written, and what stands behind them."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import checks
from ..experiment.plan import RULES_VERSION
from ..experiment.tables import ConfigError, Experiment
from ..tables.filenames import JOURNAL_NAME, PARTS, RESULTS, RUN_FILES, UNFINISHED


def environment() -> dict[str, Any]:
    """The versions and the machine behind a result."""
    packages = ("servesweep", "numpy", "pandas", "pyarrow", "joblib")
    return {
        "rules_version": RULES_VERSION,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def output_directory(experiment: Experiment, out: str | Path | None) -> Path:
    """Where a run lands: `out`, or a folder of the experiment's name when nothing is said."""
    return Path(RESULTS) / experiment.name if out is None else checks.path("out", out)


def check_directory(directory: Path, outputs: Sequence[str] = RUN_FILES, folders: Sequence[str] = (PARTS,)) -> None:
    """See that the files of a run can be written into a directory, which need not be there yet; ConfigError otherwise.

    Nothing is written behind a link: a table that is one is replaced, a journal or a folder refused. Writes nothing.
    """
    try:
        for name in (*outputs, UNFINISHED):
            path = directory / name
            if path.exists() and not path.is_file():
                what = "is a directory" if path.is_dir() else "is not a regular file"
                raise ConfigError(
                    [f"output {path}: {what}: must be a file, which the run would replace, or not be there"]
                )
            if name == JOURNAL_NAME and path.is_symlink():
                raise ConfigError([f"output {path}: is a link: must be a file, to which the run adds, or not be there"])
        for name in folders:
            path = directory / name
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "a link" if path.is_symlink() else "no directory"
                raise ConfigError([f"output {path}: is {what}: must be a directory, or not be there"])
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError([f"output directory {directory}: cannot be written: {error.strerror}"]) from None
    except UnicodeError as error:
        raise ConfigError([f"output directory {directory}: is no name here: {error}"]) from None
    if not there.is_dir():
        raise ConfigError([f"output directory {directory}: cannot be written: {there} is not a directory"])
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError([f"output directory {directory}: cannot be written: {os.strerror(errno.EACCES)}"])


def prepare_directory(directory: Path, outputs: Sequence[str] = RUN_FILES, folders: Sequence[str] = (PARTS,)) -> Path:
    """Make the directory of a run and see that its files can be written; ConfigError otherwise."""
    check_directory(directory, outputs, folders)
    probe = directory / f".probe.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.unlink(missing_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        probe.unlink()
    except OSError as error:
        raise ConfigError([f"output directory {directory}: cannot be written: {error.strerror}"]) from None
    return directory


def as_json(content: Mapping[str, Any]) -> bytes:
    """Plain data as JSON for people and programs."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # an escape of JSON
