"""Phase *finish*: requests that have emitted all their tokens leave; their blocks are free from the next step on."""

from __future__ import annotations

import numpy as np

from .arrays import ONE, ZERO, Bools, Floats, Ints
from .batch import Batch
from .slots import end_of, request_of

_MOSTLY = 4  # requests of a lane that may end in one step before more are looked at


def finish(batch: Batch) -> None:
    """Let go of the requests that end at their lane's tick."""
    _finish(batch, (batch.decodes.next_end == batch.clock.tick).nonzero()[0])


def finish_before_arrival(batch: Batch) -> None:
    """The same with a router, at the beginning of a loop: what ends at the time of an arrival ends after it."""
    _finish(batch, batch.due(batch.decodes.next_end == batch.clock.tick).nonzero()[0])


def _finish(batch: Batch, lanes: Ints) -> None:
    """Let go in `lanes`, in each of which a request ends."""
    if not lanes.size:
        return
    clock, decodes = batch.clock, batch.decodes
    tick, width = clock.tick[lanes], clock.now.size
    index, slot, ending = _ending(batch, lanes, tick)
    found = ending.ravel().nonzero()[0]
    request, which = request_of(slot.ravel()[found]), found % lanes.size
    lane = lanes[which]
    total = batch.requests.total[batch.params.row[lane] + request]
    decodes.finish(lanes, ending.sum(axis=0), np.bincount(lane, total, width))
    leave(batch, lane, request, total, tick[which], clock.now[lane], index.ravel()[found])
    if batch.paged:
        batch.memory.give_back(lane, total - ONE)


def leave(
    batch: Batch, lanes: Ints, requests: Ints, total: Floats, tick: Floats, finish_s: Floats, index: Ints
) -> None:
    """Requests of `lanes`, of `total` tokens, finish at `tick` and leave their slots, `index` of the flattened ones.
    What is counted by lane and not by request is left to the caller. All [n]."""
    batch.decodes.vacate(index)
    cells = batch.cells(lanes, requests)
    batch.times.finish(cells, finish_s)
    batch.answer(cells, finish_s)
    if batch.paged:
        batch.memory.stop(lanes, tick, total - ONE)
    if batch.reserve or batch.router is not None:
        tokens = np.bincount(lanes, total, batch.clock.now.size)
        batch.inflow.finish(tokens)
        if batch.reserve:
            batch.reserved_memory.release(tokens)


def _ending(batch: Batch, lanes: Ints, tick: Floats) -> tuple[Ints, Ints, Bools]:
    """The next slots to finish as `Decodes.next_to_finish` gives them, and which of them end at `tick` [n]; all that do
    are among them."""
    count = _MOSTLY
    while True:
        index, slot, decoding = batch.decodes.next_to_finish(lanes, np.arange(float(count))[:, None])
        found: Bools = (end_of(slot) == tick) & (decoding > ZERO)
        if not np.count_nonzero(found[-1]):
            return index, slot, found
        count *= 2
