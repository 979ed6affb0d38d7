"""Phase *admit*: the head of the queue joins while there is room for it; nobody skips ahead."""

from __future__ import annotations

import numpy as np

from .arrays import ONE, ZERO, Bools, Floats, Ints
from .batch import Batch, asked_of_head, left_of_budget, whole_in_budget
from .params import NO_LIMIT
from .prefills import NO_PREFILL
from .ranges import largest, spread
from .request_rows import blocks_for
from .starting import start_with_kv

_NOTHING = np.zeros(0)


def admit(batch: Batch) -> None:
    """Admit from the queue of every lane, for prefill. Under `prefill_first` as many as one prefill batch holds."""
    ready, batch_tokens, left = _ready(batch)
    if np.count_nonzero(ready):
        _admit_fresh(batch, ready, batch_tokens, left)


def admit_with_kv(batch: Batch) -> None:
    """Admit requests that come with their KV: they decode at once. The blocks that they take are those of the coming
    step, which the leap counts as if they grew in it, from what their prompts hold."""
    ready, batch_tokens, left = _ready(batch)
    if not np.count_nonzero(ready):
        return
    head, count = batch.queue.head, _count(batch, ready, batch_tokens, left)
    _take(batch, count)
    lanes, request, order = spread(head, count)
    place = batch.params.row[lanes] + request
    batch.times.admit(batch.cells(lanes, request), batch.clock.now[lanes])
    start_with_kv(batch, lanes, request, batch.requests.prompt[place], order)
    batch.prefills.skip(batch.queue.head)


def _ready(batch: Batch) -> tuple[Bools, Floats, Floats]:
    """Lanes whose queue's head is a fresh request that joins now, after preempted ones have; and tokens of the prefill
    batch so far, empty where no lane has prefill batches; and tokens of the budget left, empty where no lane asks for
    them. All [L]."""
    p, clock, queue, decodes = batch.params, batch.clock, batch.queue, batch.decodes
    ready = batch.due((queue.head_arrival <= clock.now) & batch.may_admit(batch))
    batch_tokens = np.zeros(clock.now.size * batch.any_exclusive)
    left = left_of_budget(batch) if batch.any_chunks else _NOTHING
    if batch.any_unsplit:
        ready &= whole_in_budget(batch, left)
    if batch.paged:
        gate = asked_of_head(batch, left)
        ready &= batch.memory.fits(ready, gate)
        if queue.any_preempted:
            again = (ready & (queue.preempted_waiting > 0)).nonzero()[0]
            if again.size:
                _admit_preempted(batch, again, gate[again], batch_tokens, left)
                ready &= (queue.head_arrival <= clock.now) & (decodes.running < p.max_running)
                ready &= queue.preempted_waiting == 0
                ready &= batch.memory.fits(ready, asked_of_head(batch, left))
                if batch.any_chunks:
                    ready &= left > ZERO
                if batch.any_unsplit:
                    ready &= whole_in_budget(batch, left)
                if batch.any_exclusive:
                    prompt = batch.requests.prompt[p.row + queue.head]
                    ready &= (batch_tokens == 0) | (batch_tokens + prompt <= p.max_tokens)
    return ready, batch_tokens, left


def _admit_preempted(batch: Batch, lanes: Ints, gate: Floats, batch_tokens: Floats, left: Floats) -> None:
    """Admit preempted requests, one a lane and round; adds to `batch_tokens`, and takes from `left`."""
    p, queue, decodes, memory, prefills = batch.params, batch.queue, batch.decodes, batch.memory, batch.prefills
    changed, blocks = lanes, queue.head_blocks[lanes]
    lanes = lanes[memory.fits_at(lanes, gate)]  # all of them do; counted, as more are taken from it
    while lanes.size:
        tokens = queue.take_preempted(lanes)
        decodes.admit_one(lanes)
        if batch.any_chunks:
            piece = np.minimum(tokens, left[lanes])
            blocks = np.where(p.takes_chunks[lanes], blocks_for(piece, p.block_size_f[lanes]), blocks)
            left[lanes] -= np.where(p.takes_chunks[lanes], piece, ZERO)
        memory.take_at(lanes, blocks)
        first = (prefills.prefill_left[lanes] == NO_PREFILL).nonzero()[0]
        prefills.begin(lanes[first], tokens[first])
        if batch.any_exclusive:
            batch_tokens[lanes] += tokens
        lanes = lanes[(queue.preempted_waiting[lanes] > 0) & (decodes.running[lanes] < p.max_running[lanes])]
        if batch.any_chunks:
            lanes = lanes[left[lanes] > ZERO]
        if batch.any_unsplit:
            lanes = lanes[(queue.preempted_head_tokens(lanes) <= left[lanes]) | ~p.unsplit[lanes]]
        if batch.any_exclusive:
            lanes = lanes[batch_tokens[lanes] + queue.preempted_head_tokens(lanes) <= p.max_tokens[lanes]]
        if lanes.size:
            blocks = queue.blocks_of_preempted(lanes)
            asked = blocks
            if batch.any_chunk_fits:
                first = blocks_for(np.minimum(queue.preempted_head_tokens(lanes), left[lanes]), p.block_size_f[lanes])
                asked = np.where(p.chunk_fits[lanes], first, blocks)
            fits = memory.fits_at(lanes, asked + p.spare[lanes])
            lanes, blocks = lanes[fits], blocks[fits]
    queue.look_at(changed)


def _admit_fresh(batch: Batch, ready: Bools, batch_tokens: Floats, left: Floats) -> None:
    """Admit fresh requests in the lanes `ready`, into which the first of each fits."""
    p, queue, prefills = batch.params, batch.queue, batch.prefills
    head, count = queue.head, _count(batch, ready, batch_tokens, left)
    prompts_before = queue.prompts_at_head
    _take(batch, count)
    if batch.any_chunks and batch.paged:
        _give_later_pieces_back(batch, ready, queue.prompts_at_head - prompts_before - left)
    if batch.budgets:
        first = (ready & (prefills.prefill_left == NO_PREFILL)).nonzero()[0]
        prefills.begin(first, batch.requests.prompt[p.row[first] + head[first]])
        # Without a budget the prefill phase of this very loop runs them, and notes the time.
        lanes, request, _ = spread(head, count)
        if queue.any_preempted:
            new = (request >= queue.preempted_until[lanes]).nonzero()[0]
            lanes, request = lanes[new], request[new]
        batch.times.admit(batch.cells(lanes, request), batch.clock.now[lanes])


def _give_later_pieces_back(batch: Batch, ready: Bools, rest: Floats) -> None:
    """The last admitted takes blocks for the tokens of this step alone: all but `rest` of it. [L]"""
    p = batch.params
    lanes = (ready & p.takes_chunks & (rest > ZERO) & (p.num_blocks < NO_LIMIT)).nonzero()[0]
    if lanes.size:
        tokens, size = batch.requests.prompt[p.row[lanes] + batch.queue.head[lanes] - 1], p.block_size_f[lanes]
        batch.memory.take_at(lanes, blocks_for(tokens - rest[lanes], size) - blocks_for(tokens, size))


def _take(batch: Batch, count: Ints) -> None:
    """The next `count` fresh requests of each lane leave the queue, and take their blocks. [L]"""
    queue = batch.queue
    blocks_before = queue.blocks_at_head
    batch.decodes.admit(count)
    queue.move(queue.head + count)
    if batch.pool is not None:
        batch.pool.keep_places(queue.head)
    if batch.paged:
        batch.memory.take(queue.blocks_at_head - blocks_before, batch.rules.prefills)


def _count(batch: Batch, ready: Bools, batch_tokens: Floats, left: Floats) -> Ints:
    """How many fresh requests join in the lanes `ready`, into which the first of each fits; 0 elsewhere. [L]"""
    p, r, queue, now, running = batch.params, batch.requests, batch.queue, batch.clock.now, batch.decodes.running
    count = ready.astype(np.int64)
    more = ready & (running + ONE < p.max_running) & (r.arrival[p.row + (queue.head + 1)] / p.rate <= now)
    if batch.any_chunks:
        more &= r.prompt[p.row + queue.head] < left
    if batch.paged:
        # Where blocks are counted, a finish mostly makes room for one request: one look saves a search.
        two = r.blocks_before[p.block_row + (queue.head + 2)] - queue.blocks_at_head
        if batch.any_chunk_fits:
            two = np.where(p.chunk_fits, ZERO, two)
        more &= batch.memory.may_fit(two)
    lanes = more.nonzero()[0]
    if not lanes.size:
        return count
    head = queue.head[lanes]
    most = np.minimum((p.max_running[lanes] - running[lanes]).astype(np.int64), batch.row_end(lanes) - head)
    if not batch.paged:
        count[lanes] = _search(batch, lanes, most, batch_tokens, left)
        return count

    def search(rows: Ints | slice) -> Ints:
        return _search(batch, lanes[rows], most[rows], batch_tokens, left)

    def stopped_by_blocks(number: Ints) -> Bools:
        following = r.arrival[p.row[lanes] + head + number] / p.rate[lanes]
        limited: Bools = (number < most) & (following <= now[lanes])
        return limited

    count[lanes] = batch.memory.fitting(lanes, search, stopped_by_blocks)
    return count


def _search(batch: Batch, lanes: Ints, most: Ints, batch_tokens: Floats, left: Floats) -> Ints:
    """How many of the `most` requests from the head on join together: arrived, with blocks for them, and within the
    prefill batch. The head itself is known to join. [n]"""
    p, r, queue = batch.params, batch.requests, batch.queue
    head, rate, now = queue.head[lanes], p.rate[lanes], batch.clock.now[lanes]
    begin = p.row[lanes] + head
    last = begin - 1  # with the number of requests added: the last of them
    if batch.paged:
        block_begin = p.block_row[lanes] + head
        fit = batch.memory.fit_together(lanes, queue.blocks_at_head[lanes] - p.spare[lanes])
    if batch.any_exclusive:
        most_prompts = queue.prompts_at_head[lanes] + p.max_tokens[lanes] - batch_tokens[lanes]

    if batch.any_chunks:
        begins_before = queue.prompts_at_head[lanes] + left[lanes]

    def test(rows: Ints | slice, number: Ints) -> Bools:
        ok: Bools = r.arrival[last[rows] + number] / rate[rows] <= now[rows]
        if batch.paged:
            blocks = r.blocks_before[block_begin[rows] + number]
            if batch.any_chunk_fits:
                lane, at = lanes[rows], last[rows] + number
                tokens = np.minimum(r.prompt[at], begins_before[rows] - r.prompts_before[at])
                first = r.blocks_before[block_begin[rows] + number - 1] + blocks_for(tokens, p.block_size_f[lane])
                blocks = np.where(p.chunk_fits[lane], first, blocks)
            ok &= fit(rows, blocks)
        if batch.any_chunks:
            ok &= r.prompts_before[last[rows] + number] < begins_before[rows]
        if batch.any_unsplit:
            ok &= (r.prompts_before[begin[rows] + number] <= begins_before[rows]) | ~p.unsplit[lanes[rows]]
        if batch.any_exclusive:
            ok &= r.prompts_before[begin[rows] + number] <= most_prompts[rows]
        return ok

    return largest(np.ones(lanes.size, np.int64), most + 1, test)
