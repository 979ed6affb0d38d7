"""The window of a run that counts, and means and percentiles of many rows at once.

R systems (rows), N requests of the longest, W columns that some window touches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Bools, Floats, Ints
from ..checks import is_number


class MeasurementWindow:
    """Which requests of each system count: all but the first int(n * warmup) and the last int(n * cooldown) arrived.

    Requests are ordered by (arrival, position). Where every row is in that order already, the window is a range of
    columns; otherwise rows are ranked first.

    Parameters
    ----------
    arrival
        Seconds, [R, N]; NaN from n on.
    n
        Requests of each row, [R].
    warmup, cooldown
        Shares in [0, 1].
    """

    def __init__(self, arrival: Floats, n: Ints, warmup: float, cooldown: float) -> None:
        width = arrival.shape[1]
        begin = (n * warmup).astype(np.int64)
        end = n - (n * cooldown).astype(np.int64)
        self.size: Ints = np.maximum(end - begin, 0)  # [R]
        self.columns = slice(0, width)  # no request outside these columns is in a window
        self.inside: Bools | None = None  # [R, columns]; None: all of them
        self.first_arrival_s: Floats = np.full(len(n), np.nan)  # [R]
        if width == 0 or len(n) == 0:
            return
        # Padding is NaN and never compares as smaller.
        unsorted = np.any(arrival[:, 1:] < arrival[:, :-1], axis=1)
        place: Ints = np.arange(width)[None]
        self.first_arrival_s = np.where(n > 0, arrival[:, 0], np.nan)
        if unsorted.any():
            order = np.argsort(arrival[unsorted], axis=1, kind="stable")
            self.first_arrival_s[unsorted] = np.take_along_axis(arrival[unsorted], order[:, :1], axis=1)[:, 0]
            place = np.repeat(place, len(n), axis=0)
            ranks = np.empty_like(order)
            np.put_along_axis(ranks, order, np.arange(width)[None], axis=1)
            place[unsorted] = ranks
        else:
            first = int(begin.min())
            self.columns = slice(first, max(first, int(end.max())))
            if begin.max() == begin.min() and end.max() == end.min():
                return
            place = place[:, self.columns]
        self.inside = (place >= begin[:, None]) & (place < end[:, None])

    def count(self, flags: Bools) -> Ints:
        """How many requests of each window have the flag [R, N] set: int64 [R]."""
        flags = flags[:, self.columns]
        counts: Ints = np.count_nonzero(flags if self.inside is None else flags & self.inside, axis=1)
        return counts

    def sorted(self, values: Floats) -> tuple[Floats, Ints]:
        """The window's values, each row ascending with NaN last, and how many of a row are not NaN.

        `values` [R, N] is overwritten.
        """
        values = values[:, self.columns]
        if self.inside is not None:
            values[~self.inside] = np.nan
        values.sort(axis=1)
        return values, values.shape[1] - np.count_nonzero(np.isnan(values), axis=1)


def row_percentiles(values: Floats, count: Ints, q: Floats) -> Floats:
    """Percentiles of the first `count` [R] values of each ascending row [R, W]: float64 [R, len(q)], NaN for none.

    The operations, and so the bits, are those of `numpy.percentile` with its linear interpolation
    (`_lerp` in numpy/lib/_function_base_impl.py), which works from the nearer neighbour.
    """
    if values.shape[1] == 0:
        return np.full((len(count), len(q)), np.nan)
    last = np.maximum(count - 1, 0)[:, None]
    virtual = last * (q / 100)
    below = np.floor(virtual)
    index = below.astype(np.intp)
    a = np.take_along_axis(values, index, axis=1)
    b = np.take_along_axis(values, np.minimum(index + 1, last), axis=1)
    weight = virtual - below
    step = b - a
    points: Floats = a + step * weight
    np.subtract(b, step * (1 - weight), out=points, where=weight >= 0.5)
    points[count == 0] = np.nan
    return points


def row_means(values: Floats, count: Ints) -> Floats:
    """The mean of the first `count` [R] values of each row [R, W]: float64 [R], NaN for none.

    A running sum, because the rounding of `numpy.sum` depends on the width of the row and so on the padding.
    """
    if values.shape[1] == 0:
        return np.full(len(count), np.nan)
    sums = np.take_along_axis(np.cumsum(values, axis=1), np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    return ratio(sums, count)


def ratio(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Floats:
    """numerator / denominator, NaN where the denominator is 0 or unknown."""
    quotient: Floats = np.full(len(denominator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def check_shares(warmup: float, cooldown: float) -> None:
    """ValueError for a share of the requests that is not in [0, 1]."""
    for name, share in (("warmup", warmup), ("cooldown", cooldown)):
        if not (is_number(share) and 0 <= share <= 1):
            raise ValueError(f"{name}={share!r}: must be a share of the requests in [0, 1]")
