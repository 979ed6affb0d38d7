"""`servesweep report`: a run as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .options import RUN_HELP, WHERE_HELP, a_share, add_command, load_run

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
    from ..experiment.tables import ConfigError
    from ..reports.html import read_facts, report_html

    df = load_run(options.run, where=options.where)
    directory = find_run(options.run)
    path = directory / "report.html" if options.out is None else Path(options.out)
    try:
        path.write_text(report_html(df, read_facts(directory), options.target), encoding="utf-8")
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written: {error.strerror}"]) from None
    print(path)
    return 0
