"""Pictures of runs and searches; numbers apart from drawing."""

from .drawing import (
    blocks_in_use,
    curves,
    frontier,
    gantt,
    heatmap,
    over_time,
    over_time_figure,
    panels,
    pareto,
    timeline_figure,
)

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
