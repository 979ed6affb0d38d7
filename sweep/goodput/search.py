"""Goodput of a whole grid: every configuration's highest request rate that meets the SLOs, all searched together.

A round simulates, for every search that goes on, the rates that it is most likely to ask for next, all in few large
batches. The answers are those of `max_rate` on each configuration alone, to the last bit (docs/goodput.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .. import checks
from ..experiment.plan import Plan, expand
from ..experiment.reader import load_experiment
from ..experiment.tables import ConfigError, Experiment
from ..measures.slo import SLO, SLOS, slo_table
from ..runner.backends import BackendLost, InProcess, iter_outcomes
from ..runner.batches import MAX_BATCH_CELLS, estimate, make_batches
from ..runner.directory import as_json, environment, output_directory, prepare_directory
from ..runner.execution import choose_workers
from ..runner.hold import Hold, refuse_other
from ..runner.processes import Processes
from ..runner.progress import Progress, Silent
from ..runner.tasks import TaskResult, make_task
from ..serving.early_stop import EarlyStopCriterion
from ..streams import say
from ..tables.atomic_write import write_together
from ..tables.build import write_parquet, write_table
from ..tables.filenames import GOODPUT_FACTS, GOODPUT_FILES, table_file
from .options import NO_SLO, GoodputOptions
from .searches import Searches

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Goodput:
    """A search that has ended, as its directory holds it.

    Attributes
    ----------
    experiment, options
        What was asked.
    directory
        Where the tables are.
    counts
        Cells; infeasible, failed; and of the others how many had each ending.
    warnings
        What to know before the numbers are used.
    rounds, probes
        Rounds of simulation, and rates simulated.
    wall_s
        Seconds that the search took.
    """

    experiment: Experiment
    options: GoodputOptions
    directory: Path
    counts: Mapping[str, int]
    warnings: tuple[str, ...]
    rounds: int
    probes: int
    wall_s: float

    @cached_property
    def df(self) -> pd.DataFrame:
        """One row a configuration; units and definitions in `df.attrs`."""
        from ..tables.reading import load

        return load(self.directory, "goodput")

    @property
    def failed(self) -> pd.DataFrame:
        """Rows of the configurations whose simulation failed; `error` says why."""
        return self.df[self.df["status"] == "failed"]


class SearchStopped(RuntimeError):
    """A search that could not go on, though nothing is wrong with the experiment: a full disk, workers that cannot
    start.

    Attributes
    ----------
    alone
        Whether it would come to its end with one worker, which is this process.
    """

    def __init__(self, text: str, *, alone: bool = False) -> None:
        super().__init__(text)
        self.alone = alone


class SearchInterrupted(KeyboardInterrupt):
    """A search stopped by the user.

    Attributes
    ----------
    found
        What the finished rounds gave, which is on disk.
    """

    def __init__(self, found: Goodput, text: str) -> None:
        super().__init__(f"interrupted: {text}")
        self.found = found


@checks.spelt_out
def find_goodput(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    slo: SLO | Mapping[str, float | None] | None = None,
    attainment: float = 0.9,
    lo: float = 0.05,
    hi: float = 64.0,
    iters: int | None = None,
    rel_tol: float | None = None,
    find_upper: bool = False,
    joint: bool = True,
    warmup: float | None = None,
    cooldown: float | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    progress: bool = True,
    max_batch_cells: int = MAX_BATCH_CELLS,
    look_ahead: int | None = None,
    fresh: bool = False,
) -> Goodput:
    """The highest request rate that meets the SLOs, for every configuration of an experiment; writes the tables.

    Parameters
    ----------
    config
        A TOML file, the name of a ready experiment, tables as a dict, or an `Experiment`. Its request rates are not
        used, and need not be there.
    slo
        The limits, these and no others: an `SLO` in seconds, or a dict of keys of [slo] in milliseconds, such as
        `{"ttft_ms": 200}`. None: those of the experiment.
    attainment, lo, hi, iters, rel_tol, find_upper, joint
        See `GoodputOptions`; `lo` and `hi` are in requests/s.
    warmup, cooldown
        Shares of the requests, the first and the last to arrive, that are not counted. None: those of the experiment.
    workers, out, trace, settings, progress
        As for `run_grid`.
    max_batch_cells
        Most rates that are simulated together. It changes speed and memory, never an answer.
    look_ahead
        Most rates of one configuration in a round. It changes speed and the probes that are not asked for, never an
        answer. None: as many as are worth it.
    fresh
        Replace what the directory holds, be it of other settings.

    Returns
    -------
    Goodput
        Its `df` has one row a configuration; one whose simulation failed has status "failed".

    Raises
    ------
    ConfigError
        Before anything runs, when something is wrong.
    SearchInterrupted
        A KeyboardInterrupt, on Ctrl-C, after the finished rounds were written.
    SearchStopped
        When the tables cannot be written, or no worker can start.
    """
    options = GoodputOptions(
        attainment=attainment, lo=lo, hi=hi, iters=iters, rel_tol=rel_tol, find_upper=find_upper, joint=joint
    )
    plan = searched_plan(config, options, slo=slo, warmup=warmup, cooldown=cooldown, trace=trace, settings=settings)
    return search_plan(
        plan,
        options,
        workers=workers,
        out=out,
        progress=progress,
        max_batch_cells=max_batch_cells,
        look_ahead=look_ahead,
        fresh=fresh,
    )


def searched_plan(
    config: str | Path | Mapping[str, Any] | Experiment,
    options: GoodputOptions,
    *,
    slo: SLO | Mapping[str, float | None] | None = None,
    warmup: float | None = None,
    cooldown: float | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
) -> Plan:
    """The configurations of an experiment: its cells without their rates, all at the lower end of the search."""
    plan = expand(
        searched_experiment(config, options, slo=slo, warmup=warmup, cooldown=cooldown, trace=trace, settings=settings)
    )
    if any(all(cell.slo[f"{name}_slo_s"] is None for name in SLOS) for cell in plan.cells):
        raise ConfigError([f"{plan.experiment.source}: {NO_SLO}"])
    return plan


def searched_experiment(
    config: str | Path | Mapping[str, Any] | Experiment,
    options: GoodputOptions,
    *,
    slo: SLO | Mapping[str, float | None] | None = None,
    warmup: float | None = None,
    cooldown: float | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    further: Mapping[str, tuple[Any, str]] | None = None,
) -> Experiment:
    """An experiment with the options of a search, and those in `further`, as `load_experiment` takes them."""
    for text in settings if isinstance(settings, Mapping | Sequence) and not isinstance(settings, str) else ():
        if str(text).partition("=")[0].strip() in ("request_rate_rps", "workload.request_rate_rps"):
            raise ConfigError([f"settings {text!r}: has no effect: the rate is searched for, between lo and hi"])
    values: dict[str, tuple[Any, str]] = {
        "workload.request_rate_rps": (float(options.lo), "lo"),
        "output.requests": (None, "goodput"),
        "output.steps": (None, "goodput"),
        "output.instances": (None, "goodput"),
    }
    if slo is not None:
        try:
            limits = slo_table(slo)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        if all(limit is None for limit in limits.values()):
            raise ConfigError([NO_SLO])
        values |= {f"slo.{key}": (limit, "slo") for key, limit in limits.items()}
    values |= {
        f"slo.{key}": (share, key) for key, share in (("warmup", warmup), ("cooldown", cooldown)) if share is not None
    }
    return load_experiment(config, trace=trace, settings=settings, options={**values, **(further or {})})


def search_plan(
    plan: Plan,
    options: GoodputOptions,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    max_batch_cells: int = MAX_BATCH_CELLS,
    look_ahead: int | None = None,
    fresh: bool = False,
) -> Goodput:
    """`find_goodput` for a plan that `searched_plan` has made."""
    max_batch_cells = checks.whole("max_batch_cells", max_batch_cells, 1)
    look_ahead = look_ahead if look_ahead is None else checks.whole("look_ahead", look_ahead, 1)
    checks.whether("progress", progress)
    directory = prepare_directory(output_directory(plan.experiment, out), GOODPUT_FILES, ())
    slo = plan.experiment.slo
    criterion = EarlyStopCriterion(options.attainment, slo.warmup, slo.cooldown, options.joint)
    searches = Searches(plan, options.start(), criterion, options.tables())
    with Hold(directory, "search") as hold:
        refuse_other(directory, "search", searches.config(), fresh=checks.whether("fresh", fresh))
        if progress:
            for note in hold.notes:
                say(note)
        return _search(searches, options, directory, workers, progress, max_batch_cells, look_ahead)


def _search(
    searches: Searches,
    options: GoodputOptions,
    directory: Path,
    workers: int | None,
    progress: bool,
    max_batch_cells: int,
    look_ahead: int | None,
) -> Goodput:
    """Search, round by round, in a directory that is held."""
    plan = searches.plan
    wanted = searches.wanted(max_batch_cells, look_ahead)
    first = searches.probe_plan(wanted)
    workers = choose_workers(first, first.feasible, workers)
    backend = Processes(workers) if workers > 1 else InProcess()
    started = time.perf_counter()
    stopped: KeyboardInterrupt | BackendLost | None = None
    rounds: list[dict[str, Any]] = []
    expected_s = estimate(first, make_batches(first, first.feasible, workers, max_batch_cells), workers).wall_s
    decisions = searches.decisions
    probes_file, goodput_file = (directory / table_file(table) for table in ("probes", "goodput"))
    holds_others = os.path.lexists(goodput_file)  # an earlier search, which stays whole until this one has an answer
    with SearchProgress(decisions, 0, 4 * expected_s) if progress else Silent() as shown:
        while wanted:
            probes, begun = searches.probe_plan(wanted), time.perf_counter()
            shown.note = f"round {len(rounds) + 1}: {len(wanted):,} rates"
            batches = make_batches(probes, range(len(wanted)), workers, max_batch_cells)
            outcomes: list[TaskResult] = []
            stopping = searches.stopping(wanted)
            tasks = (make_task(probes, batch, set(), set(), stopping=stopping) for batch in batches)
            try:
                with closing(iter_outcomes(tasks, backend)) as ended:  # closing it stops the workers
                    outcomes.extend(ended)
            except (KeyboardInterrupt, BackendLost) as error:
                stopped = error  # a round counts whole: which of its batches had ended is chance
                break
            before = searches.decisions
            searches.add(wanted, outcomes, len(rounds) + 1)
            cpu_s = sum(outcome.cpu_s for outcome in outcomes)
            wall_s = time.perf_counter() - begun
            rounds.append({"probes": len(wanted), "wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)})
            if not holds_others:
                with writing(directory):
                    write_table(probes_file, searches.probes_table())
            made, elapsed = decisions - searches.decisions, time.perf_counter() - started
            shown.advance(before - searches.decisions, 0, elapsed * decisions / max(made, 1))
            wanted = searches.wanted(max_batch_cells, look_ahead)
    found = Goodput(
        plan.experiment,
        options,
        directory,
        searches.counts(),
        searches.warnings(),
        len(rounds),
        sum(round_["probes"] for round_ in rounds),
        time.perf_counter() - started,
    )
    if rounds or stopped is None:  # a search stopped in its first round leaves an earlier one in place
        facts = {
            "experiment": searches.config(),
            "counts": dict(found.counts),
            **environment(),
            "workers": workers,
            "wall_s": round(found.wall_s, 3),
            "rounds": rounds,
        }
        files: dict[Path, Callable[[BinaryIO], object]] = {
            probes_file: lambda file: write_parquet(file, searches.probes_table()),
            goodput_file: lambda file: write_parquet(file, searches.goodput_table()),
            directory / GOODPUT_FACTS: lambda file: file.write(as_json(facts)),
        }
        with writing(directory):
            write_together(files, key=goodput_file)
    kept = f"the rates found so far are in {directory}" if rounds else "nothing was written"
    if isinstance(stopped, BackendLost):
        raise SearchStopped(f"stopped: {stopped}; {len(rounds)} rounds ended; {kept}", alone=True)
    if stopped is not None:
        raise SearchInterrupted(found, f"{len(rounds)} rounds ended; {kept}")
    return found


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Says what cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise SearchStopped(
            f"stopped: {error.filename or directory}: {error.strerror}; tables that were written before are kept: put "
            "that right, and start the search again"
        ) from None


class SearchProgress(Progress):
    """Progress of a search: which round, and how many of the decisions have been made that all searches need."""

    unit = "decisions"
