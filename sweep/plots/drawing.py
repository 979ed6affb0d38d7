"""Plots of a run, on Matplotlib axes.

Every function takes a table of a run and, if you like, the axes to draw on, and returns the axes. The numbers that it
draws are those of the function of the same name in `servesweep.plots.numbers`, in the units of the tables.

    import servesweep
    from servesweep import plots

    ax = plots.curves(servesweep.load("results/quickstart"), "ttft_p99_s")
    ax.figure.savefig("ttft.png")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from ..analysis.ranking import TARGET
from ..analysis.selection import plain_text
from . import numbers as plot_numbers
from .numbers import GPU_RATE, RATE, USER_RATE
from .parts import (
    crosses,
    digits,
    draw_curve,
    finish,
    in_order,
    limit_line,
    limit_name,
    limits_of,
    name_axes,
    new_axes,
    scale_along,
    scale_y,
    shared_legend,
    style_of,
)
from .style import COLOURS, GREY, HEAT, STYLE, label, plain_axis, scaled, ticks
from .timeline import blocks_in_use, gantt, timeline_figure

__all__ = [
    "blocks_in_use",
    "curves",
    "frontier",
    "gantt",
    "heatmap",
    "over_time",
    "over_time_figure",
    "panels",
    "pareto",
    "timeline_figure",
]

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curves(
    df: pd.DataFrame,
    y: str = "attainment",
    ax: Axes | None = None,
    *,
    x: str = RATE,
    by: Sequence[str] | None = None,
    target: float = TARGET,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """A measure along a parameter, usually a latency or the attainment along the request rate.

    A curve for each value of `by`, of the best configuration if more was swept; error bars from the lowest to the
    highest seed, a cross at the foot where a cell is infeasible or failed. A dashed line is the SLO of a latency, or
    `target` for the attainment. `scale_to` holds the numbers of several panels: scales and colours suit them all.

    ValueError for columns that cannot be drawn.
    """
    numbers = plot_numbers.curves(df, y, x=x, by=by, target=target)
    whole = numbers if scale_to is None else scale_to
    ax, is_alone = new_axes(ax), scale_to is None
    units = df.attrs["units"]
    factor, unit = scaled(whole[y], units[y])
    names = [y, f"{y}_low", f"{y}_high"]
    for name, points in numbers.groupby("curve", sort=False):
        style = style_of(name, whole)
        ok = points[points["status"] == "ok"]
        draw_curve(ax, ok[x], factor * ok[names].to_numpy(float).T, ok["seeds"], str(name), style)
        crosses(ax, points[points["status"] != "ok"][x], style["color"])
    limits = limits_of(df, y, target)
    values = whole[names].to_numpy(float)
    scale_y(ax, factor * values, unit, [factor * limit for limit in limits])
    scale_along(ax, "x", whole[x])
    for limit in limits:
        limit_line(ax, factor * limit, limit_name(y, factor * limit, unit))
    name_axes(ax, label(x, units[x].replace("share", "")), label(y, unit))
    finish(ax, numbers, is_alone, plot_numbers.chosen_for_curves(df, by, x))
    return ax


def frontier(
    df: pd.DataFrame,
    x: str,
    ax: Axes | None = None,
    *,
    by: Sequence[str] | None = None,
    target: float = TARGET,
    per_gpu: bool = True,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """The highest request rate that keeps `target` attainment, along a parameter: of the cells of a sweep, or found by
    a search, when `df` is its goodput table.

    At each point the best configuration of what else was swept; a hollow marker with an arrow is the highest rate of
    the sweep, beyond which there may be more. Error bars are that configuration's lowest and highest seed.
    """
    numbers = plot_numbers.frontier(df, x, by=by, target=target, per_gpu=per_gpu)
    if plot_numbers.FOUND_RATE in df:
        target = float(df["target"].iloc[0])
    whole = numbers if scale_to is None else scale_to
    ax, is_alone = new_axes(ax), scale_to is None
    y = "request_rate_per_gpu_rps" if per_gpu else RATE
    number = numbers[x].dtype.kind == "f"
    names = [plain_text(value) for value in whole[x].drop_duplicates()]
    at = numbers[x] if number else numbers[x].map(lambda value: names.index(plain_text(value))).astype(float)
    for name, points in numbers.assign(at=at).groupby("curve", sort=False):
        style = style_of(name, whole)
        ok = points[points["status"] == "ok"].sort_values("at", kind="stable")
        draw_curve(ax, ok["at"], ok[[y, f"{y}_low", f"{y}_high"]].to_numpy(float).T, ok["seeds"], str(name), style)
        top = ok[ok["is_top"]]
        ax.plot(
            top["at"],
            top[y],
            linestyle="",
            marker=style["marker"],
            color=style["color"],
            markerfacecolor="white",
            zorder=4,
        )
        for _, row in top.iterrows():
            ax.annotate(
                "",
                (row["at"], row[y]),
                (0, 14),
                textcoords="offset points",
                arrowprops={"arrowstyle": "<-", "color": style["color"], "shrinkB": 3},
            )
        crosses(ax, points[points["status"] != "ok"]["at"], style["color"])
    if number:
        scale_along(ax, "x", whole[x])
    else:
        ax.set_xticks(range(len(names)), names)
        ax.set_xlim(-0.5, len(names) - 0.5)
    ax.set_ylim(0, 1.15 * max(float(np.nanmax(whole[[y, f"{y}_high"]].to_numpy(float), initial=0)), 1e-9))
    plain_axis(ax, "y")
    name_axes(
        ax,
        label(x, df.attrs["units"][x].replace("share", "")),
        f"Req/s{' per GPU' if per_gpu else ''} at {target:.0%} attainment",
    )
    finish(ax, numbers, is_alone, plot_numbers.chosen_for_curves(df, by, x))
    return ax


def pareto(
    df: pd.DataFrame,
    ax: Axes | None = None,
    *,
    by: Sequence[str] | None = None,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """Throughput per GPU against tokens per second of a user, every configuration and rate a point.

    The line of a curve joins its points that no other of its points equals or exceeds in both.
    """
    numbers = plot_numbers.pareto(df, by=by)
    whole = numbers if scale_to is None else scale_to
    ax, is_alone = new_axes(ax), scale_to is None
    for name, points in numbers.groupby("curve", sort=False):
        style = style_of(name, whole)
        front = points[points["on_front"]].sort_values(USER_RATE)
        ax.plot(points[USER_RATE], points[GPU_RATE], linestyle="", marker=".", color=style["color"], alpha=0.3, ms=4)
        ax.plot(front[USER_RATE], front[GPU_RATE], label=str(name) or None, zorder=3, **style)
    ax.set_xlim(0, 1.05 * max(whole[USER_RATE].max(), 1e-9) if len(whole) else 1)
    ax.set_ylim(0, 1.05 * max(whole[GPU_RATE].max(), 1e-9) if len(whole) else 1)
    plain_axis(ax, "x")
    plain_axis(ax, "y")
    name_axes(ax, label(USER_RATE), "Output tokens per GPU (tok/s)")
    without = int((df["status"] != "ok").sum())
    if without:
        ax.set_title(f"\u00d7 {without:,} cells infeasible or failed", loc="right", fontsize=9, color=GREY)
    finish(ax, numbers.assign(status="ok"), is_alone)
    return ax


def heatmap(
    df: pd.DataFrame,
    x: str,
    y: str,
    ax: Axes | None = None,
    *,
    value: str = RATE,
    target: float = TARGET,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """A value for each pair of two parameters, by colour and in figures; a cross where nothing is feasible.

    value  RATE: the highest rate of the sweep that keeps `target` attainment, of the best configuration of what else
           was swept; or a measure, and then everything but x, y and the seed must have been chosen
    """
    numbers = plot_numbers.heatmap(df, x, y, value=value, target=target)
    whole = numbers if scale_to is None else scale_to
    ax = new_axes(ax)
    columns, rows = (in_order(whole[name]) for name in (x, y))
    factor, unit = (1.0, "req/s") if value == RATE else scaled(whole[value], df.attrs["units"][value])
    grid = np.full((len(rows), len(columns)), np.nan)
    feasible = np.zeros(grid.shape, bool)
    present = np.zeros(grid.shape, bool)
    for at_x, at_y, found, status in numbers.itertuples(index=False):
        place = rows.index(plain_text(at_y)), columns.index(plain_text(at_x))
        grid[place], feasible[place], present[place] = factor * found, status == "ok", True
    drawn = factor * whole[value].to_numpy(float)
    lowest, highest = (np.nanmin(drawn), np.nanmax(drawn)) if np.isfinite(drawn).any() else (0.0, 1.0)
    image = ax.imshow(grid, cmap=HEAT, aspect="auto", origin="lower", vmin=lowest, vmax=highest)
    ax.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
    ax.set_yticks(np.arange(len(rows) - 1) + 0.5, minor=True)
    ax.grid(False)
    ax.grid(True, which="minor", color="white", linewidth=1.5)
    ax.set_axisbelow(False)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set_xticks(range(len(columns)), columns, rotation=45 if len(columns) > 8 else 0)
    ax.set_yticks(range(len(rows)), rows)
    places = digits(drawn)
    for i, j in zip(*np.nonzero(present), strict=True):
        if np.isfinite(grid[i, j]):
            if len(columns) <= 16:
                light = grid[i, j] - lowest > 0.55 * (highest - lowest)
                ax.text(
                    j,
                    i,
                    f"{grid[i, j]:,.{places}f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color="black" if light else "white",
                )
        elif not feasible[i, j]:
            ax.text(j, i, "\u00d7", ha="center", va="center", color=GREY, fontsize=13)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, ticks=ticks(drawn[np.isfinite(drawn)], 6) or None)
    bar.set_label(f"Req/s at {target:.0%} attainment" if value == RATE else label(value, unit))
    name_axes(
        ax, label(x, df.attrs["units"][x].replace("share", "")), label(y, df.attrs["units"][y].replace("share", ""))
    )
    if (~feasible & present).any():
        ax.set_title("\u00d7 infeasible", loc="right", fontsize=9, color=GREY)
    return ax


def over_time(
    steps: pd.DataFrame, num_blocks: float | None = None, ax: Axes | None = None, *, y: str = "running"
) -> Axes:
    """The batch size or the KV use of one cell along its time: the mean of a piece of time, and lightly the highest.

    steps       the steps of one cell, as load(run, "steps") gives them
    num_blocks  KV blocks of the cell; without, or where it is missing, there is no KV use to draw
    y           "running" or "kv_utilization"
    """
    if y not in ("running", "kv_utilization"):
        raise ValueError(f"y is {y!r}, but must be 'running' or 'kv_utilization'")
    if steps.empty:
        raise ValueError("steps: has no row, so there is nothing to draw")
    numbers = plot_numbers.over_time(steps, num_blocks)
    ax = new_axes(ax)
    factor = 100.0 if y == "kv_utilization" else 1.0
    edges = [*numbers["time_s"], float(steps["end_s"].max())]
    style: dict[str, Any] = {"color": COLOURS[0] if y == "running" else COLOURS[2]}
    ax.stairs(factor * numbers[f"{y}_max"], edges, fill=True, alpha=0.25, label="highest", **style)
    ax.stairs(factor * numbers[y], edges, linewidth=1.4, baseline=None, label="mean", **style)
    if y == "kv_utilization":
        if numbers[y].isna().all():
            ax.text(0.5, 0.5, "KV memory is unlimited", transform=ax.transAxes, ha="center", color=GREY)
        ax.set_ylim(0, 105)
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlim(min(0.0, edges[0]), edges[-1])
    plain_axis(ax, "x")
    plain_axis(ax, "y")
    name_axes(ax, "Time (s)", "KV blocks used (%)" if y == "kv_utilization" else "Running requests")
    return ax


def over_time_figure(steps: pd.DataFrame, num_blocks: float | None, title: str = "") -> Figure:
    """The batch size of a cell along its time, and its KV use below; see `over_time`."""
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 4.8), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        over_time(steps, num_blocks, upper, y="running")
        over_time(steps, num_blocks, lower, y="kv_utilization")
        upper.set_xlabel("")
        upper.set_title(title, loc="left")
        upper.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    return figure


_DRAWN: dict[str, Callable[..., Axes]] = {"curves": curves, "frontier": frontier, "pareto": pareto, "heatmap": heatmap}


def panels(
    df: pd.DataFrame, kind: str, panel: str | None = None, *, most: int = 12, **options: Any
) -> tuple[Figure, pd.DataFrame]:
    """A figure with a panel for each value of a parameter, equal scales and one legend, and the numbers in it.

    kind     "curves", "frontier", "pareto" or "heatmap": the function of this module that draws a panel
    panel    the parameter; None: a single panel
    options  of that function, such as y="ttft_p99_s"

    ValueError for an unknown kind or parameter, or a parameter with more than `most` values.
    """
    import pandas as pd
    from matplotlib.figure import Figure

    from ..analysis.selection import check_names, parameters

    check_names([kind], list(_DRAWN), "kind of plot")
    parts = [("", df)]
    if panel is not None:
        check_names([panel], parameters(df), "parameter")
        groups = df.groupby(panel, observed=True, dropna=False, sort=df[panel].dtype.kind in "iuf")
        parts = [(plain_text(value), cells) for value, cells in groups]
        if len(parts) > most:
            raise ValueError(f"{panel} has {len(parts)} values, but a figure has at most {most} panels: choose some")
    tables = []
    for title, cells in parts:
        cells.attrs = df.attrs
        table = getattr(plot_numbers, kind)(cells, **options)
        tables.append(table if panel is None else table.assign(**{f"panel_{panel}": title}))
    whole = pd.concat(tables, ignore_index=True)
    columns = 2 if len(parts) == 4 else min(len(parts), 3)
    rows = -(-len(parts) // columns)
    with matplotlib.rc_context(STYLE):
        size = (6.4, 4.2) if len(parts) == 1 else (max(3.7 * columns, 6.4), 3.1 * rows + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, ax in enumerate(grid.flat):
            if place >= len(parts):
                ax.set_visible(False)
                continue
            title, cells = parts[place]
            _DRAWN[kind](cells, ax=ax, scale_to=whole, **options)
            if panel is not None:
                ax.set_title(f"{panel} {title}", loc="left")
            if place % columns:
                ax.set_ylabel("")
            if kind == "heatmap" and place + 1 < len(parts) and (place + 1) % columns:
                figure.axes[-1].set_ylabel("")  # of its colour bar
            if place + columns < len(parts):
                ax.set_xlabel("")
        chosen = []
        if kind in ("curves", "frontier"):
            x = options.get("x", RATE)
            found = [plot_numbers.chosen_for_curves(cells, options.get("by"), x) for _, cells in parts]
            chosen = list(dict.fromkeys(name for names in found for name in names))
        shared_legend(figure, chosen)
    return figure, whole
