"""`servesweep report`: a run as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..escapes import one_line
from ..streams import tell
from .options import RUN_HELP, WHERE_HELP, a_share, add_command, asked_of, load_run, writing

if TYPE_CHECKING:
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        _report,
        "write a run as one HTML file with interactive plots and tables",
        "Write one HTML file that holds a run: verdict, filters, interactive plots, tables, how to reproduce it. It "
        "needs no network and no other file.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--where", metavar="CONDITIONS", help=WHERE_HELP)
    parser.add_argument(
        "--target", metavar="SHARE", type=a_share, default=0.9, help="attainment to keep (default: 0.9)"
    )
    parser.add_argument("--out", metavar="FILE", help="default: report.html in the run's directory")


def _report(options: argparse.Namespace) -> int:
    from ..analysis.selection import find_run
    from ..reports.html import read_facts, report_html
    from ..tables.atomic_write import write_named, write_whole

    df = load_run(options.run, where=options.where)
    directory = find_run(options.run)
    with asked_of(options.run):
        text = report_html(df, read_facts(directory), options.target)
    path, write = (directory / "report.html", write_whole) if options.out is None else (Path(options.out), write_named)
    with writing(path):
        write(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))
    tell(one_line(path))
    return 0
