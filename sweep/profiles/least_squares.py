"""Least squares without negative unknowns."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats


def nonnegative(rows: Floats, values: Floats) -> Floats:
    """The x of at least 0 that make |rows x - values| smallest (Lawson and Hanson's active sets).

    Unknowns are freed one at a time, the one that helps most first, and those that fall below 0 are bound again. Their
    number is small here (up to about 60), where this takes a millisecond: no need of SciPy.

    Parameters
    ----------
    rows
        [R, K]
    values
        [R]

    Returns
    -------
    float64 [K]
    """
    scale = np.sqrt((rows * rows).sum(axis=0))
    scale[scale == 0] = 1.0
    a = rows / scale
    gram, target = a.T @ a, a.T @ values
    unknowns = a.shape[1]
    x = np.zeros(unknowns)
    free = np.zeros(unknowns, np.bool_)
    enough = 1e-11 * max(float(np.abs(target).max(initial=0.0)), 1e-300)
    for _ in range(3 * unknowns):
        pull = np.where(free, -np.inf, target - gram @ x)
        if free.all() or pull.max() <= enough:
            break
        free[pull.argmax()] = True
        while True:
            found = np.zeros(unknowns)
            found[free] = np.linalg.lstsq(a[:, free], values, rcond=None)[0]
            if (found[free] > 0).all():
                x = found
                break
            below = free & (found <= 0)
            share = (x[below] / np.maximum(x[below] - found[below], 1e-300)).min()
            x = x + share * (found - x)
            free &= ~(below & (x <= 1e-14 * max(float(x.max()), 1e-300)))
            x[~free] = 0.0
    solution: Floats = x / scale
    return solution
