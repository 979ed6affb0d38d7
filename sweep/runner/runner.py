"""Run an experiment: cells over workers, and one Parquet file a table. The same bytes for any workers and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .. import checks
from ..experiment.plan import Plan, expand
from ..experiment.reader import load_experiment
from ..experiment.tables import Experiment
from .backends import BackendLost
from .batches import MAX_BATCH_CELLS
from .execution import BackendName, Execution
from .run import Interrupted, Run, RunStopped


@checks.spelt_out
def run_grid(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    requests: str | None = None,
    steps: str | None = None,
    instances: str | None = None,
    progress: bool = True,
    max_batch_cells: int = MAX_BATCH_CELLS,
    fresh: bool = False,
    retry_failed: bool = False,
    backend: BackendName = "local",
    scheduler: str | None = None,
) -> Run:
    """Simulate every cell of an experiment and write its tables. Cells that the directory holds already are reused.

    Parameters
    ----------
    config
        A TOML file, the name of a ready experiment, tables as a dict, in which an `SLO` may stand for [slo], or an
        `Experiment`.
    workers
        Processes. None: as many as are worth it, up to one for each core. 1 runs in this process.
    out
        Directory of the run. None: results/<name> in the current directory.
    trace
        A trace file that takes the place of the experiment's own workload; its request rates stay. None: its own.
    settings
        Values that replace those of single keys: a dict such as `{"policy": "mixed", "slo.ttft_ms": [200, 500]}`, in
        which None removes the key, or a list of "key=value" texts with values as in TOML. None: the experiment as it
        is.
    requests, steps, instances
        Cells whose requests, steps and instances are written as tables of their own: "all", ids of cells, or
        conditions such as "policy=chunked,block_size=16". None: what [output] of the experiment says.
    progress
        Show cells, rate and time left on stderr.
    max_batch_cells
        Most cells that are simulated together. It changes speed and memory, never a result.
    fresh
        Forget what the directory holds of earlier runs.
    retry_failed
        Run cells again that failed in an earlier run.
    backend
        "local": processes of this machine; "dask", "ray": the workers of a cluster, and `workers` must be None.
    scheduler
        Address of the cluster, such as "tcp://10.0.0.1:8786". None: without a cluster, or the one that Ray finds.

    Returns
    -------
    Run
        Its `df` has one row a cell; one that fails has status "failed".

    Raises
    ------
    ConfigError
        Before anything runs, when something is wrong with the experiment, the directory or the cluster.
    Interrupted
        A KeyboardInterrupt, on Ctrl-C, after what has ended was written.
    RunStopped
        When the disk is full or the cluster is gone.
    """
    experiment = load_experiment(
        config, trace=trace, settings=settings, requests=requests, steps=steps, instances=instances
    )
    return run_plan(
        expand(experiment),
        workers=workers,
        out=out,
        progress=progress,
        max_batch_cells=max_batch_cells,
        fresh=fresh,
        retry_failed=retry_failed,
        backend=backend,
        scheduler=scheduler,
    )


@checks.spelt_out
def iter_run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    requests: str | None = None,
    steps: str | None = None,
    instances: str | None = None,
    progress: bool = False,
    max_batch_cells: int = MAX_BATCH_CELLS,
    fresh: bool = False,
    retry_failed: bool = False,
    backend: BackendName = "local",
    scheduler: str | None = None,
) -> Iterator[dict[str, Any]]:
    """`run_grid`, cell by cell: the row of each in the cells table, as soon as it is on disk, in the order they end.

    First come the cells without a simulation: infeasible ones, and those that the directory held already. The tables
    are written when the last cell has been given. Leaving early, by `break` or an error, stops the workers; the next
    run goes on from there.

    Parameters
    ----------
    config, workers, out, trace, settings, requests, steps, instances
        As for `run_grid`.
    progress
        Show cells, rate and time left on stderr.
    max_batch_cells, fresh, retry_failed, backend, scheduler
        As for `run_grid`.

    Yields
    ------
    dict
        A row by column, None where there is nothing.

    Raises
    ------
    ConfigError, RunStopped
        As `run_grid`.
    """
    experiment = load_experiment(
        config, trace=trace, settings=settings, requests=requests, steps=steps, instances=instances
    )
    with closing(
        Execution(
            expand(experiment),
            workers=workers,
            out=out,
            max_batch_cells=max_batch_cells,
            fresh=fresh,
            retry_failed=retry_failed,
            backend=backend,
            scheduler=scheduler,
        )
    ) as execution:
        store = execution.store
        for at, status in enumerate(store.status):
            if status:
                yield store.row(at)
        with closing(execution.outcomes(progress)) as outcomes:
            for outcome in outcomes:
                yield from map(store.row, outcome.positions)
        execution.finish()


def run_plan(
    plan: Plan,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    max_batch_cells: int = MAX_BATCH_CELLS,
    fresh: bool = False,
    retry_failed: bool = False,
    backend: BackendName = "local",
    scheduler: str | None = None,
) -> Run:
    """`run_grid` for an experiment that has been expanded already."""
    checks.whether("progress", progress)
    with closing(
        Execution(
            plan,
            workers=workers,
            out=out,
            max_batch_cells=max_batch_cells,
            fresh=fresh,
            retry_failed=retry_failed,
            backend=backend,
            scheduler=scheduler,
        )
    ) as execution:
        interrupted = False
        try:
            with closing(execution.outcomes(progress)) as outcomes:
                for _ in outcomes:
                    pass
        except KeyboardInterrupt:
            interrupted = True
        except BackendLost as error:
            run = execution.finish() if execution.any_ended else execution.run()
            raise RunStopped(run, str(error), alone=backend == "local") from None
        # An interrupted run without a result leaves the tables of an earlier one in place.
        run = execution.run() if interrupted and not execution.any_ended else execution.finish()
        if interrupted:
            raise Interrupted(run)
        return run
