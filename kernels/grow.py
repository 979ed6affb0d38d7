"""Phase *grow*: decoding requests take the blocks of the coming step; when there are too few, the youngest lose
theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for, demand, residue_of
from .queue import set_head
from .slots import FREE, end_of, next_end, request_of, sort, youngest
from .state import NOTHING_LEFT, ONE, ZERO, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


def grow(engine: Engine, lanes: Ints) -> None:
    """Take the coming step's growth off `free` in `lanes`; preempt until none is missing.

    Only lanes whose blocks are counted exactly need this: elsewhere `free` is a lower bound that already allows for
    growth. Preempting the youngest until the survivors' demand fits ends as asking one by one does: a victim is never
    older than the request that asks, so it has not grown in this step.
    """
    s = engine.state
    if not lanes.size:
        return
    tick = s.tick[lanes].astype(np.int64)
    free = s.free[lanes] - demand(engine, lanes, tick)
    s.free[lanes] = free
    short = (free < ZERO).nonzero()[0]
    if not short.size:
        return
    engine.preempted = True
    preempting = victims = lanes[short]
    while victims.size:
        _preempt_youngest(engine, victims)
        victims = victims[s.free[victims] < ZERO]
    # The queue's head is now a preempted request. Blocks are free for the survivors only, never for it: see
    # docs/scheduler.md.
    set_head(engine, preempting)


def _preempt_youngest(engine: Engine, lanes: Ints) -> None:
    """Take the blocks of one request in each of `lanes`: a fresh prefill, else a repeated one, else a decoding
    request."""
    s = engine.state
    fresh = s.head[lanes] > s.first_prefill[lanes]
    again = (s.stack_size[lanes] > s.stack_waiting[lanes]) & ~fresh
    for preempt, chosen in (
        (_preempt_fresh_prefill, fresh),
        (_preempt_repeated_prefill, again),
        (_preempt_decoding, ~(fresh | again)),
    ):
        rows = chosen.nonzero()[0]
        if rows.size:
            preempt(engine, lanes[rows])


def _release_prefill(engine: Engine, lanes: Ints, requests: Ints, blocks: Floats, last: Ints) -> None:
    """Common to both kinds of prefill; `last` are the lanes in which the part-way one was hit: its progress is lost."""
    s = engine.state
    s.running[lanes] -= 1
    s.prefill_blocks[lanes] -= blocks
    s.free[lanes] += blocks
    s.repeated_tokens[last] += s.done[last]
    s.done[last] = 0
    s.left[last] = NOTHING_LEFT
    engine.outcome.preemptions[engine.cells(lanes, requests)] += 1


def _preempt_fresh_prefill(engine: Engine, lanes: Ints) -> None:
    p, s = engine.params, engine.state
    s.head[lanes] -= 1
    request = s.head[lanes]
    blocks = blocks_for(engine.traffic.prompt[p.row[lanes] + request], p.size[lanes])
    alone = (request == s.first_prefill[lanes]) & (s.stack_size[lanes] == s.stack_waiting[lanes])
    s.preempted_until[lanes] = np.maximum(s.preempted_until[lanes], request + 1)
    _release_prefill(engine, lanes, request, blocks, lanes[alone])


def _preempt_repeated_prefill(engine: Engine, lanes: Ints) -> None:
    p, s = engine.params, engine.state
    place = s.stack_waiting[lanes]
    request = s.stack_request[lanes, place].astype(np.int64)
    blocks = blocks_for(s.stack_tokens[lanes, place].astype(np.float64), p.size[lanes])
    s.stack_waiting[lanes] = place + 1
    alone = place + 1 == s.stack_size[lanes]
    _release_prefill(engine, lanes, request, blocks, lanes[alone])


def _preempt_decoding(engine: Engine, lanes: Ints) -> None:
    p, s, t = engine.params, engine.state, engine.traffic
    slots = s.slots.ravel()
    place = youngest(engine, lanes)
    slot = slots[place]
    request = request_of(slot)
    tick, decoding = s.tick[lanes], s.decoding[lanes] - ONE
    tokens = t.total[p.row[lanes] + request] - (end_of(slot) - tick)
    held = tokens - ONE
    residue = residue_of(engine, lanes, tick, held)
    asks = residue == residue_of(engine, lanes, tick, ZERO)
    blocks = blocks_for(held, p.size[lanes])
    slots[place] = FREE
    sort(engine, lanes)
    s.next_end[lanes] = next_end(engine, lanes, decoding)
    s.decoding[lanes] = decoding
    s.running[lanes] -= ONE
    s.context[lanes] -= tokens
    s.growth.ravel()[residue] -= engine.one
    s.used[lanes] -= blocks
    s.free[lanes] += blocks + asks
    top = s.stack_size[lanes]
    s.stack_request[lanes, top] = request
    s.stack_tokens[lanes, top] = tokens
    top += 1
    s.stack_size[lanes] = s.stack_waiting[lanes] = top
    cells = engine.cells(lanes, request)
    engine.outcome.preemptions[cells] += 1
