"""When the order of service may change while a lane leaps, where somebody waits who does not fit.

Such a time may be too early, never too late: a leap that ends there goes on in the next loop.
"""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints
from .batch import Batch
from .pool import Pool


def admits_somebody(batch: Batch, part_way: Bools) -> Bools:
    """Lanes that would admit a request that is small enough; `part_way` are those in the middle of a prompt. [L]"""
    p, decodes = batch.params, batch.decodes
    if not batch.reserve:
        return batch.may_admit(batch)
    if not batch.budgets:
        return np.ones(part_way.size, np.bool_)
    return (p.budget > decodes.decoding) & ~part_way


def next_change(batch: Batch, pool: Pool, lanes: Ints) -> Floats:
    """When somebody may come, or age, who goes before the head of the queue of `lanes`. [n]"""
    p, queue = batch.params, batch.queue
    head = queue.head[lanes]
    change = pool.next_arrival[lanes]
    in_front = (queue.preempted_waiting[lanes] > 0) | (head < pool.admitted_end[lanes])  # whoever comes
    change[in_front] = np.inf
    rows = ((head < pool.placed_end[lanes]) & ~in_front).nonzero()[0]
    if rows.size:
        lane, out = lanes[rows], p.out[lanes[rows]]
        place = batch.requests.cell[p.row[lane] + head[rows]] - out
        change[rows] = pool.next_better(lane, place)
        if pool.ages:
            waits = np.isnan(batch.times.admitted_s[out + pool.soon_aged(lane)])
            change[rows] = pool.next_change(lane, place, change[rows], waits)
        # Who goes before it may be here already, where the step before had no tokens left for anybody.
        change[rows[pool.out_of_date[lane]]] = -np.inf
    return change
