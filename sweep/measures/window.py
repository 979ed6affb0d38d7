"""The window of a run that counts, and means and percentiles of many rows at once.

Letters: R lanes (rows), N requests of the longest, W columns that some window touches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Window:
    """Which requests of each lane count: all but the first int(n * warmup) and the last int(n * cooldown) arrived.

    Requests are ordered by (arrival, position). Where every row is in that order already, the window is a range of
    columns; otherwise rows are ranked first.

    Args:
        arrival: seconds, [R, N]; NaN from n on.
        n: requests of each row, [R].
        warmup, cooldown: shares in [0, 1].
    """

    def __init__(self, arrival: FloatArray, n: IntArray, warmup: float, cooldown: float) -> None:
        width = arrival.shape[1]
        begin = (n * warmup).astype(np.int64)
        end = n - (n * cooldown).astype(np.int64)
        self.size: IntArray = np.maximum(end - begin, 0)  # [R]
        self.columns = slice(0, width)  # no request outside these columns is in a window
        self.inside: BoolArray | None = None  # [R, columns]; None: all of them
        self.first_arrival_s: FloatArray = np.full(len(n), np.nan)  # [R]
        if width == 0 or len(n) == 0:
            return
        # Padding is NaN and never compares as smaller.
        unsorted = np.any(arrival[:, 1:] < arrival[:, :-1], axis=1)
        place: IntArray = np.arange(width)[None]
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

    def count(self, flags: BoolArray) -> IntArray:
        """How many requests of each window have the flag [R, N] set: int64 [R]."""
        flags = flags[:, self.columns]
        counts: IntArray = np.count_nonzero(flags if self.inside is None else flags & self.inside, axis=1)
        return counts

    def sorted(self, values: FloatArray) -> tuple[FloatArray, IntArray]:
        """The window's values, each row ascending with NaN last, and how many of a row are not NaN.

        `values` [R, N] is overwritten.
        """
        values = values[:, self.columns]
        if self.inside is not None:
            values[~self.inside] = np.nan
        values.sort(axis=1)
        return values, values.shape[1] - np.count_nonzero(np.isnan(values), axis=1)


def row_percentiles(values: FloatArray, count: IntArray, q: FloatArray) -> FloatArray:
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
    points: FloatArray = a + step * weight
    np.subtract(b, step * (1 - weight), out=points, where=weight >= 0.5)
    points[count == 0] = np.nan
    return points


def row_means(values: FloatArray, count: IntArray) -> FloatArray:
    """The mean of the first `count` [R] values of each row [R, W]: float64 [R], NaN for none.

    A running sum, because the rounding of `numpy.sum` depends on the width of the row and so on the padding.
    """
    if values.shape[1] == 0:
        return np.full(len(count), np.nan)
    sums = np.take_along_axis(np.cumsum(values, axis=1), np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    return ratio(sums, count)


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> FloatArray:
    """numerator / denominator, NaN where the denominator is 0 or unknown."""
    quotient: FloatArray = np.full(len(denominator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient
