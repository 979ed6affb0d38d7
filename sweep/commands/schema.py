"""`servesweep schema`: what each column of the tables means."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..streams import tell
from .options import add_command, print_json

if TYPE_CHECKING:
    from .options import Commands

_ROW = {
    "goodput": "configuration",
    "probes": "rate",
    "placement": "candidate",
}  # what a row is, where the name does not tell


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "schema",
        _schema,
        "explain the columns of the tables",
        "Print the type, unit and definition, with its formula, of the columns of a table.",
    )
    parser.add_argument("columns", metavar="COLUMN", nargs="*", help="only these (default: all)")
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="one of those that --table of export names (default: cells, and any with COLUMN)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _schema(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.tables import ConfigError
    from ..tables.schemas import SCHEMAS, column_facts

    try:
        if options.table is not None:
            check_names([options.table], list(SCHEMAS), "table")
        tables = [options.table] if options.table else list(SCHEMAS) if options.columns else ["cells"]
        facts = {table: column_facts(SCHEMAS[table]) for table in tables}
        check_names(options.columns, list(dict.fromkeys(name for columns in facts.values() for name in columns)))
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if options.columns:
        facts = {
            table: {name: columns[name] for name in options.columns if name in columns}
            for table, columns in facts.items()
        }
    facts = {table: columns for table, columns in facts.items() if columns}
    if options.json:
        print_json(facts)
        return 0
    for place, (table, columns) in enumerate(facts.items()):
        tell(f"{'' if not place else chr(10)}{table}: a row a {_ROW.get(table, table.removesuffix('s'))}")
        for name, about in columns.items():
            unit = f", {about['unit']}" if about["unit"] else ""
            tell(f"  {name} ({about['type']}{unit})\n      {about['definition']}")
    return 0
