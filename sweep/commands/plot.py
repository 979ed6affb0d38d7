"""`servesweep plot`: pictures of a run, and the numbers in them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..escapes import one_line
from ..streams import tell
from .options import RUN_HELP, WHERE_HELP, a_share, add_command, asked_of, column_list, folder_for, load_run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..plots import PlotKind
    from ..tables.reading import TableName
    from .options import Commands

KINDS = ("curves", "frontier", "goodput", "pareto", "heatmap", "time")
FORMATS = ("png", "svg", "csv")


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plot",
        _plot,
        "draw the results of a run: PNG, SVG, and the numbers as CSV",
        "Draw a run. KIND is curves (a measure along a parameter), frontier (the highest rate that keeps the target, "
        "along a parameter), goodput (the same as `servesweep goodput` found it), pareto (throughput per GPU against "
        "tokens/s per user), heatmap (over two parameters) or time (batch and KV use of a cell). Without KIND: "
        "attainment, TTFT, TPOT, Pareto.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("--y", metavar="COLUMN", help="curves: a measure (default: attainment); heatmap: a parameter")
    parser.add_argument("--x", metavar="COLUMN", help="the parameter along the plot (curves: default request_rate_rps)")
    parser.add_argument(
        "--value", metavar="COLUMN", help="heatmap: a measure (default: the rate that keeps the target)"
    )
    parser.add_argument(
        "--by", metavar="COLUMNS", type=column_list, help="a curve for each value (default: system, policy, router)"
    )
    parser.add_argument("--panels", metavar="COLUMN", help="a panel for each value of a parameter")
    parser.add_argument("--target", metavar="SHARE", type=a_share, help="attainment to keep (default: 0.9)")
    parser.add_argument(
        "--cell", metavar="ID", help="time: the cell, by id or conditions; not needed when only one has steps"
    )
    parser.add_argument("--where", metavar="CONDITIONS", help=WHERE_HELP)
    parser.add_argument("--out", metavar="DIR", help="where the files go (default: plots/ in the run's directory)")
    parser.add_argument(
        "--formats", metavar="NAMES", type=column_list, default=list(FORMATS), help="default: png,svg,csv"
    )


# Which options a kind takes, beside --panels, --where and those about the files.
_OPTIONS = {
    "curves": ("y", "x", "by", "target"),
    "frontier": ("x", "by", "target"),
    "goodput": ("x", "by"),
    "pareto": ("by",),
    "heatmap": ("x", "y", "value", "target"),
    "time": ("cell",),
}


def _plot(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names, find_run, need_rows

    table: TableName = "goodput" if options.kind == "goodput" else "cells"
    with asked_of(options.run, table):
        check_names(options.formats, FORMATS, "format")
        df = load_run(options.run, table, where=options.where)
        need_rows(df)
        with folder_for(options.out, find_run(options.run), "plots") as folder:
            for name, figure, numbers in _figures(df, options):
                for path in save(figure, numbers, folder, name, options.formats):
                    tell(one_line(path))
    return 0


def _figures(df: pd.DataFrame, options: argparse.Namespace) -> Iterator[tuple[str, Figure, pd.DataFrame]]:
    from .. import plots

    given = {key for key in ("y", "x", "value", "by", "target", "cell") if getattr(options, key) is not None}
    if options.kind is None:
        if given - {"by", "target"}:
            raise ValueError(f"--{min(given - {'by', 'target'})} has an effect only with a KIND: {', '.join(KINDS)}")
        common = {key: getattr(options, key) for key in given}
        for y in ("attainment", "ttft_p99_s", "tpot_p99_s"):
            yield f"curves-{y}", *plots.panels(df, "curves", panel=options.panels, y=y, **common)
        common.pop("target", None)
        yield "pareto", *plots.panels(df, "pareto", panel=options.panels, **common)
        return
    unused = given - set(_OPTIONS[options.kind])
    if unused:
        raise ValueError(f"--{min(unused)} has no effect on {options.kind}, which takes {_taken(options.kind)}")
    arguments = {key: getattr(options, key) for key in given}
    if options.kind == "time":
        if options.panels is not None:
            raise ValueError("--panels has no effect on time, which draws one cell")
        yield _over_time(df, options)
        return
    for key in {"frontier": ("x",), "goodput": ("x",), "heatmap": ("x", "y")}.get(options.kind, ()):
        if key not in given:
            raise ValueError(f"{options.kind} needs --{key}, a parameter of the sweep")
    name = "-".join([options.kind, *(arguments[key] for key in ("y", "x", "value") if key in arguments)])
    name = "curves-attainment" if name == "curves" else name
    kind: PlotKind = "frontier" if options.kind == "goodput" else options.kind
    yield name, *plots.panels(df, kind, panel=options.panels, **arguments)


def _over_time(df: pd.DataFrame, options: argparse.Namespace) -> tuple[str, Figure, pd.DataFrame]:
    from .. import plots
    from ..analysis.selection import need_columns, need_rows, one_cell
    from ..plots import numbers as plot_numbers

    steps = load_run(options.run, "steps")
    with asked_of(options.run, "steps"):
        need_columns(steps, ["cell_id"])
        need_rows(steps)
    there = steps["cell_id"].unique().tolist()
    if options.cell is None and len(there) > 1:
        raise ValueError(f"time draws one cell, and steps of {len(there)} were recorded: choose one with --cell")
    cell = one_cell(df, options.cell if options.cell is not None else there[0])
    if cell["cell_id"] not in there:
        raise ValueError(f"the steps of cell {cell['cell_id']} were not recorded; those of {', '.join(there[:9])} were")
    steps = steps[steps["cell_id"] == cell["cell_id"]]
    figure = plots.over_time_figure(steps, cell["num_blocks"], title=f"cell {cell['cell_id']}")
    return f"time-{cell['cell_id']}", figure, plot_numbers.over_time(steps, cell["num_blocks"])


def save(figure: Figure, numbers: pd.DataFrame | None, folder: Path, name: str, formats: Any = FORMATS) -> list[Path]:
    """Write a figure and its numbers; the paths. The same numbers give the same bytes."""
    from ..plots.saving import write_figure
    from ..tables.atomic_write import write_whole
    from ..tables.filenames import as_file_name
    from .export import as_csv

    paths = [folder / f"{as_file_name(name)}.{ending}" for ending in formats]
    for path, ending in zip(paths, formats, strict=True):
        if ending == "csv" and numbers is not None:
            write_whole(path, lambda file: file.write(as_csv(numbers)))
        else:
            write_figure(path, figure)
    return paths


def _taken(kind: str) -> str:
    return ", ".join(f"--{name}" for name in _OPTIONS[kind])
