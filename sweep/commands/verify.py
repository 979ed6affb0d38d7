"""`servesweep verify`: some cells of a finished run, simulated again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..streams import tell
from .options import RUN_HELP, add_command, at_least_one, print_json, tell_of_newer_work

if TYPE_CHECKING:
    from .options import Commands

EXIT_DIFFERENT = 3


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        _verify,
        "run some cells of a finished run again, and compare",
        "Simulate k random cells of a finished run again, each alone, and compare every column to the last bit. "
        "Exit code 3 when some differ.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("-k", metavar="N", type=at_least_one, default=20, help="cells to run again (default: 20)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="chooses the cells (default: 0)")
    parser.add_argument("--trace", metavar="FILE", help="the trace that the run served, which its tables do not hold")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _verify(options: argparse.Namespace) -> int:
    from ..analysis.selection import find_run
    from ..experiment.tables import ConfigError
    from ..runner.verify import verify_run

    try:
        directory = find_run(options.run)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    tell_of_newer_work(directory)
    cells, differences = verify_run(directory, options.k, seed=options.seed, trace=options.trace)
    if options.json:
        print_json({"cells": cells, "differences": [vars(difference) for difference in differences]})
    else:
        for difference in differences:
            tell(str(difference))
        wrong = len({difference.cell_id for difference in differences})
        tell(f"{len(cells) - wrong:,} of {len(cells):,} cells came out the same to the last bit")
    return EXIT_DIFFERENT if differences else 0
