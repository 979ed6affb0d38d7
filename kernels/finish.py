"""Phase *finish*: requests that have emitted all their tokens leave; their blocks are free from the next step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for
from .state import NO_END

if TYPE_CHECKING:
    from .engine import Engine


def finish(engine: Engine) -> None:
    """Let go of the requests that end at their lane's tick: one a lane and round, rarely more than a few rounds."""
    p, s, t = engine.params, engine.state, engine.traffic
    slots = s.slot_end.shape[1]
    slot_end, slot_request = s.slot_end.ravel(), s.slot_request.ravel()
    lanes = (s.next_end == s.tick).nonzero()[0]
    while lanes.size:
        slot = s.next_slot[lanes]
        index = lanes * slots + slot
        request = slot_request[index]
        tick = s.tick[lanes]
        total = t.total[p.row[lanes] + request]
        engine.outcome.finish_s[p.out[lanes] + request] = s.now[lanes]
        slot_end[index] = NO_END
        decoding = s.decoding[lanes] - 1
        s.decoding[lanes] = decoding
        s.slot_order[lanes, decoding.astype(np.int64)] = slot
        s.running[lanes] -= 1
        s.context[lanes] -= total
        if engine.paged:
            size = p.block_size[lanes]
            residue = (tick + 1 - total).astype(np.int64) % size
            s.growth[lanes, residue] -= 1
            s.used[lanes] -= blocks_for(total - 1, size)
        ends = s.slot_end[lanes]
        slot = ends.argmin(axis=1)
        end = ends[np.arange(lanes.size), slot]
        s.next_slot[lanes] = slot
        s.next_end[lanes] = end
        lanes = lanes[end == tick]
