"""Gaps between the tokens of a request, when they are asked for: the longest of each request, and how long all are.

A gap is what a user waits for the next token: the step that makes it, and before it whatever kept the request from
decoding: prefill steps of others, waiting for room in a lane, the way between instances, a preemption. The longest gaps
are exact; the lengths of all gaps of a lane are counted in bins that are 2 % wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .state import NO_END, Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

RATIO = 1.02  # upper to lower edge of a bin: its middle is within 1 % of all in it
LEAST_S, MOST_S = 1e-6, 1e6  # shorter and longer gaps are in the first and last bin
BINS = int(np.ceil(np.log(MOST_S / LEAST_S) / np.log(RATIO)))


def bin_of(gap_s: Floats) -> Ints:
    """The bin of each gap. [n]"""
    place = np.floor(np.log(np.maximum(gap_s, LEAST_S) / LEAST_S) / np.log(RATIO)).astype(np.int64)
    found: Ints = np.minimum(place, BINS - 1)
    return found


def middles_s() -> Floats:
    """The geometric middle of each bin. [BINS]"""
    middles: Floats = LEAST_S * np.power(RATIO, np.arange(BINS) + 0.5)
    return middles


def start(engine: Engine, lanes: Ints, index: Ints, cells: Ints, emits: bool) -> None:
    """Requests take the slots `index` of the flattened slots; with `emits` their prefill has just made a token, else
    they got their first one earlier. All [n]."""
    s, outcome = engine.state, engine.outcome
    longest = np.zeros(lanes.size)
    last = s.now[lanes] if emits else outcome.first_token_s[cells]
    if emits and engine.preempted:
        before = outcome.last_token_s[cells]
        again = (~np.isnan(before)).nonzero()[0]
        gap = last[again] - before[again]
        longest[again] = np.maximum(outcome.gap_s[cells[again]], gap)
        np.add.at(s.gap_counts, (lanes[again], bin_of(gap)), 1)
    s.slot_last.ravel()[index] = last
    s.slot_gap.ravel()[index] = longest


def keep(engine: Engine, index: Ints, cells: Ints) -> None:
    """Requests leave the slots `index`, finished or preempted. [n]"""
    s, outcome = engine.state, engine.outcome
    outcome.gap_s[cells] = s.slot_gap.ravel()[index]
    outcome.last_token_s[cells] = s.slot_last.ravel()[index]


def decode_step(engine: Engine, active: Bools, end: Floats) -> None:
    """All decoding requests of the lanes `active` emit a token at `end`. All [L]."""
    lanes = (active & (engine.state.decoding > 0)).nonzero()[0]
    if lanes.size:
        _first_gaps(engine, lanes, end[lanes], np.ones(lanes.size, np.bool_))
        engine.state.slot_last[lanes] = end[lanes][:, None]


def leap(engine: Engine, lanes: Ints | slice, steps: Floats, first: Floats, half: Floats, end: Floats) -> None:
    """All decoding requests of `lanes` emit `steps` tokens, the last at `end`; called before the clock moves. [n]"""
    s = engine.state
    rows = ((steps > 0) & (s.decoding[lanes] > 0)).nonzero()[0]
    if not rows.size:
        return
    lane = rows if isinstance(lanes, slice) else lanes[rows]
    steps, first, half, end = steps[rows], first[rows], half[rows], end[rows]
    begin = s.now[lane]
    free = s.slot_end[lane] == NO_END
    late = ~((s.slot_last[lane] == begin[:, None]) | free).all(axis=1)
    _first_gaps(engine, lane, begin + first, late)
    # Context grows, so of the further steps the last is the longest.
    longest = np.where(steps > 1, first + 2 * half * (steps - 1), 0)
    s.slot_gap[lane] = np.maximum(s.slot_gap[lane], longest[:, None])
    s.slot_last[lane] = end[:, None]
    _count(engine, lane, late.astype(np.float64), steps, first, 2 * half)


def _first_gaps(engine: Engine, lanes: Ints, end: Floats, counted: npt.NDArray[np.bool_]) -> None:
    """The gaps that end at `end`, each request's its own; those of `counted` lanes go into the counts. [n]"""
    s = engine.state
    gap = end[:, None] - s.slot_last[lanes]
    s.slot_gap[lanes] = np.maximum(s.slot_gap[lanes], gap)
    row, slot = ((s.slot_end[lanes] < NO_END) & counted[:, None]).nonzero()
    np.add.at(s.gap_counts, (lanes[row], bin_of(gap[row, slot])), 1)


def _count(engine: Engine, lanes: Ints, begin: Floats, steps: Floats, first: Floats, growth: Floats) -> None:
    """Count the steps begin ... steps - 1 of a leap, step j of first + growth j seconds, once a decoding request; all
    steps that share a bin in one go. [n]"""
    s = engine.state
    rows = (begin < steps).nonzero()[0]
    while rows.size:
        at, slope = begin[rows], growth[rows]
        place = bin_of(first[rows] + slope * at)
        edge = LEAST_S * RATIO ** (place + 1)
        steep = np.maximum(slope, 1e-300)
        end = np.where((slope > 0) & (place < BINS - 1), np.ceil((edge - first[rows]) / steep), np.inf)
        end = np.minimum(np.maximum(end, at + 1), steps[rows])
        lane = lanes[rows]
        np.add.at(s.gap_counts, (lane, place), (end - at) * s.decoding[lane])
        begin[rows] = end
        rows = rows[end < steps[rows]]
