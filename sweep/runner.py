"""Run an experiment: cells over workers, and one Parquet file a table. The same bytes for any workers and batches."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checks
from .batches import MAX_LANES, default_workers, estimate, expected_cpu_s, make_batches
from .config import ConfigError, Experiment
from .experiment_file import load_experiment
from .metrics import MEASURES
from .plan import RULES_VERSION, Plan, expand
from .progress import Progress, Silent
from .tasks import Outcome, Task, make_task, run_task

if TYPE_CHECKING:
    import pandas as pd

OUTPUTS = ("cells.parquet", "requests.parquet", "steps.parquet", "instances.parquet", "run.json")


@dataclass(frozen=True)
class Run:
    """A run that has ended, as its directory holds it.

    counts  cells, ok, infeasible, failed, and unfinished (those of an interrupted run, which have no row)
    """

    experiment: Experiment
    directory: Path
    counts: Mapping[str, int]
    wall_s: float

    @cached_property
    def df(self) -> pd.DataFrame:
        """One row a cell: every parameter and every measure; units and definitions in `df.attrs`."""
        from .tables import load

        return load(self.directory)

    @property
    def failed(self) -> pd.DataFrame:
        """Rows of the cells that failed; `error` says why."""
        return self.df[self.df["status"] == "failed"]

    @property
    def config(self) -> dict[str, Any]:
        """The experiment as plain tables, defaults filled in."""
        return self.experiment.tables()


class Interrupted(KeyboardInterrupt):
    """A run stopped by the user. `run` holds what had ended, which is on disk."""

    def __init__(self, run: Run) -> None:
        ended = run.counts["ok"] + run.counts["failed"]
        kept = f"their rows are in {run.directory}" if ended else "nothing was written"
        super().__init__(f"interrupted: {ended:,} of {run.counts['cells']:,} cells ended; {kept}")
        self.run = run


def run_grid(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    requests: str | None = None,
    steps: str | None = None,
    instances: str | None = None,
    progress: bool = True,
    max_lanes: int = MAX_LANES,
) -> Run:
    """Simulate every cell of an experiment and write its tables.

    config     a TOML file, the name of a ready experiment, tables as a dict, or an `Experiment`
    workers    processes; None: as many as are worth it, up to one for each core. 1 runs in this process
    out        directory of the run; None: results/<name> in the current directory. Tables of an earlier run go
    trace, settings, requests, steps, instances    see `load_experiment`
    progress   show cells, rate and time left on stderr
    max_lanes  most cells that are simulated together; it changes speed and memory, never a result

    ConfigError before anything runs when something is wrong with the experiment or the directory; a cell that fails
    is a row with status "failed". `Interrupted`, a KeyboardInterrupt, on Ctrl-C, after what has ended was written.
    """
    experiment = load_experiment(
        config, trace=trace, settings=settings, requests=requests, steps=steps, instances=instances
    )
    plan = expand(experiment)
    return run_plan(plan, workers=workers, out=out, progress=progress, max_lanes=max_lanes)


def run_plan(
    plan: Plan,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    max_lanes: int = MAX_LANES,
) -> Run:
    """`run_grid` for an experiment that has been expanded already."""
    feasible = plan.feasible
    workers = choose_workers(plan, workers)
    max_lanes = checks.whole("max_lanes", max_lanes, 1)
    directory = prepare_directory(output_directory(plan.experiment, out))
    batches = make_batches(plan, feasible, workers, max_lanes)
    kept = {key: _kept(plan, getattr(plan.experiment.output, key)) for key in ("requests", "steps", "instances")}
    tasks = (make_task(plan, batch, **kept) for batch in batches)
    collected = _Collected(plan)
    started = time.perf_counter()
    interrupted = False
    expected = estimate(plan, batches, workers).wall_s
    actual_s = expected_s = 0.0  # of the batches that have ended
    with Progress(len(feasible), expected) if progress else Silent() as shown:
        try:
            with closing(_outcomes(tasks, min(workers, len(batches)))) as outcomes:  # closing it stops the workers
                for outcome in outcomes:
                    collected.add(outcome)
                    actual_s += outcome.wall_s
                    expected_s += expected_cpu_s(plan, outcome.positions)
                    shown.advance(len(outcome.positions), len(outcome.errors), expected * actual_s / expected_s)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:
            interrupted = isinstance(error.__context__, KeyboardInterrupt)  # and then the workers could not be stopped
            if not interrupted:  # a worker died: its cells, and those not yet run, have no result
                collected.fail_rest(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    run = Run(plan.experiment, directory, collected.counts(), time.perf_counter() - started)
    if collected.batches or not interrupted:  # an interrupted run without a result leaves an earlier one in place
        collected.write(directory)
        _write_json(directory / "run.json", _facts(run, workers, collected.batches))
    if interrupted:
        raise Interrupted(run)
    return run


def choose_workers(plan: Plan, workers: int | None) -> int:
    """The number of workers of a run; ValueError when the one asked for is below 1."""
    if workers is None:
        from joblib import cpu_count

        return default_workers(plan, cpu_count())
    return checks.whole("workers", workers, 1)


def output_directory(experiment: Experiment, out: str | Path | None) -> Path:
    """Where a run lands: `out`, or a folder of the experiment's name when nothing is said."""
    return Path("results") / experiment.name if out is None else Path(out)


def check_directory(directory: Path) -> None:
    """See that the files of a run can be written into a directory, which need not be there yet; ConfigError otherwise.

    Writes nothing.
    """
    try:
        for name in OUTPUTS:
            path = directory / name
            if path.exists() and not path.is_file():
                what = "is a directory" if path.is_dir() else "is not a regular file"
                raise ConfigError(
                    [f"output {path}: {what}: must be a file, which the run would replace, or not be there"]
                )
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    except OSError as error:
        raise ConfigError([f"output directory {directory}: cannot be written: {error.strerror}"]) from None
    if not there.is_dir():
        raise ConfigError([f"output directory {directory}: cannot be written: {there} is not a directory"])
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError([f"output directory {directory}: cannot be written: {os.strerror(errno.EACCES)}"])


def prepare_directory(directory: Path) -> Path:
    """Make the directory of a run and see that its files can be written; ConfigError otherwise."""
    check_directory(directory)
    probe = directory / f".probe.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError([f"output directory {directory}: cannot be written: {error.strerror}"]) from None
    return directory


def _kept(plan: Plan, selection: str | None) -> set[int]:
    return set() if selection is None else set(plan.select(selection)) & set(plan.feasible)


def _outcomes(tasks: Iterator[Task], workers: int) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks, as they end."""
    if workers <= 1:
        yield from map(run_task, tasks)
        return
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
        with _interrupts_held_back():
            outcomes = parallel(delayed(run_task)(task) for task in tasks)
        try:
            yield from iter(outcomes.__next__, None)  # which does not close it, unlike `yield from outcomes`
        finally:
            with suppress(Exception):  # stopping the workers is no part of the result
                outcomes.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits until the block has ended, and never comes to processes started in it.

    A terminal sends it to the workers too, which would each print where they were. They inherit what is blocked.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting this process later would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Collected:
    """Outcomes by position in the plan, in whatever order they come. A status of "" is none yet."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.measures = {name: np.full(len(plan.cells), np.nan) for name in MEASURES}
        self.status = ["infeasible" if cell.setup.infeasible else "" for cell in plan.cells]
        self.error = [cell.setup.infeasible for cell in plan.cells]
        self.requests: dict[int, Any] = {}
        self.steps: dict[int, Any] = {}
        self.instances: dict[int, Any] = {}
        self.batches: list[dict[str, Any]] = []

    def add(self, outcome: Outcome) -> None:
        for name, values in outcome.measures.items():
            self.measures[name][outcome.positions] = values
        for at in outcome.positions:
            self.error[at] = outcome.errors.get(at)
            self.status[at] = "failed" if at in outcome.errors else "ok"
        self.requests.update(outcome.requests)
        self.steps.update(outcome.steps)
        self.instances.update(outcome.instances)
        self.batches.append({"cells": len(outcome.positions), "wall_s": outcome.wall_s, "cpu_s": outcome.cpu_s})

    def fail_rest(self, reason: str) -> None:
        for at, status in enumerate(self.status):
            if not status:
                self.status[at], self.error[at] = "failed", reason

    def counts(self) -> dict[str, int]:
        """Cells in all, by status, and without an outcome."""
        counts = {status: self.status.count(status) for status in ("ok", "infeasible", "failed")}
        return {"cells": len(self.status), **counts, "unfinished": self.status.count("")}

    def write(self, directory: Path) -> None:
        """Write the tables, rows in plan order. Cells without an outcome have no row."""
        from .tables import cells_table, instances_table, requests_table, steps_table, write_table

        rows = [at for at, status in enumerate(self.status) if status]
        parameters = [self.plan.cells[at].columns() for at in rows]
        columns: dict[str, Any] = {name: [row[name] for row in parameters] for name in self.plan.cells[0].columns()}
        columns["status"] = [self.status[at] for at in rows]
        columns["error"] = [self.error[at] for at in rows]
        columns |= {name: values[rows] for name, values in self.measures.items()}
        # Which other tables were asked for is no part of this one.
        experiment = {key: value for key, value in self.plan.experiment.tables().items() if key != "output"}
        write_table(directory / "cells.parquet", cells_table(columns, experiment))
        output = self.plan.experiment.output
        for name, selection, make, kept in (
            ("requests", output.requests, requests_table, self.requests),
            ("steps", output.steps, steps_table, self.steps),
            ("instances", output.instances, instances_table, self.instances),
        ):
            path = directory / f"{name}.parquet"
            if selection is None:
                path.unlink(missing_ok=True)  # of an earlier run
            else:
                write_table(path, make([(self.plan.cells[at].cell_id, kept[at]) for at in sorted(kept)]))


def _facts(run: Run, workers: int, batches: list[dict[str, Any]]) -> dict[str, Any]:
    """How a run went, on which machine: everything that may differ between two runs with the same tables."""
    packages = ("servesweep", "numpy", "pandas", "pyarrow", "joblib")
    return {
        "experiment": run.config,
        "counts": dict(run.counts),
        "rules_version": RULES_VERSION,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "workers": workers,
        "wall_s": round(run.wall_s, 3),
        "batches": [{key: round(value, 3) for key, value in batch.items()} for batch in batches],
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)
