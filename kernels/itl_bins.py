"""Lengths of times between tokens, in bins that are 2 % wide."""

from __future__ import annotations

import numpy as np

from .arrays import Floats, Ints

RATIO = 1.02  # upper to lower edge of a bin: its middle is within 1 % of all in it
LEAST_S, MOST_S = 1e-6, 1e6  # shorter and longer ones are in the first and last bin
BINS = int(np.ceil(np.log(MOST_S / LEAST_S) / np.log(RATIO)))


def bin_of(itl_s: Floats) -> Ints:
    """The bin of each time. [n]"""
    place = np.floor(np.log(np.maximum(itl_s, LEAST_S) / LEAST_S) / np.log(RATIO)).astype(np.int64)
    found: Ints = np.minimum(place, BINS - 1)
    return found


def middles_s() -> Floats:
    """The geometric middle of each bin. [BINS]"""
    middles: Floats = LEAST_S * np.power(RATIO, np.arange(BINS) + 0.5)
    return middles
