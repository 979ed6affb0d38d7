"""One cell along its time: batch size and KV use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import matplotlib

from .. import checks
from . import numbers as plot_numbers
from .parts import name_axes, new_axes
from .style import COLOURS, GREY, STYLE, in_lines, plain_axis

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@checks.spelt_out
def over_time(
    steps: pd.DataFrame,
    num_blocks: float | None = None,
    *,
    ax: Axes | None = None,
    y: Literal["running", "kv_utilization"] = "running",
) -> Axes:
    """The batch size or the KV use of one cell along its time: the mean of a piece of time, and lightly the highest.

    Parameters
    ----------
    steps
        The steps of one cell, as `load(run, "steps")` gives them.
    num_blocks
        KV blocks of the cell. None, or NaN: there is no KV use to draw.
    ax
        Where to draw. None: a new figure.
    y
        "running" or "kv_utilization".

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.

    Raises
    ------
    ValueError
        For another `y`, and steps without a row.
    """
    if y not in ("running", "kv_utilization"):
        raise ValueError(f"y={y!r}: must be running or kv_utilization")
    if steps.empty:
        raise ValueError("steps: has no row: must have some to draw")
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


@checks.spelt_out
def over_time_figure(steps: pd.DataFrame, num_blocks: float | None = None, *, title: str = "") -> Figure:
    """The batch size of a cell along its time, and its KV use below.

    Parameters
    ----------
    steps, num_blocks
        As for `over_time`.
    title
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        To save, or to show.
    """
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 4.8), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        over_time(steps, num_blocks, ax=upper, y="running")
        over_time(steps, num_blocks, ax=lower, y="kv_utilization")
        upper.set_xlabel("")
        upper.set_title(in_lines(title, 90), loc="left")
        upper.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    return figure
