"""Ranges of requests of many lanes, laid end to end, and searches in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import ALL, Bools, Ints

_NEXT = np.arange(1, 9)[:, None]


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranges first, first + 1, ... of `count` each, count [L], laid end to end: (lane, value, place in the range)."""
    lanes = count.nonzero()[0]
    first, count = first[lanes], count[lanes]
    last = count.cumsum()
    if not lanes.size or last[-1] == lanes.size:
        return lanes, first, np.zeros(lanes.size, np.int64)
    lanes = lanes.repeat(count)
    place = np.arange(lanes.size) - (last - count).repeat(count)
    return lanes, first.repeat(count) + place, place


def largest(good: Ints, bad: Ints, test: Callable[[Ints | slice, Ints], Bools]) -> Ints:
    """The largest number that passes, per row, of tests that only turn from true to false as the number grows.

    `good` is known to pass and `bad` to fail, both [n]; `test(rows, numbers)` tries some: [*, n], with what belongs to
    a row in its last axis. A few numbers are tried in one go. Nearly always the answer is among the next ones; only
    then others, further and further apart while all of them pass, and closer again.
    """
    most = bad - 1
    passed = test(ALL, np.minimum(good + _NEXT, most)).sum(axis=0)
    good = np.minimum(good + passed, most)
    rows = ((passed == _NEXT.size) & (good < most)).nonzero()[0]
    stride = np.full(rows.size, _NEXT.size)
    while rows.size:
        low, high = good[rows], most[rows]
        passed = test(rows, np.minimum(low + stride * _NEXT, high)).sum(axis=0)
        low = np.minimum(low + stride * passed, high)
        further = passed == _NEXT.size
        high = np.where(further, high, np.minimum(high, low + stride - 1))
        good[rows], most[rows] = low, high
        stride = np.where(further, stride * _NEXT.size, stride // _NEXT.size)
        unsure = (low < high).nonzero()[0]
        rows, stride = rows[unsure], stride[unsure]
    return good
