"""What all records of a batch have in common.

A record is a dataclass of arrays whose first axis is the lanes. Its file is the only one that changes its fields: it
has a verb for each change, and the phases call them (tests/engine/test_owners.py).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from .arrays import Ints

R = TypeVar("R")

_TYPES = {"Floats": np.float64, "Ints": np.int64, "Bools": np.bool_}


def new_record(kind: type[R], lanes: int, **given: Any) -> R:
    """A record of lanes that have not begun: fields that are not `given` are 0, [L]."""
    zeros: dict[str, Any] = {
        field.name: np.zeros(lanes, _TYPES[str(field.type)])
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name not in given
    }
    return kind(**zeros, **given)


def compact(record: Any, keep: Ints) -> None:
    """Slice every array of a record to the lanes `keep`."""
    for field in fields(record):
        setattr(record, field.name, getattr(record, field.name)[keep])
