"""`servesweep compare`: two runs, cell by cell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..escapes import one_line
from ..streams import tell
from .options import WHERE_HELP, add_command, asked_of, at_least_one, column_list, load_run, print_json

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "compare",
        _compare,
        "compare two runs cell by cell",
        "Join two runs on what was swept in either, and say how the measures of the second differ from the first's.",
    )
    parser.add_argument("run_a", metavar="RUN_A", help="directory or name of a run: what is compared with")
    parser.add_argument("run_b", metavar="RUN_B", help="directory or name of a run: what is new")
    parser.add_argument("--columns", metavar="NAMES", type=column_list, help="measures to compare, a,b,c")
    parser.add_argument("--where", metavar="CONDITIONS", help=WHERE_HELP)
    parser.add_argument("--top", metavar="N", type=at_least_one, default=5, help="cells to list (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _compare(options: argparse.Namespace) -> int:
    from ..analysis.comparison import compare
    from ..analysis.selection import axes

    a, b = (load_run(run, where=options.where) for run in (options.run_a, options.run_b))
    for run, df in ((options.run_a, a), (options.run_b, b)):
        with asked_of(run):
            axes(df)
    with asked_of(options.run_a):
        found = compare(a, b, options.columns)
        if options.json:
            print_json(found.plain(options.top))
        else:
            _print(found, options)
    return 0


def _print(found: Comparison, options: argparse.Namespace) -> None:
    from ..analysis.selection import plain_text
    from ..reports.text_tables import print_table, with_unit

    tell(
        f"A is {one_line(options.run_a)}, B is {one_line(options.run_b)}: "
        f"{len(found.cells):,} cells in both, joined on "
        f"{', '.join(found.keys) or 'nothing, as each is a single cell'}"
    )
    for which, count in (("A", found.only_a), ("B", found.only_b)):
        if count:
            tell(f"{count:,} cells are only in {which}")
    for name, a, b in found.status:
        tell(f"{name}: {a:,} cells in A, {b:,} in B")
    for name, (these, those) in found.differing.items():
        tell(f"{name}: {', '.join(map(plain_text, these))} in A, {', '.join(map(plain_text, those))} in B")
    rows: list[list[str]] = []
    for name in found.names:
        line = found.summary(name)
        rows.append(
            [
                name,
                *(with_unit(line[key], found.units[name]) for key in ("median_a", "median_b")),
                _change(line["median_change"], found.units[name]),
                *(str(line[key]) for key in ("higher", "lower", "same")),
            ]
        )
    print_table(["measure", "median of A", "median of B", "median change", "higher in B", "lower in B", "same"], rows)
    name = found.names[0]
    worst = found.largest(name, options.top)
    if worst.empty:
        tell("No cell differs in these measures." if found.is_same() else f"No cell differs in {name}.")
        return
    header = [*found.keys, f"{name} of A", "of B", "change"]
    print_table(
        header,
        [
            [
                *(plain_text(row[key]) for key in found.keys),
                *(with_unit(row[f"{name}_{x}"], found.units[name]) for x in "ab"),
                _change(row["change"], found.units[name]),
            ]
            for row in worst.to_dict("records")
        ],
        title=f"Largest differences of {name}",
        left=len(found.keys),
    )


def _change(change: float, unit: str) -> str:
    if change != change:
        return "-"
    return f"{100 * change:+.1f} points" if unit == "share" else f"{change:+.1%}"
