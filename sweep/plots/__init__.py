"""Pictures of runs and searches; numbers apart from drawing.

Every function takes a table of a run, or a timeline, and, if you like, the axes to draw on, and returns the axes. The
numbers that it draws are those of the function of the same name in `servesweep.plots.numbers`, in the units of the
tables.

    import servesweep
    from servesweep import plots

    ax = plots.curves(servesweep.load("results/quickstart"), "ttft_p99_s")
    ax.figure.savefig("ttft.png")
"""

from .cell_over_time import over_time, over_time_figure
from .drawing import curves, frontier, heatmap, pareto
from .figures import PlotKind, panels
from .timeline import blocks_in_use, gantt, timeline_figure

__all__ = [
    "PlotKind",
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
