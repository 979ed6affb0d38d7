"""The waiting queue: a pointer into the order of service, and a stack of preempted requests in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for
from .state import Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


ALL = slice(None)
_NEXT = np.arange(1, 9)[:, None]


def set_head(engine: Engine, lanes: Ints | slice = ALL) -> None:
    """Look up what is known of the queue's head in `lanes`, after some heads changed."""
    p, s, t = engine.params, engine.state, engine.traffic
    head = s.head[lanes]
    place = p.row[lanes] + head
    s.head_arrival[lanes] = t.arrival[place] / p.rate[lanes]
    if engine.rules.prefills:
        s.prompts_at_head[lanes] = t.prompts_before[place]
        s.pairs_at_head[lanes] = t.pairs_before[place]
    if engine.reserve and engine.rules.decodes:
        s.head_total[lanes] = t.total[place]
    if engine.paged:
        place = p.block_row[lanes] + head
        before = t.blocks_before[place]
        s.blocks_at_head[lanes] = before
        s.head_blocks[lanes] = t.blocks_before[place + 1] - before
        if engine.preempted:
            rows = s.stack_waiting[lanes].nonzero()[0]
            if rows.size:
                waiting = rows if isinstance(lanes, slice) else lanes[rows]
                s.head_arrival[waiting] = -np.inf
                s.head_blocks[waiting] = blocks_of_top(engine, waiting)


def blocks_of_top(engine: Engine, lanes: Ints) -> Floats:
    """Blocks that the preempted request at the head of the queue needs, in `lanes` that have one. [n]"""
    s = engine.state
    tokens = s.stack_tokens[lanes, s.stack_waiting[lanes] - 1].astype(np.float64)
    return blocks_for(tokens, engine.params.size[lanes])


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranges first, first + 1, ... of `count` each, count [L], laid end to end: (lane, value, place in the range)."""
    lanes = count.nonzero()[0]
    first, count = first[lanes], count[lanes]
    last = count.cumsum()
    if not lanes.size or last[-1] == lanes.size:
        return lanes, first, np.zeros(lanes.size, np.int64)
    lanes = lanes.repeat(count)
    place = np.arange(lanes.size) - (last - count).repeat(count)
    return lanes, first.repeat(count) + place, place


def largest(good: Ints, bad: Ints, test: Callable[[Ints | slice, Ints], Bools]) -> Ints:
    """The largest number that passes, per row, of tests that only turn from true to false as the number grows.

    `good` is known to pass and `bad` to fail, both [n]; `test(rows, numbers)` tries some: [*, n], with what belongs to
    a row in its last axis. A few numbers are tried in one go. Nearly always the answer is among the next ones; only
    then others, further and further apart while all of them pass, and closer again.
    """
    most = bad - 1
    passed = test(ALL, np.minimum(good + _NEXT, most)).sum(axis=0)
    good = np.minimum(good + passed, most)
    rows = ((passed == _NEXT.size) & (good < most)).nonzero()[0]
    stride = np.full(rows.size, _NEXT.size)
    while rows.size:
        low, high = good[rows], most[rows]
        passed = test(rows, np.minimum(low + stride * _NEXT, high)).sum(axis=0)
        low = np.minimum(low + stride * passed, high)
        further = passed == _NEXT.size
        high = np.where(further, high, np.minimum(high, low + stride - 1))
        good[rows], most[rows] = low, high
        stride = np.where(further, stride * _NEXT.size, stride // _NEXT.size)
        unsure = (low < high).nonzero()[0]
        rows, stride = rows[unsure], stride[unsure]
    return good


def count_admissible(engine: Engine, lanes: Ints, most: Ints, batch_tokens: Floats) -> Ints:
    """How many fresh requests from the head on join together: arrived, with blocks for them, and within the prefill
    batch.

    The head itself is known to join. All [n] but `batch_tokens` [L], the tokens that the lane's prefill batch already
    has.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    head, rate, now = s.head[lanes], p.rate[lanes], s.now[lanes]
    begin = p.row[lanes] + head
    last = begin - 1  # with the number of requests added: the last of them
    if engine.paged:
        block_begin = p.block_row[lanes] + head
        most_blocks = s.free[lanes] + s.blocks_at_head[lanes]
    if engine.some_apart:
        most_prompts = s.prompts_at_head[lanes] + p.max_tokens[lanes] - batch_tokens[lanes]

    def test(rows: Ints | slice, number: Ints) -> Bools:
        ok: Bools = t.arrival[last[rows] + number] / rate[rows] <= now[rows]
        if engine.paged:
            ok &= t.blocks_before[block_begin[rows] + number] <= most_blocks[rows]
        if engine.some_apart:
            ok &= t.prompts_before[begin[rows] + number] <= most_prompts[rows]
        return ok

    return largest(np.ones(lanes.size, np.int64), most + 1, test)
