"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from ..tables.atomic_write import write_whole
from .style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as its file's name says, PNG or SVG, whole or not at all. The same figure gives the same bytes."""
    form = path.suffix[1:]
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context(STYLE):
        write_whole(path, lambda file: figure.savefig(file, format=form, metadata=metadata))
