"""The search for constants: candidates around a place, a curved surface through what they are off, its lowest point,
and again, closer.

What a request is off jumps where it just misses a step, so that a single candidate says little; surfaces are through
many.
C candidates; K constants, each a place from 0 to 1; R residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Floats, Ints

ALIKE = 30  # requests that are off together, as they were in the same steps, and count as one
NOISE = 5e-4  # of a request, at least
WIDTHS = (
    *(0.3, 0.2, 0.13, 0.08, 0.05, 0.03, 0.05, 0.03, 0.05, 0.03, 0.02, 0.012),
    *(0.02, 0.012, 0.007, 0.004, 0.002, 0.001, 0.0005),
)
"""How far candidates are from the place of each round: closer, and further again, as each round's is a better one."""
SMOOTH = 0.03  # width from which on slopes are of what requests do on average, not of single jumps

Off = Callable[[Floats], Floats]


class Likely(NamedTuple):
    """Where constants are thought to be: keeps those that the data say nothing of."""

    start: Floats  # [K]
    spread: Floats  # [K]


@dataclass
class Search:
    """Where the search has come to."""

    place: Floats  # [K]
    cost: float
    residuals: Floats  # [R]
    slopes: Floats  # [K, R], how residuals change with each place
    noise: Floats  # [R]


def search(off: Off, groups: Ints, likely: Likely, *, candidates: int, seed: int) -> Search:
    """The best place that is found from where it is likely to be."""
    start = likely.start
    rng = np.random.default_rng(seed)
    at = start
    tried: list[Floats] = [start]
    slopes, scatter = np.zeros((start.size, groups.size)), np.zeros(groups.size)
    for width in WIDTHS:
        low, high = np.maximum(at - width, 0.0), np.minimum(at + width, 1.0)
        places = np.vstack([at, low + rng.random((candidates - 1, start.size)) * (high - low)])
        surface = Surface(places, off(places), groups, at, width)
        at = surface.lowest(likely, low, high)
        tried.append(at)
        if width >= SMOOTH:
            slopes, scatter = surface.slopes(at), surface.scatter
    places = np.array(tried)
    residuals = off(places)
    noise = spread_of(residuals[-1], groups)
    cost = costs(residuals, places, likely, noise)
    best = int(cost.argmin())
    noise = np.hypot(scatter, spread_of(residuals[best], groups))
    return Search(places[best], float(cost[best]), residuals[best], slopes, noise)


class Surface:
    """What candidates around a place are off, as a polynomial of second degree for each residual."""

    def __init__(self, places: Floats, residuals: Floats, groups: Ints, at: Floats, width: float) -> None:
        self._at, self._width, size = at, width, at.size
        self._pairs = [(i, j) for i in range(size) for j in range(i, size)]
        terms = self._terms((places - at) / width)
        if len(places) < 2 * terms.shape[1]:  # too few for a curved one
            self._pairs = []
            terms = self._terms((places - at) / width)
        self._factors = np.linalg.lstsq(terms, residuals, rcond=None)[0]  # [terms, R]
        self._groups = groups
        free = max(len(places) - terms.shape[1], 1)
        self.scatter: Floats = np.sqrt(((terms @ self._factors - residuals) ** 2).sum(axis=0) / free)  # [R]

    def _terms(self, x: Floats) -> Floats:
        """[..., K] -> [..., terms]"""
        squares = [x[..., i] * x[..., j] for i, j in self._pairs]
        return np.stack([np.ones(x.shape[:-1]), *np.moveaxis(x, -1, 0), *squares], axis=-1)

    def off(self, place: Floats) -> Floats:
        """Residuals there. [K] -> [R]"""
        found: Floats = self._terms((place - self._at) / self._width) @ self._factors
        return found

    def slopes(self, place: Floats) -> Floats:
        """How they change. [K] -> [K, R]"""
        x, size = (place - self._at) / self._width, place.size
        factors = np.zeros((size, self._factors.shape[0]))
        factors[:, 1 : size + 1] = np.eye(size)
        for number, (i, j) in enumerate(self._pairs, size + 1):
            factors[i, number] += x[j]
            factors[j, number] += x[i]
        found: Floats = factors @ self._factors / self._width
        return found

    def lowest(self, likely: Likely, low: Floats, high: Floats) -> Floats:
        """The place within bounds that costs least, from where it was made."""
        place = self._at
        here = self.off(place)
        noise = np.hypot(self.scatter, spread_of(here, self._groups))
        for _ in range(12):
            slopes, weight = self.slopes(place), weights(here, noise)
            matrix = (slopes * weight) @ slopes.T + np.diag(likely.spread**-2)
            pull = -(slopes * weight) @ here + (likely.start - place) / likely.spread**2
            step = bounded_step(matrix, pull, low - place, high - place)
            shares = place + np.array([1.0, 0.5, 0.25, 0.1])[:, None] * step
            found = np.array([self.off(one) for one in shares])
            cost = costs(np.vstack([here, found]), np.vstack([place, shares]), likely, noise)
            best = int(cost.argmin())
            if best == 0:
                break
            place, here = shares[best - 1], found[best - 1]
            if np.abs(step).max() < 1e-3 * self._width:
                break
        return place


def spread_of(residuals: Floats, groups: Ints) -> Floats:
    """How far residuals of a group are from what is usual in it; that all are off together is for constants to mend.
    [R]"""
    parts = [residuals[groups == group] for group in range(groups.max() + 1)]
    found = np.array([np.median(np.abs(part - np.median(part))) for part in parts])
    spread: Floats = np.maximum(1.4826 * found, NOISE)[groups]
    return spread


def weights(residuals: Floats, noise: Floats) -> Floats:
    """Weights of residuals: less for those that are far off, which other things than the constants explain."""
    found: Floats = 1 / np.sqrt(1 + (residuals / (3 * noise)) ** 2) / (ALIKE * noise**2)
    return found


def costs(residuals: Floats, places: Floats, likely: Likely, noise: Floats) -> Floats:
    """What candidates cost. [C]"""
    part = 18 * (np.sqrt(1 + (residuals / (3 * noise)) ** 2) - 1)
    prior = ((places - likely.start) / likely.spread) ** 2
    found: Floats = part.sum(axis=1) / ALIKE + prior.sum(axis=1)
    return found


def bounded_step(matrix: Floats, pull: Floats, low: Floats, high: Floats) -> Floats:
    """The step x in [low, high] that makes x matrix x / 2 - pull x smallest, one place after the other. [K]"""
    x = np.zeros(pull.size)
    for _ in range(200):
        before = x.copy()
        for k in range(x.size):
            x[k] += (pull[k] - matrix[k] @ x) / matrix[k, k]
            x[k] = min(max(x[k], low[k]), high[k])
        if np.abs(x - before).max() < 1e-9:
            break
    return x
