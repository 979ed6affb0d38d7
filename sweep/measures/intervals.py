"""How sure a share is that was measured on so many requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Floats

_Z = 1.959963984540054  # of a two-sided interval of 95 %


def wilson_interval(attainment: Any, requests: Any) -> tuple[Floats, Floats]:
    """The 95 % interval of a share of independent requests: E. B. Wilson, JASA 22 (1927).

    It never leaves [0, 1], and has a width even where all requests agree.

    Parameters
    ----------
    attainment
        Shares, of any shape.
    requests
        How many requests each is a share of.

    Returns
    -------
    tuple of float64 arrays
        Lower and upper ends; NaN where there are no requests.
    """
    share, n = np.asarray(attainment, np.float64), np.asarray(requests, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = 1 + _Z**2 / n
        centre = (share + _Z**2 / (2 * n)) / scale
        half = _Z * np.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n)) / scale
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)
