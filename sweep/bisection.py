"""The search for the highest rate that meets a target, one configuration, as states: which rate is needed next, and
what follows from its outcome.

The rates are those of `metrics.max_rate`, computed scalar by scalar in the same order. As a state knows the rates that
could follow it, rates can be simulated before it is known whether they are needed: `likely_rates` chooses them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

MOST_DOUBLINGS = 20  # of the upper end
LOWER_END, UPPER_END, HALVING = "lower end", "upper end", "halving"  # what is asked next
_PASSES = {LOWER_END: 0.99, UPPER_END: 0.05, HALVING: 0.5}  # the chance that the rate asked for passes
CONVERGED, UPPER_END_PASSES, LOWER_END_FAILS = "converged", "upper_end_passes", "lower_end_fails"  # how it ended


@dataclass(frozen=True, slots=True)
class Search:
    """Where a search is.

    lo, hi     the ends of the interval, requests/s
    halvings   halvings that are left; without effect when there is a rel_tol
    rel_tol    halve until hi / lo - 1 is at most this; None: `halvings` times
    doublings  times that an upper end that passes may still be doubled
    phase      what is asked next, or how the search ended
    """

    lo: float
    hi: float
    halvings: int
    rel_tol: float | None = None
    doublings: int = 0
    phase: str = LOWER_END

    @property
    def ended(self) -> bool:
        return self.phase not in (LOWER_END, UPPER_END, HALVING)

    @property
    def rate(self) -> float:
        """The rate whose outcome decides what comes next."""
        if self.phase == LOWER_END:
            return self.lo
        return self.hi if self.phase == UPPER_END else math.sqrt(self.lo * self.hi)

    def after(self, is_met: bool) -> Search:
        """The search when the outcome at `rate` is known."""
        if self.phase == LOWER_END:
            return replace(self, phase=UPPER_END if is_met else LOWER_END_FAILS)
        if self.phase == UPPER_END:
            if not is_met:
                return self._halving()
            if not self.doublings:
                return replace(self, lo=self.hi, phase=UPPER_END_PASSES)
            return replace(self, lo=self.hi, hi=2 * self.hi, doublings=self.doublings - 1)
        middle = self.rate
        halved = replace(self, lo=middle) if is_met else replace(self, hi=middle)
        return replace(halved, halvings=self.halvings - 1)._halving()

    def _halving(self) -> Search:
        done = self.halvings <= 0 if self.rel_tol is None else self.hi / self.lo - 1 <= self.rel_tol
        return replace(self, phase=CONVERGED if done else HALVING)


def walk(search: Search, met: Mapping[float, bool]) -> Iterator[Search]:
    """The states that a search goes through with the outcomes known so far; the last one has ended, or lacks its rate.

    met  outcome by rate
    """
    yield search
    while not search.ended and search.rate in met:
        search = search.after(met[search.rate])
        yield search


def likely_rates(search: Search, met: Mapping[float, bool], count: int) -> list[float]:
    """At most `count` rates without an outcome that a search is most likely to need next, the likeliest first.

    The first is certainly needed. A halving goes either way with the same chance, so that 2^j - 1 rates are the middles
    of all intervals that the next j halvings can lead to. The lower end comes on top of `count`.
    """
    rates: list[float] = []
    order = 0  # among states of the same chance the earlier one comes first
    states = [(-1.0, order, search)]
    while states and len(rates) < count:
        negative, _, state = heapq.heappop(states)
        if state.ended:
            continue
        rate = state.rate
        if rate in met:
            branches = [(1.0, met[rate])]
        else:
            if rate not in rates:
                rates.append(rate)
                count += state.phase == LOWER_END
            passes = _PASSES[state.phase]
            branches = [(passes, True), (1 - passes, False)]
        for share, is_met in branches:
            order += 1
            heapq.heappush(states, (negative * share, order, state.after(is_met)))
    return rates
