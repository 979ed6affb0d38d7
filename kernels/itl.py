"""Times between the tokens of a request, when they are asked for: the longest of each request, and how long all are.

It is what a user waits for the next token: the step that makes it, and before it whatever kept the request from
decoding: prefill steps of others, waiting for room in a lane, the way between instances, a preemption. The longest
times are exact; the lengths of all times of a lane are counted in bins (itl_bins.py).
"""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints
from .batch import Batch
from .itl_bins import BINS, LEAST_S, RATIO, bin_of
from .ranges import spread
from .slots import request_of


def start(batch: Batch, lanes: Ints, cells: Ints, emits: bool) -> None:
    """Requests begin to decode; with `emits` their prefill has just made a token, else they got their first one
    earlier. All [n]."""
    times = batch.times
    if not emits:
        times.come_with_first_token(cells)
        return
    now = batch.clock.now[lanes]
    itl = np.zeros(lanes.size)
    again = (~np.isnan(times.last_token_s[cells])).nonzero()[0]  # preempted since
    if again.size:
        itl[again] = now[again] - times.last_token_s[cells[again]]
        batch.counts.count_itl(lanes[again], bin_of(itl[again]), 1)
    times.wait(cells, itl)
    times.emit(cells, now)


def decode_step(batch: Batch, active: Bools, end: Floats, emits: Bools | None = None) -> None:
    """All decoding requests of the lanes `active`, or those of a running list who are said to [L, w], emit a token at
    `end`. Others [L]."""
    lanes = active.nonzero()[0]
    row, cells = _decoding(batch, lanes, emits)
    if cells.size:
        lane = lanes[row]
        itl = _first_times(batch, cells, end[lane])
        batch.counts.count_itl(lane, bin_of(itl), 1)
        batch.times.emit(cells, end[lane])


def leap(
    batch: Batch,
    steps: Floats,
    first_step_s: Floats,
    half_slope_s: Floats,
    end: Floats,
    decoding: Floats,
    emits: Bools | None = None,
) -> None:
    """All `decoding` requests of every lane, or those of a running list who are said to [L, w], emit `steps` tokens,
    the last at `end`; called before the clock moves. Others [L]."""
    lanes = ((steps > 0) & (decoding > 0)).nonzero()[0]
    if not lanes.size:
        return
    steps, first, half, begin = steps[lanes], first_step_s[lanes], half_slope_s[lanes], batch.clock.now[lanes]
    row, cells = _decoding(batch, lanes, emits)
    late = np.bincount(row, batch.times.last_token_s[cells] != begin[row], lanes.size) > 0
    itl = _first_times(batch, cells, (begin + first)[row])
    counted = late[row].nonzero()[0]
    batch.counts.count_itl(lanes[row[counted]], bin_of(itl[counted]), 1)
    # Context grows, so of the further steps the last is the longest.
    longest = np.where(steps > 1, first + 2 * half * (steps - 1), 0)
    batch.times.wait(cells, longest[row])
    batch.times.emit(cells, end[lanes][row])
    _count(batch, lanes, decoding[lanes], late.astype(np.float64), steps, first, 2 * half)


def _decoding(batch: Batch, lanes: Ints, emits: Bools | None) -> tuple[Ints, Ints]:
    """Decoding requests of `lanes` [n]: the place of the lane in `lanes`, and the cell. Both [requests]"""
    if emits is not None:
        row, place = emits[lanes].nonzero()
        return row, batch.cells(lanes[row], batch.running_list.place[lanes[row], place])
    decodes = batch.decodes
    row, place, _ = spread(lanes * decodes.slot_columns + 1, decodes.decoding[lanes].astype(np.int64))
    return row, batch.cells(lanes[row], request_of(decodes.slots.ravel()[place]))


def _first_times(batch: Batch, cells: Ints, end: Floats) -> Floats:
    """The times between tokens that end at `end`, each request's own. All [n]."""
    itl: Floats = end - batch.times.last_token_s[cells]
    batch.times.wait(cells, itl)
    return itl


def _count(
    batch: Batch, lanes: Ints, decoding: Floats, begin: Floats, steps: Floats, first: Floats, growth: Floats
) -> None:
    """Count the steps begin ... steps - 1 of a leap, step j of first + growth j seconds, once for each `decoding`
    request; all steps that share a bin in one go. [n]"""
    rows = (begin < steps).nonzero()[0]
    while rows.size:
        at, slope = begin[rows], growth[rows]
        place = bin_of(first[rows] + slope * at)
        edge = LEAST_S * RATIO ** (place + 1)
        steep = np.maximum(slope, 1e-300)
        end = np.where((slope > 0) & (place < BINS - 1), np.ceil((edge - first[rows]) / steep), np.inf)
        end = np.minimum(np.maximum(end, at + 1), steps[rows])
        batch.counts.count_itl(lanes[rows], place, (end - at) * decoding[rows])
        begin[rows] = end
        rows = rows[end < steps[rows]]
