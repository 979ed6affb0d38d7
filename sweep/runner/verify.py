"""Run some cells of a finished run again, each alone: the same numbers to the last bit, or it says where not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..experiment.plan import RULES_VERSION, Plan, expand
from ..experiment.reader import load_experiment
from ..experiment.tables import ConfigError
from ..tables.build import cells_table
from ..tables.filenames import table_file
from ..tables.reading import load, table_of
from .cells import CellStore
from .tasks import make_task

K = 20  # cells by default


@dataclass(frozen=True)
class Difference:
    """A column of a cell that came out otherwise."""

    cell_id: str
    column: str
    table: Any
    now: Any

    def __str__(self) -> str:
        return f"cell {self.cell_id}: {self.column} is {self.table!r} in the table, and {self.now!r} now"


def verify_run(
    run_directory: str | Path, k: int = K, *, seed: int = 0, trace: str | Path | None = None
) -> tuple[list[str], list[Difference]]:
    """Simulate k cells again that a finished run simulated, and compare every column of their rows.

    seed   chooses the cells: those that `numpy.random.default_rng(seed)` draws from the table, all if there are fewer
    trace  the file of the trace, which the tables do not hold, for a run that served one

    Returns the ids of the cells and the differences, none when all are the same. ConfigError when the directory is no
    run, or holds one of other rules or another trace.
    """
    directory = Path(run_directory)
    path = directory / table_file("cells")
    try:
        config = load(directory).attrs["config"]
        table = table_of(directory, "cells")
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if not config:
        raise ConfigError([f"{path}: has lost its experiment, without which no cell can be run again"])
    try:
        plan = expand(load_experiment(config, trace=None if trace is None else str(trace)))
    except ConfigError as error:
        raise ConfigError([f"{path}: its experiment: {problem}" for problem in error.problems]) from None
    here = {cell.cell_id: at for at, cell in enumerate(plan.cells)}
    ids, statuses = table["cell_id"].to_pylist(), table["status"].to_pylist()
    if missing := [cell_id for cell_id in ids if cell_id not in here]:
        raise ConfigError(
            [
                f"{directory}: {len(missing):,} of {len(ids):,} cells are not those of its experiment by version "
                f"{RULES_VERSION} of the rules, with these requests: cannot be compared"
            ]
        )
    ok = [row for row, status in enumerate(statuses) if status == "ok"]
    rows = sorted(np.random.default_rng(seed).choice(ok, min(k, len(ok)), replace=False).tolist()) if ok else []
    differences = []
    for row in rows:
        now = _again(plan, here[ids[row]])
        differences += [
            Difference(ids[row], name, before, after)
            for name, before, after in _pairs(table.slice(row, 1), now)
            if before != after
        ]
    return [ids[row] for row in rows], differences


def _again(plan: Plan, at: int) -> pa.Table:
    """The row of one cell, simulated alone."""
    store = CellStore(plan, Path())
    store.add(make_task(plan, [at], set(), set()).run(), lambda _: None)
    return cells_table([store.row(at)])


def _pairs(before: pa.Table, after: pa.Table) -> list[tuple[str, Any, Any]]:
    return [
        (name, before[name][0].as_py() if name in before.column_names else None, after[name][0].as_py())
        for name in after.column_names
    ]
