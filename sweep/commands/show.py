"""`servesweep show`: the best configurations of a run, its cells in order, or one cell as a benchmark prints it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..escapes import one_line
from ..streams import tell
from .options import (
    RUN_HELP,
    WHERE_HELP,
    a_share,
    add_command,
    asked_of,
    at_least_one,
    column_list,
    load_run,
    print_json,
)

if TYPE_CHECKING:
    import pandas as pd

    from .options import Commands

_COLUMNS = ("attainment", "ttft_p99_s", "tpot_p99_s", "output_throughput_tps")


# Options that the listing by another one has no use for.
_WITHOUT_EFFECT = {"--cell": ("sort", "lowest", "columns", "top", "target"), "--sort": ("target",), "": ()}


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "show",
        _show,
        "print the best configurations of a run and a verdict",
        "Print the best configurations of a run and a verdict; with --sort its cells, ordered by a column; with --cell "
        "one cell in the layout of `vllm bench serve`.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--cell", metavar="ID", help="one cell: its id, the beginning of it, or policy=mixed,tp=1,...")
    parser.add_argument("--sort", metavar="COLUMN", help="list cells, the highest value of this column first")
    parser.add_argument("--lowest", action="store_true", help="with --sort: the lowest value first")
    parser.add_argument("--columns", metavar="NAMES", type=column_list, help="with --sort: columns to print, a,b,c")
    parser.add_argument("--where", metavar="CONDITIONS", help=WHERE_HELP)
    parser.add_argument("--top", metavar="N", type=at_least_one, help="rows to print (default: 10)")
    parser.add_argument("--target", metavar="SHARE", type=a_share, help="attainment to keep (default: 0.9)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _show(options: argparse.Namespace) -> int:
    from ..analysis.ranking import TARGET

    df = load_run(options.run, where=options.where)
    with asked_of(options.run):
        if options.cell is None and options.sort is None and (options.lowest or options.columns is not None):
            raise ValueError("--lowest and --columns have an effect only with --sort")
        what = "--cell" if options.cell is not None else "--sort" if options.sort is not None else ""
        for name in _WITHOUT_EFFECT[what]:  # given at its default value, too
            if getattr(options, name) not in (None, False):
                raise ValueError(f"--{name} has no effect with {what}")
        options.top = 10 if options.top is None else options.top
        options.target = TARGET if options.target is None else options.target
        if what:
            return _show_cell(df, options) if what == "--cell" else _show_cells(df, options)
        return _show_best(df, options)


def _show_best(df: pd.DataFrame, options: argparse.Namespace) -> int:
    from ..analysis.ranking import best_by_policy, best_json, ranked
    from ..analysis.verdicts import (
        format_rejections,
        format_slos,
        format_step_times,
        format_verdict,
        step_times_sources,
    )
    from ..reports.sweep_tables import print_best

    best = ranked(df, options.target)
    line = format_verdict(best_by_policy(df, options.target), format_slos(df), options.target)
    warning, sources = format_rejections(df), step_times_sources(df)
    counts = {str(status): int(count) for status, count in df["status"].value_counts(sort=False).items() if count}
    name = one_line(df.attrs["config"].get("name", options.run))
    if options.json:
        content = {"name": name, "counts": counts, "best": best_json(best[: options.top]), "verdict": line}
        print_json({**content, "warning": warning, "step_times": sources})
        return 0
    tell(f"{name}: {len(df):,} cells, {', '.join(f'{count:,} {status}' for status, count in counts.items())}")
    for text in _axes_texts(df):
        tell(f"  {text}")
    shown = min(options.top, len(best))
    print_best(best[:shown], options.target, f"Best {shown:,} of {len(best):,} configurations")
    if sources:
        tell(format_step_times(sources))
    tell(line)
    if warning is not None:
        tell(f"Warning: {warning}")
    return 0


def _axes_texts(df: pd.DataFrame) -> list[str]:
    from ..analysis.selection import axes, plain_text

    lines = []
    for name in axes(df):
        values = [plain_text(value) for value in df[name].drop_duplicates().tolist()]
        shown = values if len(values) <= 8 else [*values[:3], "...", values[-1]]
        lines.append(f"{name} ({len(values)}): {', '.join(shown)}")
    return lines


def _show_cells(df: pd.DataFrame, options: argparse.Namespace) -> int:
    from ..analysis.selection import axes, check_names, check_numbers, parameters, plain, plain_text
    from ..reports.text_tables import print_table, with_unit

    check_numbers(df, [options.sort])
    check_names(options.columns or (), list(map(str, df.columns)))
    names = options.columns or [*axes(df), *_COLUMNS]
    names = list(dict.fromkeys(["cell_id", *names, options.sort]))
    rows = df[df[options.sort].notna()].sort_values(options.sort, ascending=options.lowest, kind="stable")
    rows = rows.head(options.top)[names]
    if options.json:
        print_json([{name: plain(value) for name, value in row.items()} for row in rows.to_dict("records")])
        return 0
    units, given = df.attrs["units"], parameters(df)
    text = [i for i, name in enumerate(names) if df[name].dtype.kind not in "iuf"]
    order = [*text, *(i for i in range(len(names)) if i not in text)]
    table = [
        [
            plain_text(value) if name in given else with_unit(value, units[name])
            for name, value in zip(names, row, strict=True)
        ]
        for row in rows.itertuples(index=False)
    ]
    print_table([names[i] for i in order], [[row[i] for i in order] for row in table], left=len(text))
    tell(f"{len(rows):,} of {len(df):,} cells, by {options.sort}, {'lowest' if options.lowest else 'highest'} first")
    return 0


def _show_cell(df: pd.DataFrame, options: argparse.Namespace) -> int:
    from ..analysis.selection import one_cell, parameters, plain, plain_text

    cell = one_cell(df, options.cell)
    values: dict[str, Any] = {name: plain(cell[name]) for name in df.columns}
    if options.json:
        print_json(values)
        return 0
    tell(
        f"cell {values['cell_id']}: "
        + ", ".join(f"{name} {plain_text(cell[name])}" for name in parameters(df) if values[name] is not None)
    )
    if values["status"] != "ok":
        tell(f"{values['status']}: {values['error']}")
        return 0
    tell("\n".join(benchmark_block(values)))
    left_out = values["n_requests"] - values["attainment_requests"]
    if left_out:
        tell(f"Latencies are of {values['attainment_requests']:,} requests: {left_out:,} at both ends are left out.")
    return 0


def benchmark_block(cell: dict[str, Any]) -> list[str]:
    """The lines that `vllm bench serve` prints after a run, labels and order its own (vllm/benchmarks/serve.py).

    Left out are those that a cells table does not know: peaks within a second. Percentiles of the inter-token latency
    are known where an SLO on itl_max was set.
    """
    lines = [f"{' Serving Benchmark Result ':=^50}"]

    def line(label: str, value: float | None, form: str) -> None:
        lines.append(f"{label:<40} {'-' if value is None else format(value, form):<10}".rstrip())

    duration, total, output = (cell[x] for x in ("duration_s", "total_throughput_tps", "output_throughput_tps"))
    tokens = [None if duration is None else round(rate * duration) for rate in (total, output)]
    line("Successful requests:", cell["finished"], "d")
    line("Failed requests:", cell["n_requests"] - cell["finished"], "d")
    line("Request rate configured (RPS):", cell["request_rate_rps"], ".2f")
    line("Benchmark duration (s):", duration, ".2f")
    line("Total input tokens:", None if tokens[0] is None or tokens[1] is None else tokens[0] - tokens[1], "d")
    line("Total generated tokens:", tokens[1], "d")
    line("Request throughput (req/s):", cell["request_throughput_rps"], ".2f")
    if any(value is not None for name, value in cell.items() if name.endswith("_slo_s")):
        line("Request goodput (req/s):", cell["request_goodput_rps"], ".2f")
    line("Output token throughput (tok/s):", output, ".2f")
    line("Total token throughput (tok/s):", total, ".2f")
    for name, short, title in (
        ("ttft", "TTFT", "Time to First Token"),
        ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
        ("itl", "ITL", "Inter-token Latency"),
        ("e2e", "E2EL", "End-to-end Latency"),
    ):
        lines.append(f"{title:-^50}")
        for label, which in (("Mean", "mean"), ("Median", "p50"), ("P99", "p99")):
            value = cell.get(f"{name}_{which}_s")  # a run of an earlier version has no ITL
            line(f"{label} {short} (ms):", None if value is None else 1000 * value, ".2f")
    return [*lines, "=" * 50]
