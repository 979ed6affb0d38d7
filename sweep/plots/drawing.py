"""Plots of a run, on Matplotlib axes.

Every function takes a table of a run and, if you like, the axes to draw on, and returns the axes. The numbers that it
draws are those of the function of the same name in `servesweep.plots.numbers`, in the units of the tables.

    import servesweep
    from servesweep import plots

    ax = plots.curves(servesweep.load("results/quickstart"), "ttft_p99_s")
    ax.figure.savefig("ttft.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import checks
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
    style_of,
)
from .style import GREY, HEAT, label, plain_axis, scaled, ticks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@checks.spelt_out
def curves(
    df: pd.DataFrame,
    y: str = "attainment",
    *,
    ax: Axes | None = None,
    x: str = RATE,
    by: Sequence[str] | None = None,
    target: float = TARGET,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """A measure along a parameter, usually a latency or the attainment along the request rate.

    A curve for each value of `by`, of the best configuration if more was swept; error bars from the lowest to the
    highest seed, a cross at the foot where a cell is infeasible or failed. A dashed line is the SLO of a latency, or
    `target` for the attainment.

    Parameters
    ----------
    df
        The cells of a sweep, as `load(run)` gives them.
    y, x
        Columns.
    ax
        Where to draw. None: a new figure.
    by
        Parameters that tell curves apart. None: policy, system and router, where they are axes.
    target
        The attainment to keep.
    scale_to
        The numbers of several panels, which scales and colours suit. None: those drawn here.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        For columns that cannot be drawn.
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


@checks.spelt_out
def frontier(
    df: pd.DataFrame,
    x: str,
    *,
    ax: Axes | None = None,
    by: Sequence[str] | None = None,
    target: float = TARGET,
    per_gpu: bool = True,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """The highest request rate that keeps `target` attainment, along a parameter: of the cells of a sweep, or found by
    a search, when `df` is its goodput table.

    At each point the best configuration of what else was swept; a hollow marker with an arrow is the highest rate of
    the sweep, beyond which there may be more. Error bars are that configuration's lowest and highest seed.

    Parameters
    ----------
    df
        The cells of a sweep, as `load(run)` gives them, or the goodput table of a search, `load(run, "goodput")`.
    x
        The parameter.
    ax, by, scale_to
        As for `curves`.
    target
        The attainment to keep; that of a search is its own.
    per_gpu
        Divide by the GPUs of the system.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        For columns that cannot be drawn.
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


@checks.spelt_out
def pareto(
    df: pd.DataFrame,
    *,
    ax: Axes | None = None,
    by: Sequence[str] | None = None,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """Throughput per GPU against tokens per second of a user, every configuration and rate a point.

    The line of a curve joins its points that no other of its points equals or exceeds in both.

    Parameters
    ----------
    df
        The cells of a sweep, as `load(run)` gives them.
    ax, by, scale_to
        As for `curves`.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        For columns that cannot be drawn.
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


@checks.spelt_out
def heatmap(
    df: pd.DataFrame,
    x: str,
    y: str,
    *,
    ax: Axes | None = None,
    value: str = RATE,
    target: float = TARGET,
    scale_to: pd.DataFrame | None = None,
) -> Axes:
    """A value for each pair of two parameters, by colour and in figures; a cross where nothing is feasible.

    Parameters
    ----------
    df
        The cells of a sweep, as `load(run)` gives them.
    x, y
        Columns of parameters.
    ax, scale_to
        As for `curves`.
    value
        "request_rate_rps": the highest rate of the sweep that keeps `target` attainment, of the best configuration of
        what else was swept; or a measure, and then everything but x, y and the seed must have been chosen.
    target
        The attainment to keep.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        For columns that cannot be drawn.
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
