"""Prefills of preempted requests that were admitted again: they come before fresh ones, and count as recomputed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import ZERO, Bools, Floats, Ints
from .batch import Batch
from .prefills import NO_PREFILL
from .ranges import spread
from .request_rows import blocks_for, pairs_of


class Repeated(NamedTuple):
    """Repeated prefills that end in a step: lane, request, tokens processed, place among those of the lane. All [n]."""

    lanes: Ints
    requests: Ints
    tokens: Floats
    order: Ints


def repeat_prefills(batch: Batch, active: Bools, share: Floats) -> tuple[Repeated, Floats, Floats] | None:
    """Spend the share [L] of `active` lanes on preempted requests admitted again, oldest first: those that end, and
    tokens and attention pairs processed, [L]. None without any.

    The oldest ends in this step (its lane is active); the first that does not gets what is left of the share.
    """
    queue, prefills = batch.queue, batch.prefills
    lane = (active & (queue.preempted_size > queue.preempted_waiting)).nonzero()[0]
    if not lane.size:
        return None
    size, room, done = queue.preempted_size[lane], share[lane], prefills.prefill_done[lane]
    count = size - queue.preempted_waiting[lane]
    row, _, order = spread(size, count)
    lanes, index = lane[row], (size - 1)[row] - order
    request, all_tokens = queue.preempted_request[lanes, index], queue.preempted_tokens[lanes, index].astype(np.float64)
    # Tokens of the share that are gone when a request's turn has come and gone.
    following = count.cumsum()
    sums = all_tokens.cumsum()
    reach = sums - (sums[following - count] - all_tokens[following - count] + done)[row]
    ends = (reach <= room[row]).nonzero()[0]
    row, lanes, request, order, ended = row[ends], lanes[ends], request[ends], order[ends], all_tokens[ends]
    number = np.bincount(row, minlength=lane.size)
    spent = np.bincount(row, ended, lane.size)
    rest, left = np.zeros(lane.size), np.full(lane.size, NO_PREFILL)
    cut = (number < count).nonzero()[0]
    if cut.size:
        rest[cut] = room[cut] - (spent[cut] - done[cut])
        left[cut] = all_tokens[(following - count + number)[cut]] - rest[cut]
    used = spent - done + rest
    tokens, pairs = np.zeros(active.size), np.zeros(active.size)
    tokens[lane] = used
    pairs[lane] = np.bincount(row, pairs_of(ended), lane.size) - pairs_of(done) + pairs_of(rest)
    prefills.continue_at(lane, rest, left)
    queue.forget_preempted(lane, number)
    batch.counts.recompute(lane, used)
    batch.counts.repeat(lane, spent)
    if batch.paged:
        blocks = blocks_for(ended, batch.params.block_size_f[lanes])
        batch.memory.end_prefills_at(lane, np.bincount(row, blocks, lane.size))
    return Repeated(lanes, request.astype(np.int64), ended, order), tokens, pairs


def count_recomputed(batch: Batch, active: Bools, share: Floats) -> None:
    """Count the tokens that this step processes of fresh requests preempted in an earlier prefill. All [L]."""
    p, r, queue, prefills = batch.params, batch.requests, batch.queue, batch.prefills
    seen = active & (queue.preempted_until > prefills.first_prefill)
    seen &= queue.preempted_size == queue.preempted_waiting
    lane = seen.nonzero()[0]
    if not lane.size:
        return
    first = prefills.first_prefill[lane]
    row, request, order = spread(first, queue.head[lane] - first)
    again = (batch.times.preemptions[batch.cells(lane[row], request)] > 0).nonzero()[0]
    if not again.size:
        return
    row, request, order = row[again], request[again], order[again]
    lanes = lane[row]
    place = p.row[lanes] + request
    done = prefills.prefill_done[lanes]
    # Tokens of the share that are gone before this request's turn, counted from the beginning of the part-way one.
    offset = r.prompts_before[place] - r.prompts_before[place - order]
    after = np.minimum(np.maximum(done + share[lanes] - offset, ZERO), r.prompt[place])
    before = np.where(order == 0, done, ZERO)
    batch.counts.recompute(lanes, after - before)
