"""Speed and memory of the engine, case by case, beside the scalar reference scheduler.

Every case is first compared with the reference, some of its systems in full. Times are CPU times of this process; a
ratio is the median over the repeats, each with the reference before and after the engine. Traffic has chat lengths,
llama-3.1-8b on h100-sxm; "spread" is 2 to 60 requests/s an instance, light, heavy and overloaded are 0.1 to 0.2, 0.85
to 0.95 and 2 to 4 times what an instance can do. Of groups of 4 instances there are a fifth as many as of single ones.
Without --quick or --full a run takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from .cases import LOADS, chosen
from .measure import measure
from .tables import comparison, heading, line, shares


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="50 lanes only: about a minute")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="every size and load: hours")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases in whose name it is found")
    parser.add_argument("--lanes", type=_numbers, metavar="N,...", help="instances a batch, in place of the usual")
    parser.add_argument("--requests", type=_numbers, metavar="N,...", help="requests of an instance")
    parser.add_argument("--load", type=lambda text: text.split(","), metavar="NAME,...", help="spread, light, ...")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="timings of a case")
    parser.add_argument("--no-memory", action="store_true", help="leave out bytes/req: tracing it is slow")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table as Parquet")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="print new / old figures; FILE as of --out")
    args = parser.parse_args()
    try:
        re.compile(args.only)
    except re.error as error:
        parser.error(f"--only {args.only}: {error}")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: must be at least 1")
    if unknown := set(args.load or []) - {"spread", *LOADS}:
        parser.error(f"--load {sorted(unknown)[0]}: must be one of spread, {', '.join(LOADS)}")
    size_name = args.size or "usual"
    cases = chosen(size_name, args.only, args.lanes, args.requests, args.load)
    if not cases:
        parser.error(f"--only {args.only}: found in the name of no case")
    reference_requests = 5_000 if size_name == "quick" else 14_000
    old = None
    if args.compare is not None:
        with open(args.compare, "rb") as file:  # pandas would take the name for another one's, or an address
            old = pd.read_parquet(file)
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}; medians of {args.repeats}"
    )
    print(heading(), flush=True)
    rows = []
    for case in cases:
        rows.append(measure(case, args.repeats, reference_requests, memory=not args.no_memory))
        print(line(rows[-1]), flush=True)
    print("\n" + shares(rows))
    table = pd.DataFrame(rows)
    if args.out is not None:
        with open(args.out, "wb") as file:
            table.to_parquet(file, index=False)
    if old is not None:
        print("\n" + comparison(table, old))
    return 0


def _numbers(text: str) -> list[int]:
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be whole numbers, at least 1")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
