"""What works in a directory of results, or was killed there; and whether its tables are older than that."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..escapes import one_line
from .filenames import JOURNAL_NAME, RUN_FACTS, UNFINISHED
from .plain_files import open_plain

KINDS = {  # of work, by the tables that come of it
    **dict.fromkeys(("cells", "timings", "requests", "steps", "instances"), "run"),
    **dict.fromkeys(("goodput", "probes"), "search"),
    "placement": "placement",
}
_MOST_BYTES = 1 << 16  # of a file that says who works here


def worker_of(directory: Path) -> dict[str, Any] | None:
    """Who works in a directory, or was killed there: "kind", "pid", "host", "time". None: nobody; empty: not known."""
    found = _json_of(directory / UNFINISHED, _MOST_BYTES)
    return found if found or os.path.lexists(directory / UNFINISHED) else None


def who(worker: dict[str, Any]) -> str:
    """Which process that is, in brackets; empty where it is not known."""
    facts = [worker.get(name) for name in ("pid", "host", "time")]
    return "" if None in facts else " (process {} on {}, since {})".format(*(one_line(str(fact)) for fact in facts))


def newer_work(directory: Path, table: str) -> str | None:
    """A sentence about work in a directory that has not ended, and is newer than a table; None when there is none."""
    kind = KINDS[table]
    worker = worker_of(directory)
    if worker is not None and worker.get("kind", kind) == kind:
        return (
            f"{directory}: a {kind} here has not ended{who(worker)}, and is newer than this table: when it was killed, "
            "start it again"
        )
    known = _json_of(directory / RUN_FACTS).get("journal_bytes") if kind == "run" else None
    try:
        if known is not None and (directory / JOURNAL_NAME).stat().st_size != known:
            return f"{directory}: the last run here did not end, and is newer than this table: start it again"
    except OSError:  # without its journal
        pass
    return None


def _json_of(path: Path, most: int = -1) -> dict[str, Any]:
    try:
        with open_plain(path) as file:
            found = json.loads(file.read(most))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
