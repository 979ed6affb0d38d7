"""What the commands share: how one is registered, how a run is named, where text and JSON go. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..streams import printing

if TYPE_CHECKING:
    import pandas as pd

    from ..experiment.plan import Plan
    from ..tables.reading import TableName

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EXIT_OK, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_FAILED_CELLS, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

RUN_HELP = "directory of a run, or the name of one under results/"
WHERE_HELP = "only the cells with these values, such as policy=chunked,block_size=16; a column named twice has either"


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, description: str = ""
) -> argparse.ArgumentParser:
    """A new command with the option that all have; `run` returns its exit code."""
    parser = commands.add_parser(name, help=summary, description=description or f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(command=run)
    return parser


def load_run(name: str, table: TableName = "cells", where: str | None = None) -> pd.DataFrame:
    """A table of the run named on the command line, less the rows that `where` leaves out; ConfigError if wrong."""
    from ..analysis.selection import find_run, rows_where
    from ..experiment.tables import ConfigError
    from ..tables.reading import load

    try:
        frame = load(find_run(name), table)
        return frame if where is None else rows_where(frame, where)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def workload_texts(plan: Plan) -> list[str]:
    """The descriptions of the workloads of a plan."""
    return list(dict.fromkeys(cell.traffic.description for cell in plan.cells))


def format_workloads(texts: list[str]) -> str:
    """The first workload's description, and how many others there are."""
    return texts[0] + (f"\nand {len(texts) - 1} more like it" if len(texts) > 1 else "")


def column_list(text: str) -> list[str]:
    """Names in a text such as "policy,ttft_p99_s"."""
    return [part.strip() for part in text.split(",") if part.strip()]


def at_least_one(text: str) -> int:
    """A count, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return int(text)


def a_share(text: str) -> float:
    """A share above 0 and at most 1, for argparse."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a share above 0 and at most 1, such as 0.9")
    return share


def slo_limits(texts: Sequence[str] | None) -> dict[str, float] | None:
    """The keys of [slo], in milliseconds, that texts such as "ttft:200" stand for; ConfigError for what is none."""
    from ..experiment.tables import ConfigError
    from ..measures.slo import SLOS
    from ..messages import nearest

    if texts is None:
        return None
    limits: dict[str, float] = {}
    problems = []
    for name, _, text in (text.partition(":") for text in texts):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in SLOS:
            problems.append(f"slo {name!r}: is unknown{nearest(name, SLOS)}")
        elif f"{name}_ms" in limits:
            problems.append(f"slo {name!r}: is given twice")
        elif not 0 < value < math.inf:
            problems.append(f"slo {name}:{text}: must be a positive number of milliseconds, as in {name}:200")
        limits[f"{name}_ms"] = value
    if problems:
        raise ConfigError(problems)
    return limits


def print_json(content: Any) -> None:
    import json

    with printing():
        print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
