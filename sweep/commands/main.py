"""The command `servesweep`. Each command imports what it needs when it runs, so that --help and --version are quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import catalog as command_catalog
from . import compare as command_compare
from . import doctor as command_doctor
from . import export as command_export
from . import goodput as command_goodput
from . import init as command_init
from . import placement as command_placement
from . import plot as command_plot
from . import report as command_report
from . import schema as command_schema
from . import show as command_show
from . import timeline as command_timeline
from . import verify as command_verify
from .options import print_json, say

if TYPE_CHECKING:
    from ..experiment.plan import Plan

EXIT_OK, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_FAILED_CELLS, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def command_line(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 done; 1 unexpected error; 2 wrong usage or experiment; 3 some cells failed; 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        say(str(interrupt) or "interrupted")
        if hasattr(interrupt, "run"):
            say(_resume(arguments))
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has gone, which is no error
        sys.stderr.close()
        return EXIT_OK
    except Exception as error:
        if options.debug:
            raise
        from ..experiment.tables import ConfigError
        from ..goodput.search import SearchStopped
        from ..runner.run import RunStopped

        if isinstance(error, RunStopped):
            say(str(error))
            say(_resume(arguments))
            return EXIT_UNEXPECTED
        if isinstance(error, SearchStopped):
            say(str(error))
            return EXIT_UNEXPECTED
        if isinstance(error, ConfigError):
            say(str(error))
            if len(error.problems) > 1:
                say(f"{len(error.problems)} errors; nothing was run")
            return EXIT_USAGE
        say(f"unexpected error, {type(error).__name__}: {error} (--debug shows where)")
        return EXIT_UNEXPECTED


def _run(options: argparse.Namespace) -> int:
    from ..experiment.plan import expand
    from ..experiment.reader import load_experiment
    from ..experiment.tables import ConfigError
    from ..runner.runner import check_backend

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
    plan = expand(experiment)
    if options.dry_run:
        return _dry_run(plan, options)

    from ..analysis.ranking import (
        best_by_policy,
        best_json,
        print_best,
        rejections,
        slo_words,
        verdict,
        workload_texts,
        workloads_text,
    )
    from ..runner.run import counts_text
    from ..runner.runner import run_plan

    if not options.quiet:
        say(workloads_text(workload_texts(plan)))
    run = run_plan(
        plan,
        workers=options.workers,
        out=options.out,
        progress=not options.quiet,
        max_lanes=_max_lanes(options),
        fresh=options.fresh,
        retry_failed=options.retry_failed,
        backend=options.backend,
        scheduler=options.scheduler,
    )
    best = best_by_policy(run.df)
    line = verdict(best, slo_words(run.df))
    warning = rejections(run.df)
    if options.json:
        print_json(
            {
                "name": experiment.name,
                "directory": str(run.directory),
                **run.counts,
                "wall_s": round(run.wall_s, 2),
                "best": best_json(best),
                "verdict": line,
                "warning": warning,
            }
        )
    else:
        print_best(best)
        print(line)
        if warning is not None:
            print(f"Warning: {warning}")
    if not options.quiet:
        counts = {name: count for name, count in run.counts.items() if name != "ok"}
        say(f"{counts_text(counts)}; {run.wall_s:.1f} s; tables in {run.directory}")
    if run.counts["failed"]:
        reasons = run.failed["error"].value_counts()
        for reason, count in reasons.head(5).items():
            say(f"{count:,} failed: {str(reason).partition(chr(10))[0]}")
        return EXIT_FAILED_CELLS
    return EXIT_OK


def _dry_run(plan: Plan, options: argparse.Namespace) -> int:
    from ..analysis.ranking import plan_json, plan_text
    from ..runner.batches import estimate, make_batches
    from ..runner.directory import check_directory, output_directory
    from ..runner.runner import choose_workers

    check_directory(output_directory(plan.experiment, options.out))
    workers = choose_workers(plan, plan.feasible, options.workers)
    batches = make_batches(plan, plan.feasible, workers, _max_lanes(options))
    facts = plan_json(plan, estimate(plan, batches, workers), workers)
    if options.json:
        print_json(facts)
    else:
        print(plan_text(facts))
    return EXIT_OK


def _max_lanes(options: argparse.Namespace) -> int:
    from ..runner.batches import MAX_LANES

    return MAX_LANES if options.max_lanes is None else int(options.max_lanes)


def _resume(arguments: Sequence[str] | None) -> str:
    """How to go on after a run that stopped: the same command, which finds what is there."""
    import shlex

    given = [word for word in (sys.argv[1:] if arguments is None else arguments) if word != "--fresh"]
    return f"go on with: {shlex.join(['servesweep', *given])}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="servesweep", description="Simulate LLM serving, thousands of configurations at once."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="simulate every cell of an experiment and write its tables",
        description="Simulate every cell of an experiment and write results/<name>/cells.parquet, a row a cell.",
        epilog="Exit codes: 0 done, 1 unexpected, 2 wrong usage or experiment, 3 some cells failed, 130 interrupted.",
    )
    run.add_argument(
        "config", metavar="CONFIG", help="a TOML file, or the name of a ready experiment such as quickstart"
    )
    run.add_argument("--out", metavar="DIR", help="directory of the run (default: results/<name>)")
    run.add_argument("--trace", metavar="FILE", help="serve the requests of this trace instead of the experiment's own")
    run.add_argument(
        "--workers",
        metavar="N",
        type=_at_least_one,
        help="processes (default: one for each core, fewer for small sweeps)",
    )
    run.add_argument(
        "--max-lanes",
        metavar="N",
        type=_at_least_one,
        help="most cells that are simulated together (1000): with fewer, a stopped run keeps more, and takes longer",
    )
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="replace one key of the experiment, such as policy=mixed or slo.ttft_ms=[200,500]; may be repeated",
    )
    for table, what in (("requests", "a row a request"), ("steps", "a row a step"), ("instances", "a row an instance")):
        run.add_argument(
            f"--{table}",
            metavar="CELLS",
            help=f"write {table}.parquet, {what}, for these cells: all, cell ids, or policy=chunked,block_size=16",
        )
    run.add_argument("--fresh", action="store_true", help="start over: forget what DIR holds of earlier runs")
    run.add_argument("--retry-failed", action="store_true", help="run cells again that failed in an earlier run")
    run.add_argument(
        "--backend",
        choices=("local", "dask", "ray"),
        default="local",
        help="where workers are: processes of this machine (default), or those of a cluster",
    )
    run.add_argument("--scheduler", metavar="ADDRESS", help="address of the cluster, such as tcp://10.0.0.1:8786")
    run.add_argument("--dry-run", action="store_true", help="print the plan, and run nothing")
    run.add_argument("--json", action="store_true", help="print JSON on stdout instead of text")
    run.add_argument("--quiet", action="store_true", help="print nothing on stderr but errors")
    run.add_argument("--debug", action="store_true", help="show the traceback of an error")
    run.set_defaults(command=_run)
    command_goodput.add(commands)
    command_placement.add(commands)
    command_show.add(commands)
    command_plot.add(commands)
    command_report.add(commands)
    command_timeline.add(commands)
    command_export.add(commands)
    command_compare.add(commands)
    command_catalog.add(commands)
    command_schema.add(commands)
    command_init.add(commands)
    command_doctor.add(commands)
    command_verify.add(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"servesweep {version('servesweep')}")
        parser.exit()


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return int(text)
