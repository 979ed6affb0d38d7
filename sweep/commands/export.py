"""`servesweep export`: a table of a run as CSV, JSON or Parquet, for other tools."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..escapes import in_json, one_line
from ..streams import is_terminal, print_bytes
from .options import RUN_HELP, WHERE_HELP, add_command, column_list, load_run, writing

if TYPE_CHECKING:
    import pandas as pd

    from .options import Commands

FORMATS = ("csv", "json", "jsonl", "parquet")
_IN_CSV = ("\t", "\n")  # quotes hold them, but not a lone "\r"
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\\r")  # how text begins that a spreadsheet may run


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
    parser.add_argument(
        "--neutralise-formulas",
        action="store_true",
        help="CSV for a spreadsheet, from somebody you do not trust: an apostrophe before text that begins with "
        "= + - @, a tab or a line end",
    )


def _export(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.tables import ConfigError
    from ..tables.atomic_write import write_named

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
    if options.neutralise_formulas and form != "csv":
        raise ConfigError([f"--neutralise-formulas: has no effect on {form}, in which no program sees a formula"])
    content = encoded(df, form, neutralise=options.neutralise_formulas)
    if options.out is None:
        print_bytes(content)
        return 0
    with writing(options.out):
        write_named(options.out, lambda file: file.write(content))
    return 0


def _format_of(path: str | None) -> str:
    ending = "" if path is None else path.rpartition(".")[2].lower()
    return ending if ending in FORMATS else "csv"


def encoded(df: pd.DataFrame, form: str, *, neutralise: bool = False) -> bytes:
    """A table as bytes, every digit of a number kept; Parquet has text where pandas has categories.

    neutralise  in CSV, an apostrophe before text that a spreadsheet would take for a formula
    """
    if form == "csv":
        return as_csv(df, neutralise=neutralise)
    if form in ("json", "jsonl"):
        columns = [_or_none(df[name]) for name in df.columns]
        rows = [
            in_json(json.dumps(dict(zip(df.columns, row, strict=True)), ensure_ascii=False, allow_nan=False))
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


def as_csv(df: pd.DataFrame, *, neutralise: bool = False) -> bytes:
    """A table as CSV in UTF-8; in texts and names, escapes for what would move the cursor of a terminal.

    neutralise  an apostrophe before text that a spreadsheet would take for a formula
    """
    import pandas as pd

    def shown(values: Iterable[Any]) -> list[Any]:
        return [_csv_text(value, neutralise) if isinstance(value, str) else value for value in values]

    columns = {}
    for place, name in enumerate(df.columns):
        column = df[name]
        if column.dtype == "category":  # few values, however many rows
            texts = pd.Series([*shown(column.cat.categories), None], dtype=object)  # the last stands for none
            column = pd.Series(texts.to_numpy()[column.cat.codes], df.index, dtype=object)
        elif column.dtype.kind not in "biuf":
            column = pd.Series(shown(column.tolist()), df.index, dtype=object)
        columns[place] = column
    plain = pd.DataFrame(columns, index=df.index)
    plain.columns = shown(df.columns)
    text: str = plain.to_csv(index=False, lineterminator="\n")
    return text.encode("utf-8", "backslashreplace")


def _csv_text(text: str, neutralise: bool) -> str:
    if not text.isprintable():
        text = "".join(part if part in _IN_CSV else one_line(part) for part in re.split("([\t\n])", text))
    return f"'{text}" if neutralise and text.startswith(_FORMULA) else text


def _or_none(column: pd.Series[Any]) -> list[Any]:
    """Values as JSON writes them: None for what is missing or not finite."""
    import numpy as np

    there = column.notna()
    if column.dtype.kind == "f":
        there &= np.isfinite(column)
    found: list[Any] = column.astype(object).where(there, None).tolist()
    return found
