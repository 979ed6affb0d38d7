"""Figures of several panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import matplotlib

from .. import checks
from ..analysis.selection import check_names, parameters, plain_text
from . import numbers as plot_numbers
from .drawing import curves, frontier, heatmap, pareto
from .numbers import RATE
from .parts import shared_legend
from .style import STYLE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PlotKind = Literal["curves", "frontier", "pareto", "heatmap"]
_DRAWN: dict[str, Callable[..., Axes]] = {"curves": curves, "frontier": frontier, "pareto": pareto, "heatmap": heatmap}


@checks.spelt_out
def panels(
    df: pd.DataFrame,
    kind: PlotKind,
    *,
    panel: str | None = None,
    most: int = 12,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
    by: Sequence[str] | None = None,
    target: float | None = None,
    per_gpu: bool | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """A figure with a panel for each value of a parameter, equal scales and one legend, and the numbers in it.

    Parameters
    ----------
    df
        The cells of a sweep, or for "frontier" the goodput table of a search.
    kind
        "curves", "frontier", "pareto" or "heatmap": the function that draws a panel.
    panel
        The parameter. None: a single panel.
    most
        Panels that a figure may have.
    x, y, value, by, target, per_gpu
        Options of that function, such as `y="ttft_p99_s"`. None: its default.

    Returns
    -------
    tuple
        The figure, and a row for each point that is drawn.

    Raises
    ------
    ValueError
        For an unknown kind or parameter, an option that the kind does not have, columns that cannot be drawn, or a
        parameter with more than `most` values.
    """
    import pandas as pd
    from matplotlib.figure import Figure

    check_names([kind], list(_DRAWN), "kind of plot")
    given = {"x": x, "y": y, "value": value, "by": by, "target": target, "per_gpu": per_gpu}
    options: dict[str, Any] = {name: option for name, option in given.items() if option is not None}
    for name in options.keys() - signature(_DRAWN[kind]).parameters:
        raise ValueError(f"{name}={options[name]!r}: has no effect on {kind}")
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
            along = RATE if x is None else x
            found = [plot_numbers.chosen_for_curves(cells, by, along) for _, cells in parts]
            chosen = list(dict.fromkeys(name for names in found for name in names))
        shared_legend(figure, chosen)
    return figure, whole
