"""The waiting queue: a pointer into the order of service, and a stack of preempted requests in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for
from .state import Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


_FEW = 4


def set_head(engine: Engine) -> None:
    """Look up what is known of the queue's head in every lane, after some heads changed."""
    p, s, t = engine.params, engine.state, engine.traffic
    place = p.row + s.head
    s.head_arrival = t.arrival[place] / p.rate
    if engine.rules.prefills:
        s.prompts_at_head = t.prompts_before[place]
        s.pairs_at_head = t.pairs_before[place]
    if engine.reserve and engine.rules.decodes:
        s.head_total = t.total[place]
    if engine.paged:
        place = p.block_row + s.head
        s.blocks_at_head = t.blocks_before[place]
        s.head_blocks = t.blocks_before[place + 1] - s.blocks_at_head
        if engine.preempted:
            waiting = s.stack_waiting.nonzero()[0]
            if waiting.size:
                tokens = s.stack_tokens[waiting, s.stack_waiting[waiting] - 1].astype(np.float64)
                s.head_arrival[waiting] = -np.inf
                s.head_blocks[waiting] = blocks_for(tokens, p.size[waiting])


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranges first, first + 1, ... of `count` each, count [L], laid end to end: (lane, value, place in the range)."""
    if count.max(initial=0) <= 1:
        lanes = count.nonzero()[0]
        return lanes, first[lanes], np.zeros(lanes.size, np.int64)
    lanes = np.repeat(np.arange(count.size), count)
    place = np.arange(lanes.size) - (np.cumsum(count) - count)[lanes]
    return lanes, first[lanes] + place, place


def largest(good: Ints, bad: Ints, test: Callable[[Ints, Ints], Bools]) -> Ints:
    """The largest number that passes, per row, of tests that only turn from true to false as the number grows.

    `good` is known to pass and `bad` to fail, both [n]; `test(rows, numbers)` tries some, with arguments that
    broadcast. Nearly always the answer is close to `good`: a few numbers are tried in one go, and only then steps that
    double, and then halve.
    """
    numbers = np.minimum(good[:, None] + np.arange(1, _FEW + 1), bad[:, None] - 1)
    passed = test(np.arange(good.size)[:, None], numbers).sum(axis=1)
    good = np.minimum(good + passed, bad - 1)
    rows = ((passed == _FEW) & (good + 1 < bad)).nonzero()[0]
    if rows.size:
        bad = bad.copy()
        stride = np.full(good.size, _FEW)
    while rows.size:
        number = np.minimum(good[rows] + stride[rows], bad[rows] - 1)
        ok = test(rows, number)
        good[rows] = np.where(ok, number, good[rows])
        bad[rows] = np.where(ok, bad[rows], number)
        stride[rows] = np.where(ok, 2 * stride[rows], np.maximum((bad[rows] - good[rows]) // 2, 1))
        rows = rows[good[rows] + 1 < bad[rows]]
    return good


def count_admissible(engine: Engine, lanes: Ints, most: Ints, batch_tokens: Floats) -> Ints:
    """How many fresh requests from the head on join together: arrived, with blocks for them, and within the prefill
    batch.

    The head itself is known to join. All [n] but `batch_tokens` [L], the tokens that the lane's prefill batch already
    has.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    begin = p.row[lanes] + s.head[lanes]
    block_begin = p.block_row[lanes] + s.head[lanes]
    rate, now = p.rate[lanes], s.now[lanes]
    most_blocks = s.free[lanes] + s.blocks_at_head[lanes]
    most_prompts = s.prompts_at_head[lanes]
    if not engine.decode_beside_prefill:
        most_prompts = most_prompts + p.max_tokens[lanes] - batch_tokens[lanes]

    def test(rows: Ints, number: Ints) -> Bools:
        place = begin[rows] + number
        ok: Bools = t.arrival[place - 1] / rate[rows] <= now[rows]
        if engine.paged:
            ok &= t.blocks_before[block_begin[rows] + number] <= most_blocks[rows]
        if not engine.decode_beside_prefill:
            ok &= t.prompts_before[place] <= most_prompts[rows]
        return ok

    return largest(np.ones(lanes.size, np.int64), most + 1, test)
