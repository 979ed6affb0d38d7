"""Phase *share out*: the next batch of lanes with a running list is made up, from one budget of tokens, in order.

Who runs goes on, in the order of admission; then heads of the queue begin. The rules are in docs/vllm.md.
"""

from __future__ import annotations

import numpy as np

from .arrays import ONE, ZERO, Bools, Floats, Ints
from .batch import Batch
from .ordering import let_in, place, put_back
from .params import NO_LIMIT
from .request_rows import blocks_for
from .running_list import RunningList, full_blocks, lacking

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
    running = batch.running_list
    if batch.pool is not None:
        let_in(batch, batch.pool, np.where(lanes, seen, -np.inf))
        _refresh(batch, (lanes & (running.size < batch.params.max_running)).nonzero()[0])
    cap = _cap(batch, seen) if batch.any_capped else None
    mixes = lanes
    if batch.any_exclusive:
        mixes = lanes & (batch.params.mixes_prefill > ZERO)
        lanes = lanes & ~_begin_apart(batch, lanes & ~mixes, seen)
    _go_on(batch, lanes, seen, cap)
    if batch.any_priority and running.has_preempted.any():
        _refresh(batch, _NOBODY)
    if batch.cache is not None:
        register(batch, lanes & ~running.has_preempted)
    _begin(batch, _ready(batch, mixes & ~running.has_preempted, seen), seen, cap)


def _ready(batch: Batch, lanes: Bools, seen: Floats) -> Ints:
    """Those of `lanes` [L] in which one more may join, if it fits. [n]"""
    running = batch.running_list
    ready = lanes & (batch.queue.head_arrival <= seen) & (running.size < batch.params.max_running)
    rows: Ints = (ready & has_tokens(batch)).nonzero()[0]
    return rows


def has_tokens(batch: Batch) -> Bools:
    """Where whoever joins gets tokens, or need not. [L]"""
    tokens: Bools = (batch.running_list.left > ZERO) | ~batch.params.takes_chunks
    return tokens


def _begin_apart(batch: Batch, lanes: Bools, seen: Floats) -> Bools:
    """The same of instances whose steps either prefill or decode: those in which somebody has joined, who is then alone
    in the batch. [L]"""
    running = batch.running_list
    nothing = np.zeros((lanes.size, running.width))
    before = running.size.copy()
    running.give(lanes, nothing, nothing)
    running.note_made_up(lanes, np.zeros(lanes.size, np.bool_), seen)
    _begin(batch, _ready(batch, lanes, seen), seen, None)
    return running.size > before


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
        need = np.maximum(lacking(computed, share, running.held[:, :width], p.block_size_f[:, None]), ZERO)
        need *= p.num_blocks[:, None] < NO_LIMIT
        preempting = lanes & (need.sum(axis=1) > running.blocks_free)
        running.give(lanes & ~preempting, share, need)
        if batch.cache is not None:
            rows = (lanes & ~preempting & p.caches).nonzero()[0]
            batch.cache.take(rows, need[rows].sum(axis=1).astype(np.int64))
        short = preempting.nonzero()[0]
        if short.size:
            _contend(batch, short, wanted[short])
    else:
        running.give(lanes, share, np.zeros(share.shape))
    running.note_made_up(lanes, preempting, seen)


def register(batch: Batch, lanes: Bools) -> None:
    """What the next batch of `lanes` [L] will have computed is known by its content, as far as its tokens are known."""
    p, running, cache = batch.params, batch.running_list, batch.cache
    assert cache is not None
    width = running.width
    rows = (lanes & p.caches).nonzero()[0]
    share = running.share[rows, :width]
    blocks = _known_blocks(batch, rows, running.computed[rows, :width] + share)
    row, place = ((share > ZERO) & (blocks > running.registered[rows, :width])).nonzero()
    if row.size:
        lane = rows[row]
        requests = requests_at(batch, lane, place)
        cache.register(lane, requests, running.registered[lane, place], blocks[row, place])
        running.register(lane, place, blocks[row, place])


def requests_at(batch: Batch, lanes: Ints, places: Ints) -> Ints:
    """Who is at places of the running list, as chains.py counts them: by place in the queue. Of one shape, or
    broadcast."""
    requests: Ints = batch.cells(lanes, batch.running_list.place[lanes, places]) - batch.params.out[lanes]
    return requests


def _known_blocks(batch: Batch, lanes: Ints, computed: Floats) -> Ints:
    """Full blocks of who has so many tokens `computed` [n, w], and known, in `lanes` [n]."""
    running, width = batch.running_list, computed.shape[1]
    if batch.any_async:
        computed = np.minimum(computed, running.tokens[lanes, :width] - running.unknown[lanes, :width])
    blocks: Ints = full_blocks(computed, batch.params.block_size_f[lanes][:, None])
    return blocks


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
    registered, whole = running.registered[lanes, :width], running.whole_nodes[lanes, :width]
    cache = batch.cache
    requests = requests_at(batch, lanes[:, None], np.arange(width))
    free, left, share = running.blocks_free[lanes], p.budget[lanes].copy(), np.zeros((n, width))
    place = np.arange(width)
    alive = place < running.size[lanes][:, None]
    at = np.zeros(n, np.int64)  # who asks next
    asks = np.arange(n)
    while asks.size:
        coming = alive[asks] & (place >= at[asks, None])
        gets = _within(wanted[asks] * coming, left[asks])
        need = np.maximum(lacking(computed[asks], gets, held[asks], size[asks]), ZERO) * (gets > ZERO)
        fails = need.cumsum(axis=1) > free[asks, None]
        first = np.where(fails.any(axis=1), fails.argmax(axis=1), width)
        got = coming & (place < first[:, None])
        gets_now, needs_now = gets * got, need * got
        share[asks] += gets_now
        held[asks] += needs_now
        free[asks] -= needs_now.sum(axis=1)
        left[asks] -= gets_now.sum(axis=1)
        at[asks] = first
        if cache is not None:
            rows = p.caches[lanes[asks]].nonzero()[0]
            mine, who = asks[rows], lanes[asks[rows]]
            cache.take(who, needs_now[rows].sum(axis=1).astype(np.int64))
            blocks = _known_blocks(batch, who, computed[mine] + share[mine])
            row, place_of = (got[rows] & (gets[rows] > ZERO) & (blocks > registered[mine])).nonzero()
            at_row = mine[row]
            cache.register(who[row], requests[at_row, place_of], registered[at_row, place_of], blocks[row, place_of])
            registered[at_row, place_of] = blocks[row, place_of]
        rows = (first < width).nonzero()[0]
        asks, asked = asks[rows], gets[rows, first[rows]]
        if not asks.size:
            break
        wanted[asks, at[asks]] = asked  # what it asks for stays the same, whoever gives tokens back
        loser = _victims(running, lanes[asks], alive[asks], p.by_priority[lanes[asks]])
        left[asks] += share[asks, loser]
        freed = held[asks, loser]
        if cache is not None:
            rows = p.caches[lanes[asks]].nonzero()[0]
            mine, lost = asks[rows], loser[rows]
            freed[rows] = cache.release(
                lanes[mine],
                requests[mine, lost],
                registered[mine, lost],
                held[mine, lost].astype(np.int64),
                whole[mine, lost],
            )
        free[asks] += freed
        alive[asks, loser] = False
        share[asks, loser] = held[asks, loser] = 0
        _preempt(batch, lanes[asks], loser)
    running.keep(lanes, alive, share, held, registered, free, left)


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
    batch_tokens = np.zeros(batch.clock.now.size * batch.any_exclusive)
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
        found_blocks, idle = np.zeros((2, lanes.size), np.int64)
        if batch.cache is not None:
            rows = p.caches[lanes].nonzero()[0]
            most = full_blocks(tokens[rows] - ONE, size[rows])
            found_blocks[rows], idle[rows] = batch.cache.find(lanes[rows], (cells - p.out[lanes])[rows], most)
        found = size * found_blocks
        wanted = tokens - found
        if cap is not None:
            wanted = np.minimum(wanted, cap[lanes])
        share = np.minimum(wanted, running.left[lanes])
        whole = np.where(paged, blocks_for(tokens, size) - found_blocks, ZERO)
        blocks = np.where(paged & p.takes_chunks[lanes], blocks_for(found + share, size) - found_blocks, whole)
        asked = (
            np.where(p.chunk_fits[lanes], blocks, whole)
            + idle
            + np.where(running.size[lanes] > 0, p.spare[lanes], ZERO)
        )
        fits = (asked <= running.blocks_free[lanes]) & ((share == wanted) | ~p.unsplit[lanes])
        if batch.any_exclusive:
            batch_tokens[lanes] += tokens - found
            fits &= (batch_tokens[lanes] == tokens - found) | (batch_tokens[lanes] <= p.max_tokens[lanes])
        if not fits.all():
            lanes, request, tokens, at, cells, found_blocks, idle, share, blocks, again, size = (
                values[fits]
                for values in (lanes, request, tokens, at, cells, found_blocks, idle, share, blocks, again, size)
            )
            if not lanes.size:
                return
        level, found, known, whole = _levels(batch, lanes, cells), size * found_blocks, found_blocks, found_blocks
        if batch.cache is not None:
            known, whole = _take_blocks(batch, lanes, cells, (found_blocks, blocks.astype(np.int64)), found + share)
            new = (again | (batch.times.preemptions[cells] > 0)) < p.caches[lanes]
            batch.times.find(cells[new], found[new])
        held: Floats = blocks + found_blocks
        taken: Floats = blocks + idle
        running.admit(lanes, request, tokens, r.total[at], found, share, held, known, whole, taken, level)
        queue.take_head(lanes, again)
        batch.decodes.admit_one(lanes)
        first = np.isnan(batch.times.admitted_s[cells]).nonzero()[0]
        batch.times.admit(cells[first], batch.clock.now[lanes[first]])
        if batch.pool is not None:
            batch.pool.keep_places(queue.head)
            _refresh(batch, lanes)
        more = has_tokens(batch)[lanes] & (running.size[lanes] < p.max_running[lanes])
        lanes = lanes[more & (queue.head_arrival[lanes] <= seen[lanes])]


def _take_blocks(
    batch: Batch, lanes: Ints, cells: Ints, blocks: tuple[Ints, Ints], computed: Floats
) -> tuple[Ints, Ints]:
    """Requests own the `blocks` found, and take new ones; they will have so many tokens `computed`. Returns how many
    blocks are known then, and how many nodes are held as a whole. All [n], different lanes."""
    p, cache = batch.params, batch.cache
    assert cache is not None
    rows = p.caches[lanes].nonzero()[0]
    lanes, requests, computed = lanes[rows], (cells - p.out[lanes])[rows], computed[rows]
    found, new = blocks[0][rows], blocks[1][rows]
    whole = np.zeros(cells.size, np.int64)
    whole[rows] = cache.share(lanes, requests, found)
    cache.take(lanes, new)
    known = blocks[0].copy()
    known[rows] = full_blocks(computed, p.block_size_f[lanes])
    cache.register(lanes, requests, found, known[rows])
    return known, whole


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
