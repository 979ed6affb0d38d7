"""`servesweep placement`: how to split a number of GPUs between prefill and decode instances."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..streams import printing, say, tell
from .options import EXIT_FAILED_CELLS, add_command, at_least_one, print_json, slo_limits

if TYPE_CHECKING:
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "placement",
        _placement,
        "split a number of GPUs between prefill and decode instances",
        "Split a number of GPUs between prefill and decode instances, as DistServe's placement search does: the best "
        "parallelism of each role on its own, then the numbers of instances, then the whole system under every SLO. "
        "Writes placement.parquet, a row a candidate, and the tables of each search in a folder of its own.",
    )
    parser.epilog = (
        "example: servesweep placement placement-chat --exhaustive. Exit codes: 0 done, 1 unexpected, 2 wrong usage "
        "or experiment, or no placement, 3 some candidates failed, 130 interrupted."
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="a TOML file, or the name of a ready experiment; its tp and pp are searched, its rates and numbers of "
        "instances are not used",
    )
    parser.add_argument(
        "--n-gpus", metavar="N", type=at_least_one, help="GPUs to split (default: n_gpus of the experiment)"
    )
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="compare with every split and pair of parallelisms, and with colocated systems",
    )
    parser.add_argument(
        "--slo",
        metavar="NAME:MS",
        nargs="+",
        action="extend",
        help="limits in milliseconds, as in TOML, on ttft and tpot, and also e2e, itl_max, these and no others "
        "(default: [slo] of the experiment)",
    )
    parser.add_argument(
        "--attainment", metavar="SHARE", type=float, default=0.9, help="share of the requests that must meet them (0.9)"
    )
    parser.add_argument("--lo", metavar="RPS", type=float, default=0.05, help="lowest request rate (0.05)")
    parser.add_argument(
        "--hi",
        metavar="RPS",
        type=float,
        default=64.0,
        help="highest request rate at first; doubled until it fails (64)",
    )
    parser.add_argument(
        "--rel-tol", metavar="TOL", type=float, default=0.01, help="halve until hi / lo - 1 is at most this (0.01)"
    )
    for name, which in (("warmup", "first"), ("cooldown", "last")):
        parser.add_argument(
            f"--{name}",
            metavar="SHARE",
            type=float,
            help=f"share of the requests, the {which} to arrive, that are not counted",
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
        help="replace one key of the experiment, such as tp=[2,4]; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout instead of text")
    parser.add_argument("--quiet", action="store_true", help="print nothing on stderr but errors")


def _placement(options: argparse.Namespace) -> int:
    from ..analysis.verdicts import format_step_times, step_times_sources
    from ..goodput.placement import find_placement
    from ..reports.placement_tables import placement_json, print_placement

    found = find_placement(
        options.config,
        n_gpus=options.n_gpus,
        exhaustive=options.exhaustive,
        slo=slo_limits(options.slo),
        attainment=options.attainment,
        lo=options.lo,
        hi=options.hi,
        rel_tol=options.rel_tol,
        warmup=options.warmup,
        cooldown=options.cooldown,
        workers=options.workers,
        out=options.out,
        trace=options.trace,
        settings=options.set,
        progress=not options.quiet,
        fresh=options.fresh,
    )
    with printing(f"the tables are in {found.directory}"):
        if options.json:
            print_json(placement_json(found))
        else:
            print_placement(found)
            tell(format_step_times(step_times_sources(found.df)))
            tell(found.verdict)
            for warning in found.warnings:
                tell(f"Warning: {warning}")
    if not options.quiet:
        say(f"{len(found.df):,} candidates, {found.wall_s:.1f} s; tables in {found.directory}")
    if found.failed:
        say(f"{found.failed:,} failed: see error in placement.parquet")
        return EXIT_FAILED_CELLS
    return 0
