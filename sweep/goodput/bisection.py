"""The search for the highest rate that meets a target, one configuration, as states: which rate is needed next, and
what follows from its outcome.

The rates are those of `metrics.max_rate`, computed scalar by scalar in the same order. As a state knows the rates that
could follow it, rates can be simulated before it is known whether they are needed: `likely_rates` chooses them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MOST_DOUBLINGS = 20  # of the upper end
LOWER_END, UPPER_END, HALVING = "lower end", "upper end", "halving"  # what is asked next
_PASSES = {LOWER_END: 0.99, UPPER_END: 0.05, HALVING: 0.5}  # the chance that the rate asked for passes
CONVERGED, UPPER_END_PASSES, LOWER_END_FAILS = "converged", "upper_end_passes", "lower_end_fails"  # how it ended
_SPREAD = 0.06  # of where an answer lies about where it is expected, as a share of the interval
_ABOUT = 0.12  # of where it lies about the expected rate, in logarithms: half of the answers are within 14 %
_NEAR = 0.5  # an interval whose ends differ by less, in logarithms; of wider ones less is known


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
    def decisions_left(self) -> int:
        """How often it is still to be told whether a rate passes, if its upper end fails."""
        ends = {LOWER_END: 2, UPPER_END: 1}.get(self.phase, 0)
        if self.rel_tol is None:
            return ends + max(self.halvings, 0)
        # Each halves the distance of the ends in logarithms.
        distance = math.log(self.hi / self.lo) / math.log1p(self.rel_tol)
        return ends + math.ceil(math.log2(max(distance, 1)))

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


class Ahead(NamedTuple):
    """A rate that a search may ask for: how likely that is, and the state that asks for it."""

    chance: float
    rate: float
    state: Search


def likely_rates(
    search: Search,
    attained: Mapping[float, float],
    target: float,
    count: int,
    *,
    expected: float | None = None,
    least: float = 0.0,
) -> list[Ahead]:
    """At most `count` rates without an outcome that a search is most likely to need next, the likeliest first, none
    less likely than `least`.

    The first is certainly needed. Where nothing is known of the interval, a halving goes either way with the same
    chance, so that 2^j - 1 rates are the middles of all intervals that the next j halvings can lead to. With the
    attainment at both ends known, it says where between them the target is likely to be. The lower end comes on top of
    `count`.

    search    a state without an outcome at its rate, or one that has ended
    attained  share of requests that meet the SLOs, by rate
    expected  about where the answer is thought to be, before anything is known
    """
    chance_to_pass = _chances(search, attained, target, expected)
    ahead: dict[float, Ahead] = {}
    order = 0  # among states of the same chance the earlier one comes first
    states = [(-1.0, order, search)]
    while states and len(ahead) < count:
        negative, _, state = heapq.heappop(states)
        if state.ended:
            continue
        if -negative < least:
            break
        rate = state.rate
        if rate not in ahead:
            ahead[rate] = Ahead(-negative, rate, state)
            count += state.phase == LOWER_END
        passes = chance_to_pass(state)
        for share, is_met in ((passes, True), (1 - passes, False)):
            if share > 0:
                order += 1
                heapq.heappush(states, (negative * share, order, state.after(is_met)))
    return list(ahead.values())


def walked(search: Search, attained: Mapping[float, float], target: float) -> tuple[Search, list[float]]:
    """The state that a search comes to with the outcomes known so far, and the rates that it asked for on the way."""
    asked = []
    while not search.ended and search.rate in attained:
        asked.append(search.rate)
        search = search.after(attained[search.rate] >= target)
    return search, list(dict.fromkeys(asked))


def next_to_answer(
    search: Search, asked: Sequence[float], attained: Mapping[float, float], target: float
) -> tuple[float | None, float | None]:
    """Of the rates that a search asked for, the highest that passes and the lowest above it that fails, if any."""
    passing = [rate for rate in asked if attained[rate] >= target and rate <= search.lo]
    failing = [rate for rate in asked if not attained[rate] >= target and rate >= search.lo]
    return max(passing, default=None), min(failing, default=None)


def _chances(
    search: Search, attained: Mapping[float, float], target: float, expected: float | None
) -> Callable[[Search], float]:
    """The chance that the rate of a later state passes. It decides what is simulated ahead, never an answer.

    Where the answer may lie is a logistic distribution of the logarithm of the rate, and a tenth of the chance for
    anywhere. In an interval that is still wide it lies about the rate that is `expected`. In a narrow one attainment
    falls about like a logistic function of the logarithm, so a straight line through the log-odds at both ends tells
    where the target is reached: measured, half of all answers lie within 6 % of the interval from there, four fifths
    within 15 %.
    """
    begin, width = math.log(search.lo), math.log(search.hi / search.lo)
    known = search.phase == HALVING and search.lo in attained and search.hi in attained
    above, below = (_log_odds(attained[rate]) for rate in (search.lo, search.hi)) if known else (0.0, 0.0)
    if above > below and (width < _NEAR or expected is None):
        centre = begin + width * (above - _log_odds(target)) / (above - below)
        spread = _SPREAD * width * (1 if width < _NEAR else 2)
    elif expected is not None:
        centre, spread = math.log(expected), _ABOUT
    else:
        return lambda state: _PASSES[state.phase]

    def before(rate: float) -> float:
        """The chance that the answer is below a rate."""
        place = math.log(rate)
        share = 0.5 + 0.5 * math.tanh((place - centre) / spread / 2)
        return 0.9 * share + 0.1 * (place - begin) / (width or 1)

    def passes(state: Search) -> float:
        if state.phase == LOWER_END:
            return _PASSES[LOWER_END]
        if state.phase == UPPER_END:
            return min(max(1 - before(state.hi), 0.02), 0.98)
        low, middle, high = map(before, (state.lo, state.rate, state.hi))
        return (high - middle) / (high - low) if high > low else 0.5

    return passes


def _log_odds(share: float) -> float:
    """Of a share, kept from the ends by a thousandth."""
    share = 0.0 if math.isnan(share) else share
    return math.log((share + 0.001) / (1 - share + 0.001))
