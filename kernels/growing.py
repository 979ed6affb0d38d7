"""Phase *grow*: decoding requests take the blocks of the coming step; when there are too few, the youngest lose
theirs."""

from __future__ import annotations

import numpy as np

from .arrays import ONE, ZERO, Floats, Ints
from .batch import Batch
from .params import NO_LIMIT
from .prefills import NO_PREFILL
from .request_rows import blocks_for
from .slots import end_of, request_of


def grow(batch: Batch) -> None:
    """Grow before steps that decode beside prefills, whoever is admitted then."""
    decodes = batch.memory.blocks_exact & (batch.decodes.decoding > ZERO)
    if batch.any_exclusive:
        decodes &= batch.params.mixes_prefill > ZERO
    _grow(batch, batch.due(decodes).nonzero()[0])
    if batch.any_chunks:
        _grow_prefills(batch)


def _grow_prefills(batch: Batch) -> None:
    """The part-way prefill takes the blocks of its coming piece, after the decodes; where they are not free, it is the
    youngest, and is preempted itself."""
    p, prefills, memory = batch.params, batch.prefills, batch.memory
    part_way = p.takes_chunks & (prefills.prefill_left < NO_PREFILL) & (p.num_blocks < NO_LIMIT)
    lanes = batch.due(part_way).nonzero()[0]
    if not lanes.size:
        return
    piece = np.minimum(prefills.prefill_left[lanes], p.budget[lanes] - batch.decodes.decoding[lanes])
    blocks = blocks_for(prefills.prefill_done[lanes] + piece, p.block_size_f[lanes]) - memory.prefill_blocks[lanes]
    fits = memory.fit_or_not(lanes, blocks)
    memory.take_at(lanes[fits], blocks[fits])
    short = lanes[~fits]
    if short.size:
        _preempt_youngest(batch, short)
        batch.queue.look_at(short)
        if batch.any_chunk_fits:
            batch.queue.preempt_in_step(short[p.chunk_fits[short]])


def grow_apart(batch: Batch) -> None:
    """Grow before steps that only decode, of lanes whose prefill steps are steps of their own: where nobody can be
    admitted now."""
    p, memory, queue, decodes = batch.params, batch.memory, batch.queue, batch.decodes
    grows = memory.blocks_exact & (decodes.decoding > ZERO) & (decodes.next_end > batch.clock.tick)
    admits = (queue.head_arrival <= batch.clock.now) & memory.fits(grows, queue.head_blocks)
    if batch.pool is not None:
        admits |= batch.pool.changed_by(batch.clock.now)  # perhaps: who is the head is known in the next loop
    grows &= ~(admits & batch.may_admit(batch))
    if batch.any_mixed:
        grows &= p.mixes_prefill == ZERO
    _grow(batch, batch.due(grows).nonzero()[0])


def _grow(batch: Batch, lanes: Ints) -> None:
    """Take the coming step's growth in `lanes`; preempt until none is missing.

    Only lanes whose blocks are counted exactly need this: elsewhere `free` is a lower bound that already allows for
    growth. Preempting the youngest until the survivors' demand fits ends as asking one by one does: a victim is never
    older than the request that asks, so it has not grown in this step.
    """
    if not lanes.size:
        return
    memory, queue = batch.memory, batch.queue
    preempting = victims = memory.grow(lanes)
    if not victims.size:
        return
    while victims.size:
        _preempt_youngest(batch, victims)
        victims = memory.short(victims)
    # The queue's head is now a preempted request. Blocks are free for the survivors only, never for it: see
    # docs/scheduler.md.
    queue.look_at(preempting)
    if batch.any_chunk_fits:
        queue.preempt_in_step(preempting[batch.params.chunk_fits[preempting]])


def _preempt_youngest(batch: Batch, lanes: Ints) -> None:
    """Take the blocks of one request in each of `lanes`: a fresh prefill, else a repeated one, else a decoding
    request."""
    queue = batch.queue
    fresh = queue.head[lanes] > batch.prefills.first_prefill[lanes]
    again = (queue.preempted_size[lanes] > queue.preempted_waiting[lanes]) & ~fresh
    for preempt, chosen in (
        (_preempt_fresh_prefill, fresh),
        (_preempt_repeated_prefill, again),
        (_preempt_decoding, ~(fresh | again)),
    ):
        rows = chosen.nonzero()[0]
        if rows.size:
            preempt(batch, lanes[rows])


def _preempt_fresh_prefill(batch: Batch, lanes: Ints) -> None:
    p, queue = batch.params, batch.queue
    request = queue.put_back_fresh(lanes)
    tokens = batch.requests.prompt[p.row[lanes] + request]
    alone = (request == batch.prefills.first_prefill[lanes]) & (
        queue.preempted_size[lanes] == queue.preempted_waiting[lanes]
    )
    _release_prefill(batch, lanes, request, tokens, lanes[alone])


def _preempt_repeated_prefill(batch: Batch, lanes: Ints) -> None:
    queue = batch.queue
    request, tokens = queue.put_back_preempted(lanes)
    alone = queue.preempted_waiting[lanes] == queue.preempted_size[lanes]
    _release_prefill(batch, lanes, request, tokens, lanes[alone])


def _release_prefill(batch: Batch, lanes: Ints, requests: Ints, tokens: Floats, last: Ints) -> None:
    """Common to both kinds of prefill; `last` are the lanes in which the part-way one was hit: its progress is lost."""
    batch.decodes.stop_prefill(lanes)
    blocks = blocks_for(tokens, batch.params.block_size_f[lanes])
    if batch.any_chunks:  # there the part-way one is the only one
        blocks = np.where(batch.params.takes_chunks[lanes], batch.memory.prefill_blocks[lanes], blocks)
    batch.memory.preempt_prefill(lanes, blocks)
    batch.counts.repeat(last, batch.prefills.lose(last))
    batch.times.preempt(batch.cells(lanes, requests))


def _preempt_decoding(batch: Batch, lanes: Ints) -> None:
    decodes = batch.decodes
    index = decodes.youngest(lanes)
    slot = decodes.slots.ravel()[index]
    request, tick = request_of(slot), batch.clock.tick[lanes]
    tokens = batch.requests.total[batch.params.row[lanes] + request] - (end_of(slot) - tick)
    decodes.preempt(lanes, index, tokens)
    batch.memory.preempt_decode(lanes, tick, tokens - ONE)
    batch.queue.put_in_front(lanes, request, tokens)
    batch.times.preempt(batch.cells(lanes, request))
