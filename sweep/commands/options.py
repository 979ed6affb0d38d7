"""What the commands share: how one is registered, how a run is named, where text and JSON go. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..escapes import in_json
from ..streams import printing, say

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
    parser.set_defaults(command=run, parser=parser)
    return parser


def load_run(name: str, table: TableName = "cells", where: str | None = None) -> pd.DataFrame:
    """A table of the run named on the command line, less the rows that `where` leaves out; ConfigError if wrong.

    Says on stderr when something newer was begun there, and has not ended.
    """
    from ..analysis.selection import find_run, rows_where
    from ..tables.reading import load

    with asked_of(name, table):
        directory = find_run(name)
        frame = load(directory, table)
        chosen = frame if where is None else rows_where(frame, where)
    tell_of_newer_work(directory, table)
    return chosen


def tell_of_newer_work(directory: Path, table: TableName = "cells") -> None:
    """Say on stderr that a table is older than what has begun, and not ended, in its directory."""
    from ..tables.unfinished import newer_work

    note = newer_work(directory, table)
    if note:
        say(f"Warning: {note}")


@contextmanager
def asked_of(run: str, table: str = "cells") -> Iterator[None]:
    """ConfigError for what is asked of a table that it does not have, be it wrong to ask or wrong with the table."""
    try:
        yield
    except (KeyError, ValueError) as error:
        from ..analysis.selection import BadTable, find_run
        from ..experiment.tables import ConfigError
        from ..tables.filenames import table_file
        from ..tables.schemas import SCHEMAS

        if isinstance(error, ConfigError):
            raise
        text = str(error)
        if isinstance(error, KeyError):
            known = {column for schema in SCHEMAS.values() for column in schema.names}
            column = next((word for word in re.findall(r"\w+", text) if word in known), None)
            if column is None:
                raise
            text = f"the table has no column {column}"
        if isinstance(error, KeyError | BadTable):
            text = f"{find_run(run) / table_file(table)}: {text}"
        raise ConfigError([text]) from None


@contextmanager
def writing(what: str | Path) -> Iterator[None]:
    """ConfigError, with the name of the file, or of `what`, for what cannot be written."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        from ..experiment.tables import ConfigError

        reason = error.strerror if isinstance(error, OSError) else f"is no name here: {error}"
        name = getattr(error, "filename", None) or what
        raise ConfigError([f"{name}: cannot be written: {reason}"]) from None


@contextmanager
def folder_for(out: str | None, directory: Path, name: str) -> Iterator[Path]:
    """The folder that --out names, or by default one in a directory of results; ConfigError for what cannot be written
    there."""
    from ..tables.atomic_write import own_folder

    with writing(directory / name if out is None else out):
        if out is None:
            yield own_folder(directory, name)
        else:
            Path(out).mkdir(parents=True, exist_ok=True)
            yield Path(out)


def workload_texts(plan: Plan) -> list[str]:
    """The descriptions of the workloads of a plan."""
    return list(dict.fromkeys(cell.traffic.description for cell in plan.cells))


def format_workloads(texts: Sequence[str], number: int | None = None) -> str:
    """The first workload's description, and how many others there are; `number` in all, where not all have a text."""
    more = (len(texts) if number is None else number) - 1
    return texts[0] + (f"\nand {more:,} more like it" if more else "")


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
    for given in texts:
        name, _, text = given.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not text and name not in SLOS:
            name = re.split(r"[^a-z_]", name)[0]
            form = f"{name if name in SLOS else SLOS[0]}:200"
            problems.append(f"slo {given!r}: must be NAME:MS, as in {form}")
        elif name not in SLOS:
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
    """JSON on stdout; what is not finite is null."""
    import json

    content = _finite(content)
    with printing():
        text = in_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
        try:
            text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            text = json.dumps(content, indent=2, allow_nan=False)
        print(text)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
