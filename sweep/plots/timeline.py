"""A timeline as a picture: a bar a request over time, and the blocks in use below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from .. import checks
from ..serving.timelines import DECODE, PAUSED, PREEMPTED, PREFILL, TRANSFER, WAITING, Timeline
from .parts import limit_line, name_axes, new_axes
from .style import COLOURS, STYLE, in_lines, plain_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 40  # requests in a picture
_LOOKS: dict[str, dict[str, Any]] = {
    WAITING: {"facecolor": "#d4d4d4"},
    PREFILL: {"facecolor": COLOURS[1]},
    DECODE: {"facecolor": COLOURS[4]},
    PAUSED: {"facecolor": "#cfe6f5", "hatch": "////", "edgecolor": "#7fb5d8"},
    PREEMPTED: {"facecolor": "#f6d5c3", "hatch": "xxxx", "edgecolor": COLOURS[5]},
    TRANSFER: {"facecolor": COLOURS[3]},
}
_WORDS = {WAITING: "waiting", PAUSED: "admitted, no share of the step", PREEMPTED: "preempted", TRANSFER: "KV transfer"}


def chosen_requests(timeline: Timeline, begin: float = 0.0, end: float | None = None, most: int = MOST) -> list[int]:
    """Places of the first `most` requests that are there between two times."""
    last = timeline.end_s if end is None else end
    there = [
        place
        for place, segments in enumerate(timeline.segments)
        if segments and segments[0].start_s < last and segments[-1].end_s > begin
    ]
    return there[:most]


@checks.spelt_out
def gantt(
    timeline: Timeline, *, ax: Axes | None = None, begin: float = 0.0, end: float | None = None, most: int = MOST
) -> Axes:
    """A bar a request, the first to arrive on top, in colours by what it does: waits, prefills, decodes, ...

    In a small picture, figures are tokens: of a prefill, those processed; of a decode, those sent.

    Parameters
    ----------
    timeline
        What `timeline(system)` gives.
    ax
        Where to draw. None: a new figure.
    begin, end
        The time to show, in the clock of the timeline. None: to its end.
    most
        Requests shown: the first that are there in this time.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.
    """
    ax = new_axes(ax)
    shown = chosen_requests(timeline, begin, end, most)
    last = max((timeline.segments[i][-1].end_s for i in shown), default=1.0) if end is None else end
    counts = timeline.clock == "step" and last - begin <= 30
    used = []
    for row, place in enumerate(shown):
        for s in timeline.segments[place]:
            if s.end_s <= begin or s.start_s >= last:
                continue
            used.append(s.what)
            look: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.6 if counts else 0.0, **_LOOKS[s.what]}
            width = s.end_s - s.start_s
            parts = max(s.steps, 1) if counts and s.what == DECODE else 1
            for part in range(parts):
                left = s.start_s + part * width / parts
                ax.barh(row, width / parts, left=left, height=0.72 if s.what != WAITING else 0.3, **look)
                if counts and s.emitted + s.tokens:
                    text = str(s.tokens) if s.what == PREFILL else "1"
                    ax.text(left + width / parts / 2, row, text, ha="center", va="center", fontsize=8.5)
        for at in timeline.preempted_s[place]:
            if begin <= at <= last:
                ax.plot([at], [row], marker="v", color=COLOURS[5], markersize=6, zorder=4, clip_on=False)
    names = [timeline.names[place] for place in shown]
    ax.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 25 else 7)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    _time_axis(ax, timeline, begin, last)
    name_axes(ax, _time_label(timeline), "Request")
    from matplotlib.patches import Patch

    handles = [Patch(**({"linewidth": 0} | _LOOKS[what])) for what in _LOOKS if what in used]
    labels = [_WORDS.get(what, what) for what in _LOOKS if what in used]
    if handles:
        ax.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(handles),
            borderaxespad=0.3,
            handlelength=1.4,
            columnspacing=1.4,
        )
    return ax


@checks.spelt_out
def blocks_in_use(timeline: Timeline, *, ax: Axes | None = None, begin: float = 0.0, end: float | None = None) -> Axes:
    """Blocks in use (tokens, under reserved memory) over time, a line an instance, and how many there are.

    Parameters
    ----------
    timeline, ax, begin, end
        As for `gantt`.

    Returns
    -------
    matplotlib.axes.Axes
        What was drawn on.
    """
    ax = new_axes(ax)
    last = timeline.end_s if end is None else end
    columns = timeline.steps
    count = len(columns["start_s"])
    tracks = np.zeros((2, count), np.int64)
    for row, name in enumerate(("role", "instance")):
        if name in columns:
            tracks[row] = columns[name]
    for place, track in enumerate(np.unique(tracks, axis=1).T):
        mine = (tracks == track[:, None]).all(axis=0)
        start, stop, blocks = (columns[x][mine] for x in ("start_s", "end_s", "blocks_used"))
        # Idle times are steps with no block.
        edges = np.column_stack([start, stop]).ravel()
        values = np.column_stack([blocks, np.zeros(len(blocks))]).ravel()[:-1] if len(blocks) else np.zeros(0)
        keep = np.append(np.diff(edges) > 0, True)
        style: dict[str, Any] = {"color": COLOURS[(2 + place) % len(COLOURS)]}
        if len(values):
            ax.stairs(values[keep[:-1]], edges[keep], fill=not place, alpha=0.9 if not place else 1.0, **style)
    if timeline.num_blocks is not None and timeline.num_blocks <= 4 * max(columns["blocks_used"].max(initial=0), 1):
        ax.set_ylim(0, 1.25 * timeline.num_blocks)
        limit_line(ax, timeline.num_blocks, f"{timeline.num_blocks:,} {timeline.block_unit} in all")
    else:
        ax.set_ylim(0, 1.15 * max(columns["blocks_used"].max(initial=0), 1))
    _time_axis(ax, timeline, begin, last)
    plain_axis(ax, "y")
    name_axes(ax, _time_label(timeline), f"KV {timeline.block_unit} used")
    return ax


@checks.spelt_out
def timeline_figure(
    timeline: Timeline, *, title: str = "", begin: float = 0.0, end: float | None = None, most: int = MOST
) -> Figure:
    """Requests over time, and the blocks in use below, unless memory is unlimited.

    Parameters
    ----------
    timeline, begin, end, most
        As for `gantt`.
    title
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        To save, or to show.
    """
    from matplotlib.figure import Figure

    shown = chosen_requests(timeline, begin, end, most)
    if end is None:
        end = max((timeline.segments[i][-1].end_s for i in shown), default=1.0)
    with matplotlib.rc_context(STYLE):
        rows = 0.22 if len(shown) > 12 else 0.42
        height = 1.0 + max(rows * len(shown), 0.8)
        if timeline.steps["blocks_used"].any():
            figure = Figure(figsize=(8.6, height + 1.5), layout="constrained")
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
            gantt(timeline, ax=upper, begin=begin, end=end, most=most)
            blocks_in_use(timeline, ax=lower, begin=begin, end=end)
            upper.set_xlabel("")
        else:
            figure = Figure(figsize=(8.6, height + 0.3), layout="constrained")
            gantt(timeline, ax=figure.subplots(), begin=begin, end=end, most=most)
        if title:
            figure.suptitle(in_lines(title), fontsize=10.5, x=0.01, ha="left")
    return figure


def _time_axis(ax: Axes, timeline: Timeline, begin: float, last: float) -> None:
    ax.set_xlim(begin, last if last > begin else begin + 1)
    if timeline.clock == "step" and last - begin <= 30:
        from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

        steps = np.arange(int(begin), int(last))
        ax.xaxis.set_major_locator(FixedLocator([*steps, int(last)]))
        ax.xaxis.set_major_formatter(NullFormatter())
        ax.xaxis.set_minor_locator(FixedLocator(list(steps + 0.5)))
        ax.xaxis.set_minor_formatter(FixedFormatter([str(step) for step in steps]))
        ax.tick_params(axis="x", which="minor", length=0)
    else:
        plain_axis(ax, "x")


def _time_label(timeline: Timeline) -> str:
    return "Step" if timeline.clock == "step" else "Time (s)"
