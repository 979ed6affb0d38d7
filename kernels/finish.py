"""Phase *finish*: requests that have emitted all their tokens leave; their blocks are free from the next step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for, residue_of
from .slots import FREE, end_of, next_end, next_to_finish, request_of
from .state import ONE, ZERO, Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

_MOSTLY = 4  # requests of a lane that may end in one step before more are looked at


def finish(engine: Engine, lanes: Ints) -> None:
    """Let go of the requests that end at their lane's tick, in `lanes`, each of which has one."""
    p, s, t = engine.params, engine.state, engine.traffic
    if not lanes.size:
        return
    tick, width = s.tick[lanes], s.running.size
    index, slot, ending = _ending(engine, lanes, tick)
    number = ending.sum(axis=0)
    decoding = s.decoding[lanes] - number
    s.decoding[lanes] = decoding
    s.running[lanes] -= number
    s.next_end[lanes] = next_end(engine, lanes, decoding)
    found = ending.ravel().nonzero()[0]
    request, which = request_of(slot.ravel()[found]), found % lanes.size
    lanes, tick = lanes[which], tick[which]
    total = t.total[p.row[lanes] + request]
    leave(engine, lanes, request, total, tick, s.now[lanes], index.ravel()[found])
    s.context -= np.bincount(lanes, total, width)
    if not engine.paged:
        return
    tight = s.tight[lanes].nonzero()[0]
    if tight.size:
        lanes = lanes[tight]
        blocks = np.bincount(lanes, blocks_for(total[tight] - ONE, p.size[lanes]), width)
        s.used -= blocks
        s.free += blocks


def leave(
    engine: Engine, lanes: Ints, requests: Ints, total: Floats, tick: Floats, finish_s: Floats, index: Ints
) -> None:
    """Requests of `lanes`, of `total` tokens, finish at `tick` and leave their slots, `index` of the flattened ones.
    What is counted by lane and not by request is left to the caller. All [n]."""
    s = engine.state
    s.slots.ravel()[index] = FREE
    engine.outcome.finish_s[engine.cells(lanes, requests)] = finish_s
    if engine.paged:
        np.subtract.at(s.growth.ravel(), residue_of(engine, lanes, tick, total - ONE), engine.one)
    if engine.reserve or engine.router is not None:
        tokens = np.bincount(lanes, total, s.now.size)
        s.outstanding_tokens -= tokens
        s.reserved -= tokens * engine.reserve


def _ending(engine: Engine, lanes: Ints, tick: Floats) -> tuple[Ints, Ints, Bools]:
    """The next slots to finish as `next_to_finish` gives them, and which of them end at `tick` [n]; all that do are
    among them."""
    count = _MOSTLY
    while True:
        index, slot, decoding = next_to_finish(engine, lanes, np.arange(float(count))[:, None])
        found: Bools = (end_of(slot) == tick) & (decoding > ZERO)
        if not np.count_nonzero(found[-1]):
            return index, slot, found
        count *= 2
