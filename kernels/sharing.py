"""Phase *share out*: the next batch of lanes with a running list is made up, from one budget of tokens, in order.

Who runs goes on, in the order of admission; then heads of the queue begin. The rules are in docs/vllm.md.
"""

from __future__ import annotations

import numpy as np

from .arrays import ZERO, Bools, Floats, Ints
from .batch import Batch
from .ordering import let_in, place, put_back
from .params import NO_LIMIT
from .request_rows import blocks_for
from .running_list import RunningList, lacking

_NOBODY = np.zeros(0, np.int64)
STALLS = 1000  # so many batches may preempt somebody and no token be sent before the guard against livelock works


def share_out(batch: Batch) -> None:
    """Make up the batch of the step that begins now, where none was fixed before."""
    running, clock = batch.running_list, batch.clock
    lanes = batch.due((running.size > 0) | (batch.queue.head_arrival <= clock.now))
    if batch.any_async:
        width = running.width
        lanes &= ~running.share[:, :width].any(axis=1)
    make_up(batch, lanes, clock.now)


def make_up(batch: Batch, lanes: Bools, seen: Floats) -> None:
    """Make up the next batch of `lanes`, which see who has arrived by `seen`. Both [L]."""
    if not np.count_nonzero(lanes):
        return
    running, queue = batch.running_list, batch.queue
    if batch.pool is not None:
        let_in(batch, batch.pool, np.where(lanes, seen, -np.inf))
        _refresh(batch, (lanes & (running.size < batch.params.max_running)).nonzero()[0])
    cap = _cap(batch, seen) if batch.any_capped else None
    _go_on(batch, lanes, seen, cap)
    if batch.any_priority and running.has_preempted.any():
        _refresh(batch, _NOBODY)
    ready = lanes & ~running.has_preempted & (queue.head_arrival <= seen) & (running.left > ZERO)
    ready &= running.size < batch.params.max_running
    _begin(batch, ready.nonzero()[0], seen, cap)


# Who runs goes on.


def _go_on(batch: Batch, lanes: Bools, seen: Floats, cap: Floats | None) -> None:
    p, running = batch.params, batch.running_list
    width = running.width
    tokens, computed = running.tokens[:, :width], running.computed[:, :width]
    wanted = tokens - computed
    if batch.any_async:
        wanted *= tokens < running.ends_at[:, :width]  # the last token is sent in the step under way
    if cap is not None:
        wanted = np.minimum(wanted, cap[:, None])
    share = wanted
    over = (wanted.sum(axis=1) > p.budget).nonzero()[0]
    if over.size:
        share = wanted.copy()
        share[over] = _within(wanted[over], p.budget[over])
    preempting = np.zeros(lanes.size, np.bool_)
    if batch.paged:
        need = lacking(computed, share, running.held[:, :width], p.block_size_f[:, None])
        need *= p.num_blocks[:, None] < NO_LIMIT
        preempting = lanes & (need.sum(axis=1) > running.blocks_free)
        running.give(lanes & ~preempting, share, need)
        short = preempting.nonzero()[0]
        if short.size:
            _contend(batch, short, wanted[short])
    else:
        running.give(lanes, share, np.zeros(share.shape))
    running.note_made_up(lanes, preempting, seen)


def _cap(batch: Batch, seen: Floats) -> Floats:
    """Most tokens of a request in the coming step. [L]"""
    p, queue, pool = batch.params, batch.queue, batch.pool
    if pool is None:
        next_two = batch.requests.arrival[p.row + queue.head + np.arange(2)[:, None]] / p.rate
        waiting = (next_two <= seen).sum(axis=0)
    else:
        waiting = pool.waiting + pool.placed_end - queue.head
    together = batch.running_list.size + queue.preempted_waiting + waiting
    capped: Floats = np.where(together > 1, p.most_share, np.inf)
    return capped


def _within(wanted: Floats, budget: Floats) -> Floats:
    """What each gets of a budget, in order. [n, w], [n]"""
    before = wanted.cumsum(axis=1) - wanted
    gets: Floats = np.minimum(np.maximum(budget[:, None] - before, ZERO), wanted)
    return gets


def _contend(batch: Batch, lanes: Ints, wanted: Floats) -> None:
    """The same in `lanes` [n] where blocks are short: one asks after the other, and each round preempts somebody.
    `wanted` [n, w]."""
    p, running = batch.params, batch.running_list
    n, width = wanted.shape
    size, wanted = p.block_size_f[lanes][:, None], wanted.copy()
    computed, held = running.computed[lanes, :width], running.held[lanes, :width]
    free, left, share = running.blocks_free[lanes], p.budget[lanes].copy(), np.zeros((n, width))
    place = np.arange(width)
    alive = place < running.size[lanes][:, None]
    at = np.zeros(n, np.int64)  # who asks next
    asks = np.arange(n)
    while asks.size:
        coming = alive[asks] & (place >= at[asks, None])
        gets = _within(wanted[asks] * coming, left[asks])
        need = np.where(gets > ZERO, lacking(computed[asks], gets, held[asks], size[asks]), ZERO)
        fails = need.cumsum(axis=1) > free[asks, None]
        first = np.where(fails.any(axis=1), fails.argmax(axis=1), width)
        got = coming & (place < first[:, None])
        gets_now, needs_now = gets * got, need * got
        share[asks] += gets_now
        held[asks] += needs_now
        free[asks] -= needs_now.sum(axis=1)
        left[asks] -= gets_now.sum(axis=1)
        at[asks] = first
        rows = (first < width).nonzero()[0]
        asks, asked = asks[rows], gets[rows, first[rows]]
        if not asks.size:
            break
        wanted[asks, at[asks]] = asked  # what it asks for stays the same, whoever gives tokens back
        loser = _victims(running, lanes[asks], alive[asks], p.by_priority[lanes[asks]])
        left[asks] += share[asks, loser]
        free[asks] += held[asks, loser]
        alive[asks, loser] = False
        share[asks, loser] = held[asks, loser] = 0
        _preempt(batch, lanes[asks], loser)
    running.keep(lanes, alive, share, held, free, left)


def _victims(running: RunningList, lanes: Ints, alive: Bools, by_priority: Bools) -> Ints:
    """The place of who is preempted next in each of `lanes`, of those `alive` [n, w]. [n]"""
    width = alive.shape[1]
    last: Ints = width - 1 - alive[:, ::-1].argmax(axis=1)
    rows = by_priority.nonzero()[0]
    if rows.size:
        level = np.where(alive[rows], running.level[lanes[rows], :width], -1)
        worst = level == level.max(axis=1)[:, None]
        stalled = running.stalls[lanes[rows]] >= STALLS
        last[rows] = np.where(stalled, width - 1 - worst[:, ::-1].argmax(axis=1), worst.argmax(axis=1))
    return last


def _preempt(batch: Batch, lanes: Ints, places: Ints) -> None:
    """Requests of `lanes` wait again, at `places` of the running list until now. Both [n], different lanes."""
    running, queue, p = batch.running_list, batch.queue, batch.params
    request, tokens = running.place[lanes, places], running.tokens[lanes, places]
    cells = batch.cells(lanes, request)
    batch.decodes.stop_prefill(lanes)
    batch.times.preempt(cells)
    waits = tokens < running.ends_at[lanes, places]  # else it sends its last token in the step under way
    back = waits & p.by_priority[lanes]
    rows = back.nonzero()[0]
    if rows.size:
        assert batch.pool is not None
        batch.times.keep_sent(cells[rows], tokens[rows] - batch.requests.prompt[p.row[lanes[rows]] + request[rows]])
        batch.pool.send(lanes[rows], cells[rows] - p.out[lanes[rows]])
    rows = (waits & ~back).nonzero()[0]
    if rows.size:
        queue.put_in_front(lanes[rows], request[rows], tokens[rows])
        queue.look_at(lanes[rows])


# Heads of the queue begin.


def _begin(batch: Batch, lanes: Ints, seen: Floats, cap: Floats | None) -> None:
    """Admit in `lanes` [n], the heads of whose queues are there, one a lane and round."""
    p, r, queue, running = batch.params, batch.requests, batch.queue, batch.running_list
    while lanes.size:
        again = queue.preempted_waiting[lanes] > 0
        request = queue.head[lanes]
        tokens = r.prompt[p.row[lanes] + request]
        if again.any():
            rows, who = again.nonzero()[0], lanes[again]
            top = queue.preempted_waiting[who] - 1
            request[rows], tokens[rows] = queue.preempted_request[who, top], queue.preempted_tokens[who, top]
        at = p.row[lanes] + request
        cells = batch.cells(lanes, request)
        if batch.any_priority:
            tokens = tokens + np.where(p.by_priority[lanes], batch.times.sent[cells], 0)
        size, paged = p.block_size_f[lanes], p.num_blocks[lanes] < NO_LIMIT
        found, taken = np.zeros(lanes.size), np.zeros(lanes.size)
        wanted = tokens - found
        if cap is not None:
            wanted = np.minimum(wanted, cap[lanes])
        share = np.minimum(wanted, running.left[lanes])
        blocks = np.where(paged, blocks_for(found + share, size), ZERO)
        asked = np.where(p.chunk_fits[lanes] | ~paged, blocks, blocks_for(tokens, size))
        asked = asked + taken + np.where(running.size[lanes] > 0, p.spare[lanes], ZERO)
        fits = (asked <= running.blocks_free[lanes]) & ((share == wanted) | ~p.unsplit[lanes])
        if not fits.all():
            lanes, request, tokens, at, cells, found, share, blocks, taken, again = (
                values[fits] for values in (lanes, request, tokens, at, cells, found, share, blocks, taken, again)
            )
            if not lanes.size:
                return
        level = _levels(batch, lanes, cells)
        running.admit(lanes, request, tokens, r.total[at], found, share, blocks, taken + blocks, level)
        queue.take_head(lanes, again)
        batch.decodes.admit_one(lanes)
        first = np.isnan(batch.times.admitted_s[cells]).nonzero()[0]
        batch.times.admit(cells[first], batch.clock.now[lanes[first]])
        if batch.pool is not None:
            batch.pool.keep_places(queue.head)
            _refresh(batch, lanes)
        more = (running.left[lanes] > ZERO) & (running.size[lanes] < p.max_running[lanes])
        lanes = lanes[more & (queue.head_arrival[lanes] <= seen[lanes])]


def _levels(batch: Batch, lanes: Ints, cells: Ints) -> Ints:
    """How soon requests are preempted, where that is by priority. [n]"""
    if not batch.any_priority or batch.pool is None:
        return np.zeros(lanes.size, np.int64)
    pool = batch.pool
    level: Ints = pool.source.level_of[pool.rank_row[lanes] + cells - batch.params.out[lanes]]
    return level


def _refresh(batch: Batch, lanes: Ints) -> None:
    """Let the head of the queue of each of `lanes` [n] be who is next in its order of service."""
    pool, queue = batch.pool, batch.queue
    assert pool is not None
    old = lanes[pool.out_of_date[lanes]]
    if old.size:
        put_back(batch, pool, old)
    rows = lanes[(pool.waiting[lanes] > 0) & (pool.placed_end[lanes] == queue.head[lanes])]
    if rows.size:
        place(batch, pool, rows)
    following = np.where(pool.waiting > 0, -np.inf, pool.next_arrival)
    batch.requests.close(batch.params.row + pool.placed_end, following)
    queue.look()
