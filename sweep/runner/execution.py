"""One run of a plan into a directory: which cells are left to do, batches over workers, the journal, the tables.

What has ended is in the journal of the run's directory at once (`journal`), and a later run into the same directory
takes it from there, whatever became of this one.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from .. import checks
from ..experiment.outlines import Outline
from ..experiment.plan import RULES_VERSION, Plan
from ..experiment.tables import ConfigError
from ..measures.columns import MEASURES
from ..serving.extrapolation import tell
from ..streams import say
from ..tables.atomic_write import take_away
from ..tables.filenames import JOURNAL_NAME, RECORDED, RUN_FILES
from .backends import Backend, InProcess, iter_outcomes
from .batches import MAX_BATCH_CELLS, default_workers, estimate, expected_cpu_s, make_batches, outline_workers
from .cells import FORM, CellStore, of_cells
from .directory import as_json, environment, output_directory, prepare_directory
from .hold import Hold, holds, refuse_other
from .journal import JOURNAL_VERSION, Journal, JournalInUse, JournalTooNew
from .processes import Processes, interrupts
from .progress import BestSoFar, Progress, Silent
from .recorder import drop_parts
from .run import Run, RunStopped
from .tasks import TaskResult, make_task

BackendName = Literal["local", "dask", "ray"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)


class Execution:
    """One run of a plan into a directory, which it holds locked until `close`.

    store  what has become of each cell
    """

    def __init__(
        self,
        plan: Plan,
        *,
        workers: int | None = None,
        out: str | Path | None = None,
        max_batch_cells: int = MAX_BATCH_CELLS,
        fresh: bool = False,
        retry_failed: bool = False,
        backend: BackendName = "local",
        scheduler: str | None = None,
    ) -> None:
        self.plan = plan
        self._max_batch_cells = checks.whole("max_batch_cells", max_batch_cells, 1)
        checks.whether("fresh", fresh)
        checks.whether("retry_failed", retry_failed)
        choose_workers(plan, (), workers)  # an error must come before anything is written
        check_backend(backend, scheduler, workers)
        self.directory = prepare_directory(output_directory(plan.experiment, out))
        self._started = time.perf_counter()
        self._ended_here: list[dict[str, Any]] = []  # the batches of this run
        self._backend_name = backend
        self._batches: list[list[int]] = []
        self.store = CellStore(plan, self.directory)
        self._hold = Hold(self.directory, "run")
        self._replaces: Sequence[str] = ()  # files of other settings, which go when a batch has ended
        try:
            ids = [cell.cell_id for cell in plan.cells]
            refuse_other(self.directory, "run", of_cells(plan), ids, fresh=fresh)
            if fresh and not holds(self.directory, "run", of_cells(plan)):
                self._replaces = [name for name in RUN_FILES if name != JOURNAL_NAME]
            self._journal = Journal(self.directory, fresh)
        except BaseException as error:
            self._hold.close()
            if isinstance(error, JournalInUse):
                raise ConfigError([str(error)]) from None
            if isinstance(error, OSError):
                name = error.filename or self.directory
                raise ConfigError([f"output {name}: cannot be written: {error.strerror}"]) from None
            raise
        try:
            notes = []
            if fresh:
                drop_parts(self.directory)
            else:
                notes = self.store.restore(self._journal.records(), self._journal.refuse, retry_failed)
            self.notes = (*self._hold.notes, *self._journal.damage, *notes)
            self._backend = self._open_backend(workers, scheduler) if self.store.to_do else InProcess()
        except BaseException as error:
            self._journal.close()
            self._hold.close()
            if isinstance(error, JournalTooNew):
                raise ConfigError([str(error)]) from None
            raise

    @property
    def any_ended(self) -> bool:
        """Whether a batch has ended in this run."""
        return bool(self._ended_here)

    def outcomes(self, progress: bool = False) -> Generator[TaskResult, None, None]:
        """Simulate the cells without an outcome. Each batch is on disk when its outcome is given.

        RunStopped when it cannot be written; BackendLost
        """
        plan, store, to_do = self.plan, self.store, self.store.to_do
        if progress:
            for note in self._opening():
                say(note)
        if not to_do:
            return
        batches = self._batches
        requests, steps, instances = (store.wanted.get(table, set()) for table in RECORDED)
        tasks = (make_task(plan, batch, requests, steps, instances) for batch in batches)
        expected = estimate(plan, batches, self._backend.workers).wall_s
        actual_s = expected_s = 0.0  # of the batches that have ended
        best = BestSoFar(plan)
        best.add(store.reused, store.measures_of(store.reused))
        self._append([self._beginning()])
        reused = len(plan.feasible) - len(to_do)
        beyond: dict[int, str] = {}
        with (
            Progress(len(plan.feasible), reused, expected) if progress else Silent() as shown,
            closing(iter_outcomes(tasks, self._backend)) as outcomes,  # closing it stops the workers
        ):
            for outcome in outcomes:
                try:
                    with interrupts():  # on disk and in memory, or in neither
                        store.add(outcome, self._journal.append)
                        cost = {"wall_s": outcome.wall_s, "cpu_s": outcome.cpu_s}
                        if self._replaces:
                            take_away(self.directory, self._replaces)
                            self._replaces = ()
                        self._ended_here.append({"cells": len(outcome.positions), **cost})
                except OSError as error:
                    raise self._stopped(error) from None
                actual_s += outcome.wall_s
                expected_s += expected_cpu_s(plan, outcome.positions)
                best.add(outcome.positions, outcome.measures)
                beyond |= outcome.beyond
                left = expected * actual_s / expected_s
                shown.advance(len(outcome.positions), len(outcome.errors), left, best.text)
                yield outcome
        tell(((f"cell {plan.cells[at].cell_id}", beyond[at]) for at in sorted(beyond)), stacklevel=2)
        self._append([{"end": "done"}])

    def finish(self) -> Run:
        """Write the tables of all that has ended. RunStopped when they cannot be written."""
        run = self.run()
        try:
            if not self.store.write(as_json(self._facts(run))):
                say(f"the tables in {self.directory} hold more cells, and stay; what ended now is in {JOURNAL_NAME}")
        except OSError as error:
            raise self._stopped(error) from None
        return run

    def run(self) -> Run:
        """The run as it stands."""
        wall_s = time.perf_counter() - self._started
        return Run(self.plan.experiment, self.directory, self.store.counts(), wall_s, self.notes)

    def close(self) -> None:
        """Let go of the directory and of the cluster."""
        self._journal.close()
        self._hold.close()
        self._backend.close()

    def _open_backend(self, workers: int | None, scheduler: str | None) -> Backend:
        if self._backend_name != "local":
            from .clusters import open_cluster

            cluster = open_cluster(self._backend_name, scheduler)
            self._batches = make_batches(self.plan, self.store.to_do, cluster.workers, self._max_batch_cells)
            return cluster
        workers = choose_workers(self.plan, self.store.to_do, workers)
        self._batches = make_batches(self.plan, self.store.to_do, workers, self._max_batch_cells)
        workers = min(workers, len(self._batches))
        return Processes(workers) if workers > 1 else InProcess()

    def _opening(self) -> list[str]:
        """What there is to say before the first cell runs."""
        store = self.store
        lines = list(self.notes)
        if store.reused:
            lines.append(f"{len(store.reused):,} reused, {len(store.to_do):,} to do")
        if not store.ended and store.to_do and self._backend.workers == 1:
            lines.append(
                "the last run here did not come to its end. Should a cell have taken all memory: "
                "with --workers 2 it is found, and the others complete"
            )
        return lines

    def _beginning(self) -> dict[str, Any]:
        return {
            "journal": JOURNAL_VERSION,
            "servesweep": metadata.version("servesweep"),
            "rules": RULES_VERSION,
            "host": platform.node(),
            "pid": os.getpid(),
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
            "to_do": len(self.store.to_do),
            "form": FORM,
            "measures": MEASURES,
        }

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        try:
            self._journal.append(records)
        except OSError as error:
            raise self._stopped(error) from None

    def _stopped(self, error: OSError) -> RunStopped:
        remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "put that right"
        return RunStopped(
            self.run(),
            f"{error.filename or self.directory}: {error.strerror}",
            f"they are in {JOURNAL_NAME}, not all in the tables: {remedy}, and go on",
        )

    def _facts(self, run: Run) -> dict[str, Any]:
        """How a run went, on which machine: everything that may differ between two runs with the same tables."""
        return {
            "experiment": run.config,
            "counts": dict(run.counts),
            "step_times": list(dict.fromkeys(cell.spec.columns["step_times_source"] for cell in self.plan.cells)),
            **environment(),
            "backend": self._backend_name,
            "workers": self._backend.workers,
            "wall_s": round(run.wall_s, 3),
            "journal_bytes": self._journal.size,
            "batches": [{key: round(value, 3) for key, value in batch.items()} for batch in self._ended_here],
        }


def choose_workers(plan: Plan, cells: Sequence[int], workers: int | None) -> int:
    """The number of workers for cells of a plan, at most one for each; ValueError when the one asked for is below 1."""
    if workers is None:
        from joblib import cpu_count

        return default_workers(plan, cells, cpu_count())
    return min(checks.whole("workers", workers, 1), max(len(cells), 1))


def workers_of_outline(outline: Outline, workers: int | None) -> int:
    """`choose_workers` for an experiment whose cells have not been built."""
    if workers is None:
        from joblib import cpu_count

        return outline_workers(outline, cpu_count())
    return min(checks.whole("workers", workers, 1), max(outline.feasible, 1))


def check_backend(backend: str, scheduler: str | None, workers: int | None) -> None:
    """ValueError for a backend that there is not, or options that have no effect on it."""
    checks.one_of("backend", backend, BACKENDS)
    if backend == "local" and scheduler is not None:
        raise ValueError(f"scheduler={scheduler!r}: has no effect with backend local")
    if backend != "local" and workers is not None:
        raise ValueError(f"workers={workers!r}: has no effect with backend {backend}, which has the workers it has")
    if backend == "dask" and scheduler is None:
        raise ValueError("scheduler=None: must be given with backend dask, as tcp://10.0.0.1:8786")
