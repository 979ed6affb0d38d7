"""Files that `step_times` of an experiment names: profiles, and measured steps."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..hardware.operators import OperatorStepModel
from ..hardware.profile import TableStepTimes
from ..messages import nearest
from ..profiles.profile_files import step_times_from

_ENDINGS = (".toml", ".csv", ".csv.gz")


def check_name(name: str) -> None:
    """ValueError for a name of no step times that is no file's either."""
    if name not in ("operators", "roofline") and not is_file(name):
        known = nearest(name, ("operators", "roofline"))
        raise ValueError(f"step_times={name!r}: is unknown{known}, or a file of {', '.join(_ENDINGS)}")


def is_file(name: str) -> bool:
    """Whether a value of `step_times` is a file's name."""
    return name.lower().endswith(_ENDINGS)


def in_file(name: str) -> TableStepTimes | OperatorStepModel:
    """The step times of a file; ValueError for what cannot be read. Read again only when it has changed."""
    path = Path(name)
    try:
        found = path.stat()
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, *_: int) -> TableStepTimes | OperatorStepModel:
    return step_times_from(path)
