"""Phase *finish ahead*: finishes that change nothing but counters, several in one go.

While nobody waits and nobody is in prefill, a finish is not a decision: the others decode on. Which requests finish
next, and when, is known, so the times of a few finishes are a sum along them of what a leap between two of them takes
(leaping.py). Those that come before the next arrival are passed; the leap that follows begins behind them.
"""

from __future__ import annotations

import numpy as np

from .arrays import ONE, ZERO, Floats
from .batch import Batch
from .finishing import leave
from .lines import step_time_lines
from .prefills import NO_PREFILL
from .slots import end_of, request_of

_EARLIER = np.arange(4.0)[:, None]  # finishes before the first, the second, ... of those that are looked at together


def finish_ahead(batch: Batch) -> None:
    """Move every lane in which nobody waits past the finishes that come before its next arrival, some at most."""
    p, clock, decodes, reserved = batch.params, batch.clock, batch.decodes, batch.reserved_memory
    # Past the horizon of a router nothing ends before it.
    alone = (batch.queue.head_arrival > clock.now) & (decodes.decoding > ZERO)
    if batch.budgets:
        alone &= batch.prefills.prefill_left == NO_PREFILL
    if reserved.any_waits:
        alone &= reserved.decode_queue_head == reserved.prefilled_end
    lanes = alone.nonzero()[0]
    if not lanes.size:
        return

    index, slot, decoding = decodes.next_to_finish(lanes, _EARLIER)
    end = end_of(slot)
    total = batch.requests.total[p.row[lanes] + request_of(slot)]
    steps = end - clock.tick[lanes]
    steps[1:] -= steps[:-1].copy()
    grown = steps * decoding
    after = grown - total
    after[0] += decodes.context[lanes]
    _add_up(after)
    before = after + total  # context, at the very end of a request
    first_step_s, half_slope_s, steps_to_crossover = step_time_lines(batch, lanes, decoding, before - grown)
    time = steps * (first_step_s + half_slope_s * (steps - ONE))
    time[0] += clock.now[lanes]
    _add_up(time)

    until = batch.queue.head_arrival[lanes]
    if batch.router is not None:
        until = np.minimum(until, batch.inflow.horizon[lanes])
    # The last finish is left to a leap: what that notes of the blocks is what the next request is admitted by.
    passed = (time < until) & (decoding > ZERO) & (end < decodes.last_end(lanes))
    if steps_to_crossover is not None:
        passed &= steps <= steps_to_crossover
    if batch.paged:
        passed &= batch.memory.sure_to_fit(lanes, before, decoding)  # otherwise a leap counts blocks
    for later in range(1, passed.shape[0]):
        passed[later] &= passed[later - 1]
    number = passed.sum(axis=0)
    rows = number.nonzero()[0]
    if not rows.size:
        return

    if batch.reserve:
        held = reserved.reserved[lanes] - (total.cumsum(axis=0) - total)
        batch.counts.hold_at(lanes, (steps * held * passed).sum(axis=0))
    found = passed.ravel().nonzero()[0]
    lane, request = lanes[found % lanes.size], request_of(slot.ravel()[found])
    of_found = (values.ravel()[found] for values in (total, end, time, index))
    leave(batch, lane, request, *of_found)

    last = (number[rows] - 1) * lanes.size + rows
    lanes = lanes[rows]
    if batch.reserve:
        clock.start_step_at(lanes, end.ravel()[last])
    clock.leap_to(lanes, time.ravel()[last], end.ravel()[last])
    decodes.leap_to(lanes, number[rows], after.ravel()[last])
    if batch.paged:
        batch.memory.forget(lanes)


def _add_up(values: Floats) -> None:
    """Make them sums along the first axis, in order: with a few long rows ten times faster than cumsum."""
    for later in range(1, values.shape[0]):
        values[later] += values[later - 1]
