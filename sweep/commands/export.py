"""`servesweep export`: a table of a run as CSV, JSON or Parquet, for other tools."""

from __future__ import annotations

import argparse
import io
import json
import sys
from typing import TYPE_CHECKING

from ..streams import is_terminal, print_bytes
from .options import RUN_HELP, WHERE_HELP, add_command, column_list, load_run

if TYPE_CHECKING:
    import pandas as pd

    from .options import Commands

FORMATS = ("csv", "json", "jsonl", "parquet")


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "export",
        _export,
        "write a table of a run as CSV, JSON or Parquet",
        "Write one tidy table of a run, a row a cell, to stdout or a file. Missing values are empty in CSV and null "
        "elsewhere; times are seconds.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of --out, else csv")
    parser.add_argument(
        "--table",
        metavar="NAME",
        default="cells",
        help="cells (default), requests, steps, instances, timings, goodput, probes or placement",
    )
    parser.add_argument("--columns", metavar="NAMES", type=column_list, help="only these, in this order: a,b,c")
    parser.add_argument("--where", metavar="CONDITIONS", help=WHERE_HELP)
    parser.add_argument("--out", metavar="FILE", help="default: stdout")


def _export(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.tables import ConfigError

    form = options.format or _format_of(options.out)
    if form == "parquet" and options.out is None and is_terminal(sys.stdout):
        raise ConfigError(["--format parquet: is no text for a terminal; give --out FILE"])
    df = load_run(options.run, options.table, options.where)
    if options.columns:
        try:
            check_names(options.columns, list(map(str, df.columns)))
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        df = df[list(dict.fromkeys(options.columns))]
    content = encoded(df, form)
    if options.out is None:
        print_bytes(content)
        return 0
    try:
        with open(options.out, "wb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigError([f"--out {options.out}: cannot be written: {error.strerror}"]) from None
    return 0


def _format_of(path: str | None) -> str:
    ending = "" if path is None else path.rpartition(".")[2].lower()
    return ending if ending in FORMATS else "csv"


def encoded(df: pd.DataFrame, form: str) -> bytes:
    """A table as bytes, every digit of a number kept; Parquet has text where pandas has categories."""
    if form == "csv":
        text: str = df.to_csv(index=False, lineterminator="\n")
        return text.encode()
    if form in ("json", "jsonl"):
        columns = [df[name].astype(object).where(df[name].notna(), None).tolist() for name in df.columns]
        rows = [
            json.dumps(dict(zip(df.columns, row, strict=True)), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        text = "[\n" + ",\n".join(rows) + "\n]\n" if form == "json" else "".join(f"{row}\n" for row in rows)
        return text.encode()
    plain = df.copy()
    for name in plain.columns:
        if plain[name].dtype == "category":
            plain[name] = plain[name].astype(object)
    plain.attrs = {}
    buffer = io.BytesIO()
    plain.to_parquet(buffer, index=False)
    return buffer.getvalue()
