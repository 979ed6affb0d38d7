"""What a line of a journal may say. One that is whole, with the right checksum, may be wrong all the same: by another
program, an editor, a bug. What no run of this program writes is not believed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Floats
from ..measures.columns import MEASURES
from ..measures.slo import SLOS
from ..tables.schemas import CELLS_SCHEMA

Record = dict[str, Any]

_CELL_ID = re.compile(r"[0-9a-f]{16}")
_MOST = 2**53  # of a count: beyond, float64 does not hold every integer
_LEAST = -1e-9  # of what is never negative, but for rounding
_PLACE = {name: place for place, name in enumerate(MEASURES)}
_COUNTS = [_PLACE[name] for name in MEASURES if CELLS_SCHEMA.field(name).type == "int64"]
_SHARES = [_PLACE[name] for name in ("attainment", *(f"{name}_attainment" for name in SLOS))]
_WINDOW, _FINISHED, _REJECTED = (_PLACE[name] for name in ("attainment_requests", "finished", "rejected"))


def is_sound(record: Record) -> bool:
    """Whether a record has the keys and types of its kind: of a run, a batch, a cell, or an end."""
    kind = next((kind for kind in ("cell", "batch", "journal", "end") if kind in record), None)
    return kind is not None and _IS_SOUND[kind](record)


def places(names: Sequence[str]) -> list[int] | None:
    """Where each of `MEASURES` is among the names of a form; None where one is missing."""
    there = {name: place for place, name in enumerate(names)}
    return [there[name] for name in MEASURES] if there.keys() >= set(MEASURES) else None


def measures_of(record: Record, forms: Mapping[str, Sequence[str]], n_requests: int) -> Floats | None:
    """The measures in a sound record of a cell with so many requests, in the order of `MEASURES`, NaN where there is
    none; None for a record of a version that did not have them all, or whose names are not known.

    Journals of format 1 have them by name, others as base64 of float64, little-endian, in the order that the form says:
    writing every number as text would take ten times as long. ValueError for what no simulation gives.
    """
    if "measures" in record:
        by_name = record["measures"]
        if not by_name.keys() >= set(MEASURES):
            return None
        values = np.array([by_name[name] for name in MEASURES], np.float64)  # None becomes NaN
    elif "values" in record:
        found = np.frombuffer(base64.b64decode(record["values"], validate=True), "<f8")
        names = forms.get(record["form"])  # the line that said it may be damaged
        if names is not None and len(found) != len(names):
            raise ValueError(f"{len(found)} measures for {len(names)} names")
        order = None if names is None else places(names)
        if order is None:
            return None
        values = found[order].astype(np.float64)
    else:
        return None
    if not _can_be(values, n_requests):
        raise ValueError("measures that no cell has")
    return values


def _can_be(values: Floats, n_requests: int) -> bool:
    """Whether measures can be those of a cell."""
    counts = values[_COUNTS]
    some = counts[~np.isnan(counts)]
    return not (
        (values < _LEAST).any()
        or np.isinf(values).any()
        or (values[_SHARES] > 1).any()
        or (some != np.floor(some)).any()
        or (some > _MOST).any()
        or not values[_WINDOW] <= n_requests
        or values[_FINISHED] + values[_REJECTED] != n_requests  # also where one is missing
    )


def _is_run(record: Record) -> bool:
    form, names = record.get("form"), record.get("measures")
    named = isinstance(form, str) and _are_names(names)
    return (
        _is_count(record["journal"])
        and _is_count(record.get("rules"))
        and _is_text(record.get("host"))
        and (named or (form is None and names is None))
    )


def _is_batch(record: Record) -> bool:
    times = [record.get(name) for name in ("wall_s", "cpu_s", "ended_unix_s")]
    return (
        _is_count(record["batch"])
        and _is_count(record.get("cells"))
        and {"host", "pid", "ended_unix_s"} <= record.keys()
        and (record["pid"] is None or _is_count(record["pid"]))
        and _is_text(record["host"])
        and _is_time(times[0])
        and _is_time(times[1])
        and (times[2] is None or _is_time(times[2]))
    )


def _is_cell(record: Record) -> bool:
    if not (isinstance(record["cell"], str) and _CELL_ID.fullmatch(record["cell"])):
        return False
    if not _is_count(record.get("batch", 0)):
        return False
    if record.get("status") == "failed":
        return isinstance(record.get("error"), str)
    if record.get("status") != "ok" or record.get("error") is not None:
        return False
    if "values" in record:
        return isinstance(record["values"], str) and isinstance(record.get("form"), str)
    by_name = record.get("measures")
    return isinstance(by_name, dict) and all(value is None or _is_number(value) for value in by_name.values())


def _is_end(record: Record) -> bool:
    return isinstance(record["end"], str)


_IS_SOUND: Mapping[str, Callable[[Record], bool]] = {
    "journal": _is_run,
    "batch": _is_batch,
    "cell": _is_cell,
    "end": _is_end,
}


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0
