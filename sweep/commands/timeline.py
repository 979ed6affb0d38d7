"""`servesweep timeline`: what one cell did, step by step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..escapes import one_line
from ..streams import say, tell
from .options import add_command, at_least_one, column_list, folder_for

if TYPE_CHECKING:
    import pandas as pd

    from ..serving.timelines import Timeline
    from .options import Commands

FORMATS = ("json", "png", "svg", "csv")


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "timeline",
        _timeline,
        "simulate one cell and show what it did with each request, step by step",
        "Simulate one cell and write what it did: a Chrome trace (JSON, for ui.perfetto.dev), a picture of requests "
        "over time with the KV blocks in use, and a table of what each request did when (CSV).",
    )
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or the name of a ready experiment")
    parser.add_argument(
        "--cell", metavar="CELL", default="all", help="id of a cell, or policy=chunked,block_size=16,..."
    )
    parser.add_argument("--trace", metavar="FILE", help="serve the requests of this trace")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="replace a key, as in run")
    parser.add_argument("--from", dest="begin", metavar="S", type=_seconds, default=0.0, help="begin of the picture, s")
    parser.add_argument("--to", dest="end", metavar="S", type=_seconds, help="end of the picture, seconds")
    parser.add_argument(
        "--requests", metavar="N", type=at_least_one, default=40, help="most requests in the picture (default: 40)"
    )
    parser.add_argument("--out", metavar="DIR", help="where the files go (default: results/<name>/timelines)")
    parser.add_argument(
        "--formats", metavar="NAMES", type=column_list, default=list(FORMATS), help="default: json,png,svg,csv"
    )


def _timeline(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.plan import expand
    from ..experiment.reader import load_experiment
    from ..experiment.tables import ConfigError
    from ..serving.timelines import timeline
    from ..tables.filenames import RESULTS

    experiment = load_experiment(options.config, trace=options.trace, settings=options.set)
    plan = expand(experiment)
    try:
        check_names(options.formats, FORMATS, "format")
        if options.end is not None and options.end <= options.begin:
            raise ValueError(f"--to {options.end:g}: must be later than --from {options.begin:g}")
        chosen = plan.select(options.cell)
        if len(chosen) > 1:
            raise ValueError(f"--cell {options.cell}: chooses {len(chosen):,} cells, but a timeline is of one")
        cell = plan.cells[chosen[0]]
        if cell.spec.infeasible is not None:
            raise ValueError(f"cell {cell.cell_id} cannot run: {cell.spec.infeasible}")
        found = timeline(cell.system())
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    directory = Path(RESULTS) / experiment.name
    columns = cell.columns()
    names = [key for key in dict.fromkeys((*plan.axes, "request_rate_rps")) if key in columns]
    words = ", ".join(f"{key} {columns[key]}" for key in names if columns[key] is not None)
    with folder_for(options.out, directory, "timelines") as folder:
        for path in write(found, folder, cell.cell_id, f"cell {cell.cell_id}: {words}", options):
            tell(one_line(path))
    preemptions = sum(map(len, found.preempted_s))
    rejected = f", {len(found.rejected):,} rejected" if found.rejected else ""
    say(
        f"{len(found.names):,} requests, {len(found.steps['start_s']):,} steps in {found.end_s:,.1f} s, "
        f"{preemptions:,} preemptions{rejected}"
    )
    return 0


def write(found: Timeline, folder: Path, name: str, title: str, options: argparse.Namespace) -> list[Path]:
    """Write the files of a timeline; their paths."""
    import json

    from ..plots.saving import write_figure
    from ..plots.timeline import timeline_figure
    from ..plots.trace_events import chrome_trace
    from ..tables.atomic_write import write_whole
    from .export import as_csv

    paths = [folder / f"{name}.{ending}" for ending in options.formats]
    pictures = {"png", "svg"} & set(options.formats)
    figure = None
    if pictures:
        figure = timeline_figure(found, title=title, begin=options.begin, end=options.end, most=options.requests)
    for path in paths:
        if path.suffix == ".json":
            text = json.dumps(chrome_trace(found, title), separators=(",", ":"))
            write_whole(path, lambda file: file.write(text.encode()))  # noqa: B023 - it is called here
        elif path.suffix == ".csv":
            write_whole(path, lambda file: file.write(as_csv(table(found))))
        elif figure is not None:
            write_figure(path, figure)
    return paths


def table(found: Timeline) -> pd.DataFrame:
    """What each request did when, a row a segment: see timelines.Segment."""
    import pandas as pd

    from ..serving.timelines import Segment

    rows = [
        (name, *segment) for name, segments in zip(found.names, found.segments, strict=True) for segment in segments
    ]
    return pd.DataFrame(rows, columns=["request", *Segment._fields])


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be seconds, at least 0")
    return value
