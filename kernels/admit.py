"""Phase *admit*: the head of the queue joins while there is room for it; nobody skips ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import demand, held
from .queue import count_admissible, set_head, spread
from .state import NOTHING_LEFT, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


def admit(engine: Engine) -> None:
    """Admit from the queue of every lane. Under `prefill_first` as many as one prefill batch holds."""
    p, s, t = engine.params, engine.state, engine.traffic
    lanes = ((s.head_arrival <= s.now) & (s.running < p.max_running)).nonzero()[0]
    if not lanes.size:
        return
    batch_tokens = np.zeros(0 if engine.decode_beside_prefill else s.now.size)
    if engine.paged:
        lanes = lanes[_head_fits(engine, lanes)]
        if engine.preempted:
            again = lanes[s.stack_waiting[lanes] > 0]
            if again.size:
                _readmit(engine, again, batch_tokens)
                ready = (s.head_arrival[lanes] <= s.now[lanes]) & (s.running[lanes] < p.max_running[lanes])
                ready &= (s.stack_waiting[lanes] == 0) & (s.head_blocks[lanes] <= s.free[lanes])
                if not engine.decode_beside_prefill:
                    prompt = t.prompt[p.row[lanes] + s.head[lanes]]
                    started = batch_tokens[lanes]
                    ready &= (started == 0) | (started + prompt <= p.max_tokens[lanes])
                lanes = lanes[ready]
    if lanes.size:
        _admit_fresh(engine, lanes, batch_tokens)


def _count_free(engine: Engine, lanes: Ints) -> None:
    """Make `free` exact where it was a lower bound, before anything is admitted."""
    p, s = engine.params, engine.state
    lanes = lanes[~s.tight[lanes]]
    if lanes.size:
        tick = s.tick[lanes].astype(np.int64)
        s.used[lanes] = held(engine, lanes, s.context[lanes], tick)
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes] - s.prefill_blocks[lanes]
        if engine.decode_beside_prefill:
            s.free[lanes] -= demand(engine, lanes, tick)
        s.tight[lanes] = True


def _head_fits(engine: Engine, lanes: Ints) -> npt.NDArray[np.bool_]:
    """Whether the blocks of the queue's head are free; where the lower bound cannot tell, the blocks are counted."""
    s = engine.state
    fits = s.head_blocks[lanes] <= s.free[lanes]
    if not fits.all():
        _count_free(engine, lanes[~fits])
        fits = s.head_blocks[lanes] <= s.free[lanes]
    return fits


def _readmit(engine: Engine, lanes: Ints, batch_tokens: Floats) -> None:
    """Admit preempted requests, one a lane and round; the first of each lane is known to fit."""
    p, s = engine.params, engine.state
    _count_free(engine, lanes)
    while lanes.size:
        place = s.stack_waiting[lanes] - 1
        tokens = s.stack_tokens[lanes, place].astype(np.float64)
        s.stack_waiting[lanes] = place
        s.running[lanes] += 1
        s.prefill_blocks[lanes] += s.head_blocks[lanes]
        s.free[lanes] -= s.head_blocks[lanes]
        oldest = lanes[s.left[lanes] == NOTHING_LEFT]
        s.left[oldest] = tokens[s.left[lanes] == NOTHING_LEFT]
        set_head(engine, lanes)
        more = (place > 0) & (s.running[lanes] < p.max_running[lanes]) & (s.head_blocks[lanes] <= s.free[lanes])
        if not engine.decode_beside_prefill:
            batch_tokens[lanes] += tokens
            upcoming = s.stack_tokens[lanes, np.maximum(place - 1, 0)]
            more &= batch_tokens[lanes] + upcoming <= p.max_tokens[lanes]
        lanes = lanes[more]


def _admit_fresh(engine: Engine, lanes: Ints, batch_tokens: Floats) -> None:
    p, s, t = engine.params, engine.state, engine.traffic
    head = s.head[lanes]
    place = p.row[lanes] + head
    rate, now = p.rate[lanes], s.now[lanes]
    room = p.max_running[lanes] - s.running[lanes]
    count = np.ones(lanes.size, np.int64)
    several = ((room > 1) & (t.arrival[place + 1] / rate <= now)).nonzero()[0]
    if several.size:
        lane = lanes[several]
        most = np.minimum(room[several].astype(np.int64), p.n[lane] - head[several])
        counted = count_admissible(engine, lane, most, batch_tokens)
        if engine.paged:
            # Stopped by something other than an arrival, and only a lower bound known: count the blocks, and again.
            more = (counted < most) & ~s.tight[lane]
            more &= t.arrival[place[several] + counted] / rate[several] <= now[several]
            again = more.nonzero()[0]
            if again.size:
                _count_free(engine, lane[again])
                counted[again] = count_admissible(engine, lane[again], most[again], batch_tokens)
        count[several] = counted
    following = head + count
    s.running[lanes] += count
    s.head[lanes] = following
    if engine.paged:
        begin = p.block_row[lanes] + head
        blocks = t.blocks_before[begin + count] - t.blocks_before[begin]
        s.prefill_blocks[lanes] += blocks
        s.free[lanes] -= blocks
    left = s.left[lanes]
    s.left[lanes] = np.where(left == NOTHING_LEFT, t.prompt[place], left)
    if engine.budgets:
        # Without a budget the prefill phase of this very loop runs them, and notes the time.
        which, request = spread(head, count)
        first_time = (request >= s.high_water[lanes][which]).nonzero()[0] if engine.preempted else slice(None)
        engine.outcome.admitted_s[(p.out[lanes][which] + request)[first_time]] = now[which][first_time]
        s.high_water[lanes] = np.maximum(s.high_water[lanes], following)
    set_head(engine, lanes)
