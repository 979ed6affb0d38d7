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

    Slots are cleared one a lane and round, rarely more than a few rounds; the rest is done for all of them together.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    if not lanes.size:
        return lanes
    slot_end, slot_order = s.slot_end.ravel(), s.slot_order.ravel()
    rounds: list[tuple[Ints, Ints]] = []
    first = lanes
    while lanes.size:
        begin = lanes * engine.slots
        slot = s.next_slot[lanes]
        index = begin + slot
        rounds.append((lanes, index))
        slot_end[index] = NO_END
        decoding = s.decoding[lanes] - ONE
        s.decoding[lanes] = decoding
        slot_order[begin + decoding.astype(np.int64)] = slot
        slot = s.slot_end.take(lanes, axis=0).argmin(axis=1)
        end = slot_end[begin + slot]
        s.next_slot[lanes] = slot
        s.next_end[lanes] = end
        lanes = lanes[(end == s.tick[lanes]).nonzero()[0]]
    lanes, index = rounds[0] if len(rounds) == 1 else map(np.concatenate, zip(*rounds, strict=True))
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
        np.subtract.at(s.growth.ravel(), residue_of(engine, lanes, s.tick[lanes], held), engine.one)
        tight = s.tight[lanes].nonzero()[0]
        if tight.size:
            lanes = lanes[tight]
            blocks = np.bincount(lanes, blocks_for(held[tight], p.size[lanes]), width)
            s.used -= blocks
            s.free += blocks
    carry_on = (s.head_arrival[first] > s.now[first]) & (s.decoding[first] > ZERO)
    if engine.budgets:
        carry_on &= s.left[first] == NOTHING
    if engine.waits:
        carry_on &= s.lane_head[first] == s.joined[first]
    return first[carry_on.nonzero()[0]]
