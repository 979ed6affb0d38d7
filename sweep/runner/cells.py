"""What has become of the cells of a plan so far: from the journal of earlier runs, and from batches as they end."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..arrays import Floats
from ..experiment.plan import RULES_VERSION, Plan
from ..measures.columns import MEASURES
from ..tables.atomic_write import write_together
from ..tables.filenames import RECORDED, RUN_FACTS, table_file
from ..tables.parquet_files import text_column
from .journal import Record
from .recorder import Recorded, clear_parts
from .records import is_sound, measures_of
from .tasks import TaskResult

if TYPE_CHECKING:
    import pyarrow as pa

FORM = f"{zlib.crc32(' '.join(MEASURES).encode()):08x}"  # of `values` in a record: which measures, in which order


class CellStore:
    """Status and measures by position in the plan. A status of "" is none yet.

    values   float64 [cells, measures], NaN where there is none
    batch    int64 [cells], number of the batch that the cell ended in; -1: none
    batches  what is known of a batch, by its number
    wanted   of the tables asked for: positions of the cells that belong there
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory = plan, directory
        self.values = np.full((len(plan.cells), len(MEASURES)), np.nan)
        self.status = ["infeasible" if cell.spec.infeasible else "" for cell in plan.cells]
        self.error = [cell.spec.infeasible for cell in plan.cells]
        self.batch = np.full(len(plan.cells), -1, np.int64)
        self.batches: dict[int, Record] = {}
        self.reused: list[int] = []
        self.recorded: dict[str, Recorded] = {}
        self._held: set[str] = set()  # cells in the tables that are there
        self.wanted: dict[str, set[int]] = {}
        self.runs: list[Record] = []  # of the journal: how each began
        self._forms: dict[str, Sequence[str]] = {FORM: MEASURES}
        self.ended = True  # whether the last of them said that it ended
        feasible = set(plan.feasible)
        for table in RECORDED:
            selection = getattr(plan.experiment.output, table)
            if selection is not None:
                self.wanted[table] = set(plan.select(selection)) & feasible
                self.recorded[table] = Recorded(directory, table)

    @property
    def to_do(self) -> list[int]:
        """Positions of the cells without an outcome."""
        return [at for at, status in enumerate(self.status) if not status]

    def restore(
        self, records: Iterable[Record], refuse: Callable[[], None] = lambda: None, retry_failed: bool = False
    ) -> list[str]:
        """Take over what a journal holds of these cells. Returns sentences about what could not be used.

        refuse        called for a record, before the next is taken, that says what cannot be
        retry_failed  leave out cells that failed, so that they run again
        """
        notes = [note for kept in self.recorded.values() for note in kept.find()]
        self._see_held()
        here = {cell.cell_id: at for at, cell in enumerate(self.plan.cells) if not self.status[at]}
        restored: set[int] = set()
        kept, ours = set(), False  # a million records would be gigabytes: each is used at once, the last word counts
        for record in records:
            if not is_sound(record):
                refuse()
                continue
            if "cell" in record:
                at = here.get(record["cell"])
                if at is not None:
                    try:
                        values = measures_of(record, self._forms, len(self.plan.cells[at].traffic.workload))
                    except ValueError:
                        refuse()
                        continue
                    ours = True
                    self._restore(at, record if self._usable(at, record, values, retry_failed) else {}, values)
                    (restored.add if self.status[at] else restored.discard)(at)
                kept.add(record["cell"])
            elif "batch" in record:
                self.batches[record["batch"]] = record
            elif "journal" in record:
                if record.get("form") == FORM and record["measures"] != list(MEASURES):
                    refuse()
                    continue
                self.runs.append(record)
                if "form" in record:
                    self._forms[record["form"]] = record["measures"]
            self.ended = "end" in record
        self.reused = sorted(restored)
        if kept and not ours:
            notes.append(self._why_nothing(len(kept)))
        return notes

    def _see_held(self) -> None:
        """See which of these cells have rows in the table that is there; those that failed may run again."""
        ours = {cell.cell_id for cell in self.plan.cells}
        cells = self.directory / table_file("cells")
        with suppress(ValueError):  # no table, or none that can be read
            rows = zip(text_column(cells, "cell_id"), text_column(cells, "status"), strict=True)
            self._held = ours.intersection(cell_id for cell_id, status in rows if status != "failed")

    def _restore(self, at: int, record: Record, values: Floats | None) -> None:
        """Take over a record and its measures; an empty one takes back what an earlier one gave."""
        self.status[at], self.error[at] = record.get("status", ""), record.get("error")
        self.batch[at] = record.get("batch", -1)
        self.values[at] = np.nan if values is None or not record else values

    def add(self, outcome: TaskResult, append: Callable[[Iterable[Record]], None]) -> None:
        """Take a batch that has ended, as soon as it is on disk: what was asked to be recorded, then the journal's
        records, which `append` writes. OSError when it cannot be written; then nothing was taken."""
        for table, kept in self.recorded.items():
            rows: Mapping[int, Any] = getattr(outcome, table)
            if rows:
                kept.add([(self.plan.cells[at].cell_id, rows[at]) for at in sorted(rows)])
        # Above those of cells, too, whose batch is not known: the line that said it may be damaged.
        number = max([*self.batches, int(self.batch.max(initial=-1))], default=-1) + 1
        batch = {
            "batch": number,
            "cells": len(outcome.positions),
            "wall_s": round(outcome.wall_s, 6),
            "cpu_s": round(outcome.cpu_s, 6),
            "host": outcome.host,
            "pid": outcome.pid,
            "ended_unix_s": outcome.ended_unix_s,
        }
        append([batch, *self._cell_records(outcome, number)])
        self.batches[number] = batch
        self.values[outcome.positions] = np.stack([outcome.measures[name] for name in MEASURES], axis=1)
        self.batch[outcome.positions] = number
        for at in outcome.positions:
            self.error[at] = outcome.errors.get(at)
            self.status[at] = "failed" if at in outcome.errors else "ok"

    def counts(self) -> dict[str, int]:
        """Cells in all, by status, without an outcome, and those that earlier runs had simulated."""
        counts = {status: self.status.count(status) for status in ("ok", "infeasible", "failed")}
        return {
            "cells": len(self.status),
            **counts,
            "unfinished": self.status.count(""),
            "reused": len(self.reused),
        }

    def measures_of(self, positions: list[int]) -> dict[str, NDArray[np.float64]]:
        """Measures of some cells, each [cells]."""
        return dict(zip(MEASURES, self.values[positions].T, strict=True))

    def row(self, at: int) -> dict[str, Any]:
        """The row of a cell in the cells table; None where there is nothing."""
        measures = zip(MEASURES, map(float, self.values[at]), strict=True)
        return {
            **self.plan.cells[at].columns(),
            "status": self.status[at],
            "error": self.error[at],
            **{name: None if math.isnan(value) else value for name, value in measures},
        }

    def write(self, facts: bytes) -> bool:
        """Write the tables, rows in plan order, and the facts about the run. Cells without an outcome have no row.

        Returns whether they were written: they are not where the tables that are there hold more.
        """
        from ..tables.build import cells_table, timings_table

        rows = [at for at, status in enumerate(self.status) if status]
        ids = [self.plan.cells[at].cell_id for at in rows]
        if not self._held <= set(ids):
            return False
        numbers = self.batch[rows].tolist()
        made: dict[str, Callable[[], pa.Table]] = {
            "cells": lambda: cells_table(self._columns(rows), of_cells(self.plan)),
            "timings": lambda: timings_table(ids, [self.batches.get(number) for number in numbers]),
        }
        for table, kept in self.recorded.items():
            wanted = [self.plan.cells[at].cell_id for at in rows if at in self.wanted[table]]
            made[table] = partial(kept.table_of, wanted)
        files: dict[Path, Callable[[BinaryIO], object]] = {
            self.directory / table_file(name): _table(make) for name, make in made.items()
        }
        files[self.directory / RUN_FACTS] = lambda file: file.write(facts)
        gone = [self.directory / table_file(table) for table in RECORDED if table not in made]
        write_together(files, key=self.directory / table_file("cells"), without=gone)
        clear_parts(self.directory)
        return True

    def _columns(self, rows: list[int]) -> dict[str, Any]:
        parameters = [self.plan.cells[at].columns() for at in rows]
        columns: dict[str, Any] = {name: [row[name] for row in parameters] for name in self.plan.cells[0].columns()}
        columns["status"] = [self.status[at] for at in rows]
        columns["error"] = [self.error[at] for at in rows]
        return columns | self.measures_of(rows)

    def _usable(self, at: int, record: Record, values: Floats | None, retry_failed: bool) -> bool:
        """Whether a record of the journal is all that this run wants of a cell."""
        if record["status"] == "failed":
            return not retry_failed
        if values is None:  # an earlier version, which did not have every measure
            return False
        cell = self.plan.cells[at]
        rows = {
            "requests": len(cell.traffic.workload),
            "steps": values[MEASURES.index("steps")],
            "instances": cell.spec.n_instances,
        }
        return all(
            at not in wanted or self.recorded[table].rows(cell.cell_id) == rows[table]
            for table, wanted in self.wanted.items()
        )

    def _cell_records(self, outcome: TaskResult, number: int) -> Iterator[Record]:
        rows = np.stack([outcome.measures[name] for name in MEASURES], axis=1).astype("<f8")
        for at, values in zip(outcome.positions, rows, strict=True):
            record: Record = {"cell": self.plan.cells[at].cell_id, "batch": number}
            if at in outcome.errors:
                yield {**record, "status": "failed", "error": outcome.errors[at]}
            else:
                text = base64.b64encode(values.tobytes()).decode()
                yield {**record, "status": "ok", "form": FORM, "values": text}

    def _why_nothing(self, count: int) -> str:
        others = sorted({run["rules"] for run in self.runs} - {RULES_VERSION})
        cells = f"nothing is reused of the {count:,} cells in {self.directory}"
        if others:
            return (
                f"{cells}: they were simulated by version {', '.join(map(str, others))} of the rules, "
                f"and this is version {RULES_VERSION}"
            )
        return f"{cells}: none of them is part of this experiment"


def _table(make: Callable[[], pa.Table]) -> Callable[[BinaryIO], None]:
    """Writes a table that is made when its turn comes."""
    from ..tables.build import write_parquet

    return lambda file: write_parquet(file, make())


def of_cells(plan: Plan) -> dict[str, Any]:
    """The experiment as the cells table keeps it: which other tables were asked for is no part of it."""
    return {key: value for key, value in plan.experiment.tables().items() if key != "output"}
