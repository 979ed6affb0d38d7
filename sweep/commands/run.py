"""`servesweep run`: simulate every cell of an experiment, or print what that would take."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING, Any

from ..streams import printing, say, tell
from .options import (
    EXIT_FAILED_CELLS,
    EXIT_OK,
    add_command,
    at_least_one,
    format_workloads,
    print_json,
    workload_texts,
)

if TYPE_CHECKING:
    from ..experiment.outlines import Outline
    from ..experiment.tables import Experiment
    from ..runner.batches import Estimate
    from .options import Commands

_REASONS = 100  # in JSON


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "run",
        _run,
        "simulate every cell of an experiment and write its tables",
        "Simulate every cell of an experiment and write results/<name>/cells.parquet, a row a cell.",
    )
    parser.epilog = (
        "Exit codes: 0 done, 1 unexpected, 2 wrong usage or experiment, 3 some cells failed, 130 interrupted."
    )
    parser.add_argument(
        "config", metavar="CONFIG", help="a TOML file, or the name of a ready experiment such as quickstart"
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the run (default: results/<name>)")
    parser.add_argument(
        "--trace", metavar="FILE", help="serve the requests of this trace instead of the experiment's own"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=at_least_one,
        help="processes (default: one for each core, fewer for small sweeps)",
    )
    parser.add_argument(
        "--max-batch-cells",
        metavar="N",
        type=at_least_one,
        help="most cells that are simulated together (1000): with fewer, a stopped run keeps more, and takes longer",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="replace one key of the experiment, such as policy=mixed or slo.ttft_ms=[200,500]; may be repeated",
    )
    for table, what in (("requests", "a row a request"), ("steps", "a row a step"), ("instances", "a row an instance")):
        parser.add_argument(
            f"--{table}",
            metavar="CELLS",
            help=f"write {table}.parquet, {what}, for these cells: all, cell ids, or policy=chunked,block_size=16",
        )
    parser.add_argument("--fresh", action="store_true", help="start over: forget what DIR holds of earlier runs")
    parser.add_argument("--retry-failed", action="store_true", help="run cells again that failed in an earlier run")
    parser.add_argument(
        "--backend",
        choices=("local", "dask", "ray"),
        default="local",
        help="where workers are: processes of this machine (default), or those of a cluster",
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="address of the cluster, such as tcp://10.0.0.1:8786")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and run nothing")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout instead of text")
    parser.add_argument("--quiet", action="store_true", help="print nothing on stderr but errors")


def _run(options: argparse.Namespace) -> int:
    from ..experiment.plan import expand
    from ..experiment.reader import load_experiment
    from ..experiment.tables import ConfigError
    from ..runner.execution import check_backend

    try:
        check_backend(options.backend, options.scheduler, options.workers)
    except ValueError as error:
        raise ConfigError([f"--{error}"]) from None
    experiment = load_experiment(
        options.config,
        trace=options.trace,
        settings=options.set,
        requests=options.requests,
        steps=options.steps,
        instances=options.instances,
    )
    if options.dry_run:
        return _dry_run(experiment, options)
    plan = expand(experiment)

    from ..analysis.ranking import best_by_policy, best_json
    from ..analysis.verdicts import (
        format_rejections,
        format_slos,
        format_step_times,
        format_verdict,
        step_times_sources,
    )
    from ..reports.sweep_tables import print_best
    from ..runner.directory import check_directory, output_directory
    from ..runner.run import counts_text
    from ..runner.runner import run_plan

    check_directory(output_directory(experiment, options.out))
    if not options.quiet:
        say(format_workloads(workload_texts(plan)))
    run = run_plan(
        plan,
        workers=options.workers,
        out=options.out,
        progress=not options.quiet,
        max_batch_cells=_max_batch_cells(options),
        fresh=options.fresh,
        retry_failed=options.retry_failed,
        backend=options.backend,
        scheduler=options.scheduler,
    )
    best = best_by_policy(run.df)
    line = format_verdict(best, format_slos(run.df))
    warning, sources = format_rejections(run.df), step_times_sources(run.df)
    with printing(f"the tables are in {run.directory}"):
        if options.json:
            print_json(
                {
                    "name": experiment.name,
                    "directory": str(run.directory),
                    **run.counts,
                    "wall_s": round(run.wall_s, 2),
                    "best": best_json(best),
                    "verdict": line,
                    "step_times": sources,
                    "warning": warning,
                }
            )
        else:
            print_best(best)
            tell(format_step_times(sources))
            tell(line)
            if warning is not None:
                tell(f"Warning: {warning}")
    if not options.quiet:
        counts = {name: count for name, count in run.counts.items() if name != "ok"}
        say(f"{counts_text(counts)}; {run.wall_s:.1f} s; tables in {run.directory}")
    if run.counts["failed"]:
        reasons = run.failed["error"].value_counts()
        for reason, count in reasons.head(5).items():
            say(f"{count:,} failed: {str(reason).partition(chr(10))[0]}")
        return EXIT_FAILED_CELLS
    return EXIT_OK


def _dry_run(experiment: Experiment, options: argparse.Namespace) -> int:
    from ..experiment.outlines import outline
    from ..runner.batches import estimate_outline
    from ..runner.directory import check_directory, output_directory
    from ..runner.execution import workers_of_outline

    found = outline(experiment)
    check_directory(output_directory(experiment, options.out))
    workers = workers_of_outline(found, options.workers)
    facts = plan_json(found, estimate_outline(found, workers, _max_batch_cells(options)), workers)
    if options.json:
        print_json(facts)
    else:
        tell(format_plan(facts))
    return EXIT_OK


def plan_json(found: Outline, estimate: Estimate, workers: int) -> dict[str, Any]:
    """What a run would do, as plain data."""
    from ..experiment.sizes import axes

    return {
        "name": found.experiment.name,
        "axes": {key: list(values) for key, values in axes(found.experiment).items()},
        "workloads": list(found.workloads),
        "n_workloads": found.n_workloads,
        "cells": found.cells,
        "feasible": found.feasible,
        "is_exact": found.is_exact,
        "infeasible": dict(itertools.islice(found.infeasible.items(), _REASONS)),
        "step_times": list(found.step_times),
        "requests": found.simulated_requests,
        "workers": workers,
        "estimated_cpu_s": round(estimate.cpu_s, 1),
        "estimated_wall_s": round(estimate.wall_s, 1),
        "estimated_memory_mb": round(estimate.memory_bytes / 1e6),
    }


def format_plan(facts: dict[str, Any]) -> str:
    """`plan_json` for people."""
    from ..analysis.selection import short_text
    from ..analysis.verdicts import format_step_times
    from ..messages import MOST_PROBLEMS

    about = "" if facts["is_exact"] else "about "
    lines = [f"{facts['name']}: {facts['cells']:,} cells, {about}{facts['feasible']:,} of them feasible"]
    for name, values in facts["axes"].items():
        shown = [short_text(value) for value in (values if len(values) <= 12 else [*values[:6], *values[-3:]])]
        if len(values) > 12:
            shown.insert(6, "...")
        lines.append(f"  {name} ({len(values):,}): {', '.join(shown)}")
    reasons = list(facts["infeasible"].items())[:MOST_PROBLEMS]
    lines += [f"  infeasible, {about}{count:,} cells: {reason}" for reason, count in reasons]
    rest = facts["cells"] - facts["feasible"] - sum(count for _, count in reasons)
    if rest:
        lines.append(f"  infeasible, {about}{rest:,} cells: for other reasons")
    lines += [f"  {line}" for line in format_workloads(facts["workloads"], facts["n_workloads"]).splitlines()]
    lines += [f"  {format_step_times(facts['step_times'])}"] if facts["step_times"] else []
    lines.append(
        f"Estimate: {facts['requests']:,} requests, {facts['estimated_cpu_s']:g} s of CPU, "
        f"{facts['estimated_wall_s']:g} s with {facts['workers']} worker{'s' if facts['workers'] > 1 else ''}, "
        f"{facts['estimated_memory_mb']:,} MB of memory"
    )
    return "\n".join(lines)


def _max_batch_cells(options: argparse.Namespace) -> int:
    from ..runner.batches import MAX_BATCH_CELLS

    return MAX_BATCH_CELLS if options.max_batch_cells is None else int(options.max_batch_cells)
