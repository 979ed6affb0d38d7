"""How plots look: colours, markers, words and scales. Colours are those of Okabe and Ito, which survive colour
blindness; every curve has a marker of its own too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ..escapes import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#5a5a5a"
HEAT = "cividis"
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "savefig.dpi": 150,
    "text.parse_math": False,  # a name may hold a dollar
    "svg.hashsalt": "servesweep",  # the same numbers give the same file
}
_CAPITALS = {"ttft", "tpot", "e2e", "kv", "slo", "tp", "pp", "mfu", "mbu", "gpu", "gpus"}
_UNITS = {"share": "%", "requests/s": "req/s", "tokens/s": "tok/s"}
_ENDINGS = ("_s", "_ms", "_rps", "_tps")
_NAMES = {
    "output_rate_per_user_tps": "Tokens/s per user, 1 / median TPOT",
    "n_instances": "Instances",
    "n_prefill": "Prefill instances",
    "n_decode": "Decode instances",
    "request_rate_rps": "Offered request rate",
    "request_rate_per_gpu_rps": "Request rate kept per GPU",
}


def curve_style(place: int) -> dict[str, Any]:
    """Colour, marker and line of the curve number `place`; the first 64 all differ."""
    lines = ("-", "--", ":", "-.")
    size = len(COLOURS)
    return {
        # Thinner on top of thicker: curves that coincide are all seen.
        "markersize": max(7.0 - 0.9 * (place % size), 3.5),
        "linewidth": max(2.4 - 0.3 * (place % size), 1.0),
        "color": COLOURS[place % size],
        "marker": MARKERS[(place + place // size) % size],
        "linestyle": lines[place // size % len(lines)],
    }


def label(name: str, unit: str = "") -> str:
    """A column in words, with its unit: "ttft_p99_s", "ms" -> "TTFT p99 (ms)"."""
    words = _NAMES.get(name)
    if words is None:
        name = one_line(name)
        stem = next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
        parts = [part.upper() if part in _CAPITALS else part for part in stem.split("_")]
        words = " ".join(parts).replace("per GPU", "per GPU")
        words = words if words[:1].isupper() else words[:1].upper() + words[1:]
    unit = _UNITS.get(unit, unit)
    return f"{words} ({unit})" if unit not in ("", "1", "instances") else words


def in_lines(title: str, width: int = 95) -> str:
    """A title in lines of so many characters, at most three of them, that fit the width of a figure.

    >>> in_lines("cell 1a, request_rate_rps 4", 20)
    'cell 1a,\\nrequest_rate_rps 4'
    """
    return textwrap.fill(title, width, max_lines=3, placeholder=" ...", break_on_hyphens=False)


def scaled(values: Any, unit: str) -> tuple[float, str]:
    """A factor and a unit that suit the size of some values: shares in percent, times below 10 s in ms."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    if unit == "share":
        return 100.0, "%"
    if unit == "s" and finite.size and finite.max() < 10:
        return 1000.0, "ms"
    return 1.0, unit


def is_geometric(values: Any) -> bool:
    """Whether distinct values are spread by factors rather than by differences."""
    found = np.unique(np.asarray(values, float))
    found = found[np.isfinite(found)]
    if len(found) < 3 or found[0] <= 0:
        return False
    steps, factors = np.diff(found), np.diff(np.log(found))
    return bool(factors.std() / factors.mean() < steps.std() / steps.mean())


def plain_log_axis(ax: Axes, which: str, at: Sequence[float] = ()) -> None:
    """A logarithmic axis whose ticks are plain numbers: at some values, or where there is room for them."""
    axis = getattr(ax, f"{which}axis")
    getattr(ax, f"set_{which}scale")("log")
    if at:
        axis.set_major_locator(_fixed(at))
        axis.set_minor_locator(NullLocator())
    else:
        low, high = sorted(getattr(ax, f"get_{which}lim")())
        subs = (1.0,) if high / low > 1000 else (1.0, 3.0) if high / low > 100 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=10, subs=subs))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def plain_axis(ax: Axes, which: str, at: Sequence[float] = ()) -> None:
    """A linear axis with plain numbers, at some values if there are few."""
    axis = getattr(ax, f"{which}axis")
    axis.set_major_locator(_fixed(at) if at else MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def ticks(values: Any, most: int = 9) -> list[float]:
    """Distinct values if they can all be ticks, else none."""
    found = np.unique(np.asarray(values, float))
    return [] if len(found) > most else [float(value) for value in found]


def _fixed(at: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(list(at))
