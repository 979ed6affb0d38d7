"""Phase *order*: who may be admitted now is placed in the order of service, in lanes that do not serve by arrival.

It decides nothing about admission: it may place too many, never too few, and takes back who was placed and not admitted
when somebody might come before.
"""

from __future__ import annotations

import numpy as np

from .arrays import ZERO, Bools, Floats, Ints
from .batch import Batch
from .pool import Pool
from .prefills import NO_PREFILL


def order(batch: Batch) -> None:
    """Let in who has arrived, and place the next ones of each lane until one of them cannot be admitted now."""
    pool, queue = batch.pool, batch.queue
    assert pool is not None
    let_in(batch, pool, batch.clock.now)
    admits = batch.due(batch.may_admit(batch))
    lanes = (admits & pool.out_of_date).nonzero()[0]
    if lanes.size:
        put_back(batch, pool, lanes)
    lanes = (admits & (pool.waiting > 0)).nonzero()[0]
    while lanes.size:
        lanes = lanes[_more_may_join(batch, pool, lanes)]
        if lanes.size:
            place(batch, pool, lanes)
            lanes = lanes[pool.waiting[lanes] > 0]
    # Behind who is placed: somebody waits, or who arrives next.
    following = np.where(pool.waiting > 0, -np.inf, pool.next_arrival)
    batch.requests.close(batch.params.row + pool.placed_end, following)
    queue.look()


def let_in(batch: Batch, pool: Pool, seen: Floats) -> None:
    """Let in who has arrived by `seen` [L], and note who has waited long by now."""
    clock = batch.clock
    lanes = (pool.next_arrival <= seen).nonzero()[0]
    if lanes.size:
        pool.let_in(lanes, seen[lanes], clock.wakes_now[lanes])
    if pool.ages:
        lanes = (pool.next_aged <= clock.now).nonzero()[0]
        if lanes.size:
            pool.age(lanes, clock.now[lanes])


def put_back(batch: Batch, pool: Pool, lanes: Ints) -> None:
    """Tentative requests of `lanes` go back into the pool."""
    p = batch.params
    rows, place, _ = pool.tentative(lanes, batch.queue.head[lanes])
    lane = lanes[rows]
    pool.put_back(lanes, rows, batch.requests.cell[p.row[lane] + place] - p.out[lane])


def place(batch: Batch, pool: Pool, lanes: Ints) -> None:
    """Place the next request of each of `lanes`."""
    source, end = pool.source, pool.placed_end[lanes]
    place = pool.place_next(lanes)
    at = pool.source_row[lanes] + place
    arrival = source.arrivals[at] / pool.speed[lanes]
    batch.append(lanes, end, arrival, source.prompts[at], source.totals[at], batch.params.out[lanes] + place)


def _more_may_join(batch: Batch, pool: Pool, lanes: Ints) -> Bools:
    """Whether all that are placed in `lanes` could be admitted now, so that the next one matters. [n]"""
    p, r, queue, decodes = batch.params, batch.requests, batch.queue, batch.decodes
    head, end, row = queue.head[lanes], pool.placed_end[lanes], p.row[lanes]
    number = end - head
    more: Bools = number < p.max_running[lanes] - decodes.running[lanes]
    if batch.paged:
        row = p.block_row[lanes]
        blocks = r.blocks_before[row + end] - r.blocks_before[row + head]
        if queue.any_preempted:  # somebody in front of all
            blocks = np.where(queue.preempted_waiting[lanes] > 0, blocks + queue.head_blocks[lanes], blocks)
        if batch.any_chunk_fits:
            all_but_last = r.blocks_before[row + np.maximum(end - 1, head)] - r.blocks_before[row + head]
            blocks = np.where(p.chunk_fits[lanes], all_but_last, blocks)
        more &= batch.memory.may_fit_at(lanes, blocks)
    if not (batch.any_exclusive or batch.reserve):
        return more
    limit = p.max_tokens[lanes]
    if batch.reserve and batch.budgets:
        left = batch.prefills.prefill_left[lanes]
        limit = p.budget[lanes] - decodes.decoding[lanes] - np.where(left < NO_PREFILL, left, ZERO)
    more &= r.prompts_before[row + end] - r.prompts_before[row + head] <= limit
    if batch.reserve and batch.rules.decodes:
        last = np.where(number > 0, r.total[row + np.maximum(end - 1, 0)], ZERO)
        more &= batch.reserved_memory.fits(lanes, last)
    return more
