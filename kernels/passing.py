"""Phase *pass*: finishes that change nothing but counters, several in one go.

While nobody waits and nobody is in prefill, a finish is not a decision: the others decode on. Which requests finish
next, and when, is known, so the times of a few finishes are a sum along them of what a leap between two of them takes
(leap.py). Those that come before the next arrival are passed; the leap that follows begins behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .finish import leave
from .leap import lines
from .slots import end_of, next_end, next_to_finish, request_of
from .state import NOTHING, ONE, ZERO, Floats

if TYPE_CHECKING:
    from .engine import Engine

_EARLIER = np.arange(4.0)[:, None]  # finishes before the first, the second, ... of those that are looked at together


def pass_finishes(engine: Engine) -> None:
    """Move every lane in which nobody waits past the finishes that come before its next arrival, some at most."""
    p, s, t = engine.params, engine.state, engine.traffic
    alone = (s.head_arrival > s.now) & (s.decoding > ZERO)  # past the horizon of a router nothing ends before it
    if engine.budgets:
        alone &= s.left == NOTHING
    if engine.waits:
        alone &= s.lane_head == s.joined
    lanes = alone.nonzero()[0]
    if not lanes.size:
        return

    index, slot, decoding = next_to_finish(engine, lanes, _EARLIER)
    end = end_of(slot)
    total = t.total[p.row[lanes] + request_of(slot)]
    steps = end - s.tick[lanes]
    steps[1:] -= steps[:-1].copy()
    grown = steps * decoding
    after = grown - total
    after[0] += s.context[lanes]
    _add_up(after)
    before = after + total  # context, at the very end of a request
    first, half, most = lines(engine, lanes, decoding, before - grown)
    time = steps * (first + half * (steps - ONE))
    time[0] += s.now[lanes]
    _add_up(time)

    until = s.head_arrival[lanes]
    if engine.router is not None:
        until = np.minimum(until, s.horizon[lanes])
    # The last finish is left to a leap: what that notes of the blocks is what the next request is admitted by.
    passed = (time < until) & (decoding > ZERO) & (end < end_of(s.slots[lanes, 1]))
    if most is not None:
        passed &= steps <= most
    if engine.paged:
        # Where an upper bound of the blocks is above the peak or the memory, they are counted in a leap.
        bound = before * p.blocks_per_token[lanes] + decoding * p.blocks_in_doubt[lanes]
        passed &= (bound <= s.peak[lanes]) & (p.num_blocks[lanes] - bound - decoding >= ZERO)
    for later in range(1, passed.shape[0]):
        passed[later] &= passed[later - 1]
    number = passed.sum(axis=0)
    rows = number.nonzero()[0]
    if not rows.size:
        return

    if engine.reserve:
        reserved = s.reserved[lanes] - (total.cumsum(axis=0) - total)
        s.silent_blocks[lanes] += (steps * reserved * passed).sum(axis=0)
    found = passed.ravel().nonzero()[0]
    lane, request = lanes[found % lanes.size], request_of(slot.ravel()[found])
    of_found = (values.ravel()[found] for values in (total, end, time, index))
    leave(engine, lane, request, *of_found)

    last = (number[rows] - 1) * lanes.size + rows
    lanes, number = lanes[rows], number[rows]
    tick, left = end.ravel()[last], s.decoding[lanes] - number
    if engine.reserve:
        s.woken[lanes] &= tick == s.tick[lanes]
    s.now[lanes] = time.ravel()[last]
    s.tick[lanes] = tick
    s.context[lanes] = after.ravel()[last]
    s.decoding[lanes] = left
    s.running[lanes] -= number
    s.next_end[lanes] = next_end(engine, lanes, left)
    s.tight[lanes] = False


def _add_up(values: Floats) -> None:
    """Make them sums along the first axis, in order: with a few long rows ten times faster than cumsum."""
    for later in range(1, values.shape[0]):
        values[later] += values[later - 1]
