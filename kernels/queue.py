"""The waiting queue: a pointer into the order of service, and a stack of preempted requests in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import blocks_for
from .state import Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


_FEW = 4


def set_head(engine: Engine) -> None:
    """Look up arrival and blocks of the queue's head in every lane, after some changed."""
    p, s, t = engine.params, engine.state, engine.traffic
    place = p.row + s.head
    s.head_arrival = t.arrival[place] / p.rate
    if engine.paged:
        s.head_blocks = blocks_for(t.prompt[place], p.block_size)
        if engine.preempted:
            waiting = s.stack_waiting.nonzero()[0]
            if waiting.size:
                tokens = s.stack_tokens[waiting, s.stack_waiting[waiting] - 1].astype(np.float64)
                s.head_arrival[waiting] = -np.inf
                s.head_blocks[waiting] = blocks_for(tokens, p.block_size[waiting])


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints, Ints | int]:
    """Ranges first, first + 1, ... of `count` each, count [L], laid end to end: (lane, value, place in the range)."""
    if count.max(initial=0) <= 1:
        lanes = count.nonzero()[0]
        return lanes, first[lanes], 0
    lanes = np.repeat(np.arange(count.size), count)
    place = np.arange(lanes.size) - (np.cumsum(count) - count)[lanes]
    return lanes, first[lanes] + place, place


def largest(good: Ints, bad: Ints, test: Callable[[Ints, Ints], npt.NDArray[np.bool_]]) -> Ints:
    """The largest number that passes, per row, of tests that only turn from true to false as the number grows.

    `good` is known to pass and `bad` to fail, both [n]; `test(rows, numbers)` tries some. Doubling steps, then halving ones: the
    answer is mostly close to `good`.
    """
    good, bad = good.copy(), bad.copy()
    stride = np.ones(good.size, np.int64)
    rows = (good + 1 < bad).nonzero()[0]
    while rows.size:
        number = np.minimum(good[rows] + stride[rows], bad[rows] - 1)
        ok = test(rows, number)
        good[rows] = np.where(ok, number, good[rows])
        bad[rows] = np.where(ok, bad[rows], number)
        stride[rows] = np.where(ok, 2 * stride[rows], np.maximum((bad[rows] - good[rows]) // 2, 1))
        rows = rows[good[rows] + 1 < bad[rows]]
    return good


def count_admissible(engine: Engine, lanes: Ints, most: Ints, batch_tokens: Floats) -> Ints:
    """How many fresh requests from the head on join together: arrived, with blocks for them, and within the prefill batch.

    The head itself is known to join. All [n] but `batch_tokens` [L], the tokens that the lane's prefill batch already has.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    head = s.head[lanes]
    begin, block_begin = p.row[lanes] + head, p.block_row[lanes] + head
    rate, now, free = p.rate[lanes], s.now[lanes], s.free[lanes]
    limit = p.max_tokens[lanes]

    def test(rows: Ints | slice, number: Ints) -> npt.NDArray[np.bool_]:
        """Whether `number` requests can join: [n] or [n, K] for K numbers a row."""
        wide = (rows, None) if number.ndim == 2 else rows
        first = begin[wide]
        ok: npt.NDArray[np.bool_] = t.arrival[first + (number - 1)] / rate[wide] <= now[wide]
        if engine.paged:
            blocks = block_begin[wide]
            ok &= t.blocks_before[blocks + number] - t.blocks_before[blocks] <= free[wide]
        if not engine.decode_beside_prefill:
            tokens = t.prompts_before[first + number] - t.prompts_before[first]
            ok &= batch_tokens[lanes][wide] + tokens <= limit[wide]
        return ok

    # Nearly always a handful: try the first few numbers of every row in one go, and search only where all of them pass.
    few = np.minimum(np.arange(2, _FEW + 2), most[:, None])
    good = np.minimum(1 + test(slice(None), few).sum(axis=1), most)
    more = ((good > _FEW) & (good < most)).nonzero()[0]
    if more.size:
        good[more] = largest(good[more], most[more] + 1, lambda rows, number: test(more[rows], number))
    return good
