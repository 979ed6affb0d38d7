"""Phase *admit*: the head of the queue joins while there is room for it; nobody skips ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import demand, held
from .prefill import start_decoding
from .queue import blocks_of_top, count_admissible, set_head, spread
from .slots import sort
from .state import NOTHING, ONE, Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


def admit(engine: Engine) -> None:
    """Admit from the queue of every lane. Under `prefill_first` as many as one prefill batch holds."""
    p, s, t = engine.params, engine.state, engine.traffic
    ready = engine.due((s.head_arrival <= s.now) & (s.running < p.max_running))
    batch_tokens = np.zeros(s.now.size * engine.some_apart)
    if engine.paged:
        ready &= _head_fits(engine, ready)
        if engine.preempted:
            again = (ready & (s.stack_waiting > 0)).nonzero()[0]
            if again.size:
                _readmit(engine, again, batch_tokens)
                ready &= (s.head_arrival <= s.now) & (s.running < p.max_running) & (s.stack_waiting == 0)
                ready &= s.head_blocks <= s.free
                if engine.some_apart:
                    prompt = t.prompt[p.row + s.head]
                    ready &= (batch_tokens == 0) | (batch_tokens + prompt <= p.max_tokens)
    if np.count_nonzero(ready):
        _admit_fresh(engine, ready, batch_tokens)


def _count_free(engine: Engine, lanes: Ints) -> None:
    """Make `free` exact where it was a lower bound, before anything is admitted."""
    p, s = engine.params, engine.state
    lanes = lanes[~s.tight[lanes]]
    if lanes.size:
        tick = s.tick[lanes].astype(np.int64)
        s.used[lanes] = held(engine, lanes, s.context[lanes], tick)
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes] - s.prefill_blocks[lanes]
        if engine.some_beside:
            s.free[lanes] -= demand(engine, lanes, tick) * p.beside[lanes]
        s.tight[lanes] = True


def _head_fits(engine: Engine, ready: Bools) -> Bools:
    """Whether the blocks of the queue's head are free; where the lower bound cannot tell, they are counted. [L]"""
    s = engine.state
    fits = s.head_blocks <= s.free
    unsure = (ready & ~(fits | s.tight)).nonzero()[0]
    if unsure.size:
        _count_free(engine, unsure)
        fits = s.head_blocks <= s.free
    return fits


def _readmit(engine: Engine, lanes: Ints, batch_tokens: Floats) -> None:
    """Admit preempted requests, one a lane and round; the first of each lane is known to fit."""
    p, s = engine.params, engine.state
    _count_free(engine, lanes)
    changed, blocks = lanes, s.head_blocks[lanes]
    while lanes.size:
        place = s.stack_waiting[lanes] - 1
        s.stack_waiting[lanes] = place
        s.running[lanes] += 1
        s.prefill_blocks[lanes] += blocks
        free = s.free[lanes] - blocks
        s.free[lanes] = free
        tokens = s.stack_tokens[lanes, place]
        fresh = (s.left[lanes] == NOTHING).nonzero()[0]
        s.left[lanes[fresh]] = tokens[fresh]
        if engine.some_apart:
            batch_tokens[lanes] += tokens
        rows = ((place > 0) & (s.running[lanes] < p.max_running[lanes])).nonzero()[0]
        lanes, free = lanes[rows], free[rows]
        blocks = blocks_of_top(engine, lanes)
        more = blocks <= free
        if engine.some_apart:
            upcoming = s.stack_tokens[lanes, s.stack_waiting[lanes] - 1]
            more &= batch_tokens[lanes] + upcoming <= p.max_tokens[lanes]
        lanes, blocks = lanes[more], blocks[more]
    set_head(engine, changed)


def _admit_fresh(engine: Engine, ready: Bools, batch_tokens: Floats) -> None:
    p, s, t = engine.params, engine.state, engine.traffic
    head = s.head
    place = p.row + head
    count = ready.astype(np.int64)
    more = ready & (s.running + ONE < p.max_running) & (t.arrival[place + 1] / p.rate <= s.now)
    if engine.paged:
        # In a tight lane a finish mostly makes room for one request: one look saves a search.
        two = t.blocks_before[p.block_row + (head + 2)] - s.blocks_at_head
        more &= (two <= s.free) | ~s.tight
    several = more.nonzero()[0]
    if several.size:
        count[several] = _count_several(engine, several, batch_tokens)
    s.running += count
    s.head = head + count
    blocks_at_head = s.blocks_at_head.copy()
    set_head(engine)
    if engine.paged:
        blocks = s.blocks_at_head - blocks_at_head
        s.free -= blocks
    if not engine.rules.prefills:
        _start_with_kv(engine, head, count)
        return
    if engine.paged:
        s.prefill_blocks = s.prefill_blocks + blocks
    if engine.budgets:
        first = (ready & (s.left == NOTHING)).nonzero()[0]
        s.left[first] = t.prompt[place[first]]
        # Without a budget the prefill phase of this very loop runs them, and notes the time.
        lanes, request, _ = spread(head, count)
        if engine.preempted:
            new = (request >= s.preempted_until[lanes]).nonzero()[0]
            lanes, request = lanes[new], request[new]
        engine.outcome.admitted_s[engine.cells(lanes, request)] = s.now[lanes]


def _start_with_kv(engine: Engine, head: Ints, count: Ints) -> None:
    """Requests that came with their KV decode at once. The blocks that they took are those of the coming step, which
    the leap counts as if they grew in it, from what their prompts hold."""
    p, s, t = engine.params, engine.state, engine.traffic
    lanes, request, order = spread(head, count)
    place = p.row[lanes] + request
    cells = engine.cells(lanes, request)
    engine.outcome.admitted_s[cells] = s.now[lanes]
    start_decoding(engine, lanes, request, t.prompt[place], order, emits=False)
    started = count.astype(np.float64)
    s.decoding += started
    s.context += np.bincount(lanes, t.prompt[place], s.now.size) + started
    s.first_prefill = s.head.copy()
    sort(engine, count.nonzero()[0])


def _count_several(engine: Engine, lanes: Ints, batch_tokens: Floats) -> Ints:
    """How many requests join in `lanes`, whose second request has arrived too. [n]"""
    p, s, t = engine.params, engine.state, engine.traffic
    room = (p.max_running[lanes] - s.running[lanes]).astype(np.int64)
    most = np.minimum(room, s.known[lanes] - s.head[lanes])
    count = count_admissible(engine, lanes, most, batch_tokens)
    if engine.paged:
        # Stopped by something other than an arrival, and only a lower bound known: count the blocks, and again.
        following = t.arrival[p.row[lanes] + s.head[lanes] + count] / p.rate[lanes]
        again = ((count < most) & ~s.tight[lanes] & (following <= s.now[lanes])).nonzero()[0]
        if again.size:
            _count_free(engine, lanes[again])
            count[again] = count_admissible(engine, lanes[again], most[again], batch_tokens)
    return count
