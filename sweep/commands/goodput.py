"""`servesweep goodput`: the highest request rate at which each configuration of an experiment meets the SLOs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..streams import printing, say, tell
from .options import (
    EXIT_FAILED_CELLS,
    add_command,
    at_least_one,
    format_workloads,
    print_json,
    slo_limits,
    workload_texts,
)

if TYPE_CHECKING:
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "goodput",
        _goodput,
        "find the highest request rate at which each configuration meets the SLOs",
        "Find the highest request rate at which the requests of each configuration meet the SLOs, for all of an "
        "experiment at once. Writes goodput.parquet, a row a configuration, and probes.parquet, a row a rate.",
    )
    parser.epilog = (
        "example: servesweep goodput quickstart --slo ttft:200 tpot:50 --attainment 0.9. Exit codes: 0 done, "
        "1 unexpected, 2 wrong usage or experiment, 3 some configurations failed, 130 interrupted."
    )
    parser.add_argument(
        "config", metavar="CONFIG", help="a TOML file, or the name of a ready experiment; its rates are not used"
    )
    parser.add_argument(
        "--slo",
        metavar="NAME:MS",
        nargs="+",
        action="extend",
        help="limits in milliseconds, as in TOML, on ttft, tpot, e2e, itl_max, these and no others (default: [slo] of "
        "the experiment)",
    )
    parser.add_argument(
        "--attainment", metavar="SHARE", type=float, default=0.9, help="share of the requests that must meet them (0.9)"
    )
    parser.add_argument(
        "--joint",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether a request must meet every SLO (default), or each SLO be met by that share on its own",
    )
    parser.add_argument("--lo", metavar="RPS", type=float, default=0.05, help="lowest request rate (0.05)")
    parser.add_argument("--hi", metavar="RPS", type=float, default=64.0, help="highest request rate (64)")
    parser.add_argument("--find-upper", action="store_true", help="double the highest rate until it fails")
    parser.add_argument("--iters", metavar="N", type=int, help="halvings of the interval (14)")
    parser.add_argument(
        "--rel-tol", metavar="TOL", type=float, help="halve until hi / lo - 1 is at most this, such as 0.01"
    )
    for name, which in (("warmup", "first"), ("cooldown", "last")):
        parser.add_argument(
            f"--{name}",
            metavar="SHARE",
            type=float,
            help=f"share of the requests, the {which} to arrive, that are not counted",
        )
    parser.add_argument(
        "--baseline", metavar="POLICY", help="policy or system that others are compared with (the experiment's first)"
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the tables (default: results/<name>)")
    parser.add_argument("--fresh", action="store_true", help="replace what DIR holds, be it of other settings")
    parser.add_argument("--trace", metavar="FILE", help="serve the requests of this trace instead")
    parser.add_argument(
        "--workers", metavar="N", type=at_least_one, help="processes (default: as many as are worth it)"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="replace one key of the experiment, such as policy=mixed; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout instead of text")
    parser.add_argument("--quiet", action="store_true", help="print nothing on stderr but errors")


def _goodput(options: argparse.Namespace) -> int:
    from ..analysis.verdicts import format_slos, format_step_times, step_times_sources
    from ..goodput.options import GoodputOptions
    from ..goodput.search import search_plan, searched_plan
    from ..reports.frontier import best_goodputs, check_baseline, format_goodputs
    from ..reports.goodput_tables import goodput_json, print_frontier
    from ..runner.directory import check_directory, output_directory
    from ..tables.filenames import GOODPUT_FILES

    asked = GoodputOptions(
        attainment=options.attainment,
        lo=options.lo,
        hi=options.hi,
        iters=options.iters,
        rel_tol=options.rel_tol,
        find_upper=options.find_upper,
        joint=options.joint,
    )
    plan = searched_plan(
        options.config,
        asked,
        slo=slo_limits(options.slo),
        warmup=options.warmup,
        cooldown=options.cooldown,
        trace=options.trace,
        settings=options.set,
    )
    baseline = check_baseline(plan, options.baseline)
    check_directory(output_directory(plan.experiment, options.out), GOODPUT_FILES, ())
    if not options.quiet:
        say(format_workloads(workload_texts(plan)))
    found = search_plan(
        plan, asked, workers=options.workers, out=options.out, progress=not options.quiet, fresh=options.fresh
    )
    best = best_goodputs(found.df)
    with printing(f"the tables are in {found.directory}"):
        if options.json:
            print_json(goodput_json(found, best, baseline))
        else:
            slos = format_slos(found.df) if asked.joint else f"{format_slos(found.df)}, each on its own"
            print_frontier(best, baseline, asked.attainment, slos)
            tell(format_step_times(step_times_sources(found.df)))
            tell("\n".join(format_goodputs(best, baseline, asked.attainment)))
            for warning in found.warnings:
                tell(f"Warning: {warning}")
    if not options.quiet:
        endings = ", ".join(f"{count:,} {name}" for name, count in found.counts.items() if count and name != "cells")
        say(
            f"{found.counts['cells']:,} configurations: {endings}; {found.rounds} rounds, {found.probes:,} rates, "
            f"{found.wall_s:.1f} s; tables in {found.directory}"
        )
    if found.counts["failed"]:
        for reason, count in found.failed["error"].value_counts().head(5).items():
            say(f"{count:,} failed: {str(reason).partition(chr(10))[0]}")
        return EXIT_FAILED_CELLS
    return 0
