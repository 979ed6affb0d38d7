"""Phase *finish*: requests that have emitted all their tokens leave; their blocks are free from the next step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import gaps
from .blocks import blocks_for, residue_of
from .state import NO_END, NOTHING, ONE, ZERO, Ints

if TYPE_CHECKING:
    from .engine import Engine


def finish(engine: Engine, lanes: Ints) -> Ints:
    """Let go of the requests that end at their lane's tick, in `lanes`, each of which has one. Returns lanes that now
    only decode on: somebody is left, and nobody waits or is in prefill.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    if not lanes.size:
        return lanes
    first, tick, decoding = lanes, s.tick[lanes], s.decoding[lanes]
    begin = lanes * engine.slots
    slot_end, ends = s.slot_end.ravel(), s.slot_end.take(lanes, axis=0)
    found = (ends == tick.astype(np.int32)[:, None]).ravel().nonzero()[0]
    ends.ravel()[found] = NO_END
    row = found // engine.slots
    slot = found - row * engine.slots
    if row.size == lanes.size:  # one a lane
        decoding -= ONE
        place = decoding.astype(np.int64)
    else:
        number = np.bincount(row)
        decoding -= number
        place = np.arange(row.size) + (decoding.astype(np.int64) - (number.cumsum() - number))[row]
        lanes, tick, begin = lanes[row], tick[row], begin[row]
    index = begin + slot
    slot_end[index] = NO_END
    s.slot_order.ravel()[begin + place] = slot
    s.decoding[first] = decoding
    s.next_end[first] = ends.ravel()[np.arange(first.size) * engine.slots + ends.argmin(axis=1)]
    request = s.slot_request.ravel()[index]
    now = s.now[lanes]
    total = t.total[p.row[lanes] + request]
    cells = engine.cells(lanes, request)
    engine.outcome.finish_s[cells] = now
    if engine.gaps:
        gaps.keep(engine, index, cells)
    width = s.running.size
    s.running -= np.bincount(lanes, minlength=width)
    tokens = np.bincount(lanes, total, width)
    s.context -= tokens
    if engine.router is not None:
        s.outstanding_tokens -= tokens
    if engine.reserve:
        s.reserved -= tokens
    if engine.paged:
        held = total - ONE
        np.subtract.at(s.growth.ravel(), residue_of(engine, lanes, tick, held), engine.one)
        tight = s.tight[lanes].nonzero()[0]
        if tight.size:
            lanes = lanes[tight]
            blocks = np.bincount(lanes, blocks_for(held[tight], p.size[lanes]), width)
            s.used -= blocks
            s.free += blocks
    carry_on = (s.head_arrival[first] > s.now[first]) & (decoding > ZERO)
    if engine.budgets:
        carry_on &= s.left[first] == NOTHING
    if engine.waits:
        carry_on &= s.lane_head[first] == s.joined[first]
    return first[carry_on.nonzero()[0]]
