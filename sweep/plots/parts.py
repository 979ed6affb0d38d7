"""The parts that plots are put together from: curves with error bars, limits, crosses, scales, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from ..analysis.selection import plain_text
from .style import GREY, STYLE, curve_style, is_geometric, plain_axis, plain_log_axis, ticks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    figure = plt.figure(layout="constrained")  # not inside: a backend's own settings would be undone with the style
    with matplotlib.rc_context(STYLE):
        return figure.add_subplot()


def limits_of(df: pd.DataFrame, y: str, target: float) -> list[float]:
    """Where a dashed line belongs: the SLO of a latency, the target of the attainment."""
    if y == "attainment":
        return [target]
    column = f"{y.partition('_')[0]}_slo_s"
    if column not in df or not y.endswith("_s"):
        return []
    return [float(value) for value in df[column].dropna().unique()]


def limit_name(y: str, limit: float, unit: str) -> str:
    return f"target {limit:g} %" if y == "attainment" else f"SLO {limit:g} {unit}"


def limit_line(ax: Axes, at: float, name: str) -> None:
    ax.axhline(at, color=GREY, linestyle=(0, (5, 3)), linewidth=1.1, zorder=1)
    ax.annotate(
        name,
        (1, at),
        (-2, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        fontsize=8.5,
        color=GREY,
        zorder=5,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
    )


def draw_curve(ax: Axes, x: Any, values: Any, seeds: Any, name: str, style: dict[str, Any]) -> None:
    """A line with markers, and error bars where a point is the mean of several seeds.

    values  [3, n]: means, lowest and highest
    """
    mean, low, high = values
    if not len(mean):  # error bars without a point have no extent, which upsets the layout
        ax.plot([], [], label=name or None, **style)
        return
    if (seeds > 1).any():
        style = style | {"yerr": np.abs([mean - low, high - mean]), "capsize": 2.5, "elinewidth": 1.0}
    ax.errorbar(x, mean, label=name or None, clip_on=False, zorder=3, **style)


def crosses(ax: Axes, x: Any, colour: str) -> None:
    """Marks at the foot of the axes, for cells that have no value."""
    if len(x):
        ax.plot(
            x,
            np.full(len(x), 0.02),
            linestyle="",
            marker="x",
            color=colour,
            markersize=6,
            markeredgewidth=1.6,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
            zorder=4,
        )


def scale_along(ax: Axes, which: str, values: Any) -> None:
    at = ticks(values)
    low, high = float(np.min(values)), float(np.max(values))
    if is_geometric(values):
        plain_log_axis(ax, which, at if sum(len(f"{value:g}") for value in at) <= 18 else ())
        margin = (high / low) ** 0.04
        getattr(ax, f"set_{which}lim")(low / margin, high * margin)
    else:
        crowded = len(at) > 1 and min(np.diff(at)) < (at[-1] - at[0]) / 14
        plain_axis(ax, which, [] if crowded else at)
        margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
        getattr(ax, f"set_{which}lim")(low - margin, high + margin)


def scale_y(ax: Axes, values: Any, unit: str, limits: Sequence[float]) -> None:
    """Percent from 0 to 100; logarithmic where values are 20 times apart and none is 0; else from 0 on."""
    finite = values[np.isfinite(values)]
    if unit == "%" and (not finite.size or finite.max() <= 100):
        ax.set_ylim(0, 105)
        plain_axis(ax, "y")
    elif finite.size and finite.min() > 0 and finite.max() / finite.min() > 20:
        low, high = min(finite.min(), *limits), max(finite.max(), *limits)
        ax.set_ylim(low / 1.5, high * 1.5)
        plain_log_axis(ax, "y")
    else:
        highest = max([*finite.tolist(), *limits], default=1.0)
        ax.set_ylim(0, 1.12 * highest if highest > 0 else 1.0)
        plain_axis(ax, "y")


def name_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def style_of(name: Any, whole: pd.DataFrame) -> dict[str, Any]:
    """The style of a curve by its place among all curves of a figure."""
    return curve_style(whole["curve"].drop_duplicates().tolist().index(name))


def finish(ax: Axes, numbers: pd.DataFrame, is_alone: bool, chosen: Sequence[str] = ()) -> None:
    if (numbers["status"] != "ok").any():
        ax.plot([], [], linestyle="", marker="x", color=GREY, label="infeasible or failed")
    if is_alone and ax.get_legend_handles_labels()[1]:
        ax.legend(title=best_of(chosen), title_fontsize=9)


def best_of(chosen: Sequence[str]) -> str | None:
    """What a legend says about parameters that were chosen for each curve."""
    return f"each with its best {', '.join(chosen)}" if chosen else None


def shared_legend(figure: Figure, chosen: Sequence[str]) -> None:
    """One legend below all panels, each name once."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        handles, names = ax.get_legend_handles_labels()
        found.update(zip(names, handles, strict=True))
    for name in [name for name in found if name.startswith("infeasible")]:
        found[name] = found.pop(name)  # last
    if found:
        longest = max(map(len, found))
        columns = max(1, min(len(found), int(figure.get_figwidth() * 11 // (longest + 7))))
        figure.legend(
            found.values(),
            found.keys(),
            loc="outside lower center",
            ncols=columns,
            title=best_of(chosen),
            title_fontsize=9,
        )


def in_order(values: pd.Series[Any]) -> list[str]:
    distinct = values.drop_duplicates()
    return [plain_text(value) for value in (distinct.sort_values() if values.dtype.kind == "f" else distinct)]


def digits(grid: Any) -> int:
    finite = np.abs(grid[np.isfinite(grid)])
    if not finite.size or np.all(finite == np.round(finite)):
        return 0
    return int(np.clip(2 - np.floor(np.log10(max(finite.max(), 1e-9))), 0, 3))
