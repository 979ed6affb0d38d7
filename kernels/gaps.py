"""Gaps between the tokens of a request, when they are asked for: the longest of each request, and how long all are.

A gap is what a user waits for the next token: the step that makes it, and before it whatever kept the request from
decoding: prefill steps of others, waiting for room in a lane, the way between instances, a preemption. The longest gaps
are exact; the lengths of all gaps of a lane are counted in bins that are 2 % wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .queue import spread
from .slots import request_of
from .state import Bools, Floats, Ints

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


def start(engine: Engine, lanes: Ints, cells: Ints, emits: bool) -> None:
    """Requests begin to decode; with `emits` their prefill has just made a token, else they got their first one
    earlier. All [n]."""
    s, outcome = engine.state, engine.outcome
    if not emits:
        outcome.gap_s[cells], outcome.last_token_s[cells] = 0, outcome.first_token_s[cells]
        return
    now = s.now[lanes]
    gap = np.zeros(lanes.size)
    again = (~np.isnan(outcome.last_token_s[cells])).nonzero()[0]  # preempted since
    if again.size:
        gap[again] = now[again] - outcome.last_token_s[cells[again]]
        np.add.at(s.gap_counts, (lanes[again], bin_of(gap[again])), 1)
    outcome.gap_s[cells] = np.fmax(outcome.gap_s[cells], gap)
    outcome.last_token_s[cells] = now


def decode_step(engine: Engine, active: Bools, end: Floats) -> None:
    """All decoding requests of the lanes `active` emit a token at `end`. All [L]."""
    lanes = active.nonzero()[0]
    row, cells = _decoding(engine, lanes)
    if cells.size:
        lane = lanes[row]
        gap = _first_gaps(engine, cells, end[lane])
        np.add.at(engine.state.gap_counts, (lane, bin_of(gap)), 1)
        engine.outcome.last_token_s[cells] = end[lane]


def leap(engine: Engine, steps: Floats, first: Floats, half: Floats, end: Floats) -> None:
    """All decoding requests of every lane emit `steps` tokens, the last at `end`; called before the clock moves.
    [L]"""
    s, last = engine.state, engine.outcome.last_token_s
    lanes = ((steps > 0) & (s.decoding > 0)).nonzero()[0]
    if not lanes.size:
        return
    steps, first, half, begin = steps[lanes], first[lanes], half[lanes], s.now[lanes]
    row, cells = _decoding(engine, lanes)
    late = np.bincount(row, last[cells] != begin[row], lanes.size) > 0
    gap = _first_gaps(engine, cells, (begin + first)[row])
    counted = late[row].nonzero()[0]
    np.add.at(s.gap_counts, (lanes[row[counted]], bin_of(gap[counted])), 1)
    # Context grows, so of the further steps the last is the longest.
    longest = np.where(steps > 1, first + 2 * half * (steps - 1), 0)
    engine.outcome.gap_s[cells] = np.maximum(engine.outcome.gap_s[cells], longest[row])
    last[cells] = end[lanes][row]
    _count(engine, lanes, late.astype(np.float64), steps, first, 2 * half)


def _decoding(engine: Engine, lanes: Ints) -> tuple[Ints, Ints]:
    """Decoding requests of `lanes` [n]: the place of the lane in `lanes`, and the cell. Both [requests]"""
    s = engine.state
    row, place, _ = spread(lanes * engine.slots + 1, s.decoding[lanes].astype(np.int64))
    return row, engine.cells(lanes[row], request_of(s.slots.ravel()[place]))


def _first_gaps(engine: Engine, cells: Ints, end: Floats) -> Floats:
    """The gaps that end at `end`, each request's own. All [n]."""
    outcome = engine.outcome
    gap: Floats = end - outcome.last_token_s[cells]
    outcome.gap_s[cells] = np.maximum(outcome.gap_s[cells], gap)
    return gap


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
