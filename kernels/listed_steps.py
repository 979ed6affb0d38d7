"""Phase *step*: lanes with a running list take the step whose batch is made up, and as many more as nothing is decided
in; then whoever has sent the last token leaves."""

from __future__ import annotations

import numpy as np

from . import itl
from .arrays import ALL, ONE, ZERO, Bools, Floats, Ints
from .batch import Batch
from .lines import end_after, step_time_lines, until_arrival
from .params import NO_LIMIT
from .ranges import largest, spread
from .request_rows import blocks_for, pairs_of
from .running_list import full_blocks
from .sharing import has_tokens, make_up, register, requests_at
from .steplog import StepLog


def step(batch: Batch) -> None:
    """Take the step of every lane that has one."""
    p, running, clock = batch.params, batch.running_list, batch.clock
    width = running.width
    share, decodes = running.share[:, :width], running.is_decoding[:, :width]
    goes: Bools = batch.due(share.max(axis=1, initial=0) > ZERO)
    if not np.count_nonzero(goes):
        return
    tokens, computed = running.tokens[:, :width], running.computed[:, :width]
    begin = clock.now
    emits = (share > ZERO) & decodes & goes[:, None]
    piece = np.where(decodes, ZERO, share) * goes[:, None]
    decoding, context = emits.sum(axis=1).astype(np.float64), (tokens * emits).sum(axis=1)
    chunk = piece.sum(axis=1)
    prefills = chunk > ZERO

    first, half, crossing = step_time_lines(batch, ALL, decoding, context)
    steps = _steps(batch, goes & ~prefills & (decoding == running.size), first, half, crossing)
    steps = np.maximum(steps, ONE) * goes
    end, emitting = end_after(begin, first, half, steps), decoding
    if np.count_nonzero(prefills):
        pairs = (piece * computed + pairs_of(piece)).sum(axis=1)
        done = (computed * (piece > ZERO)).sum(axis=1)
        ends = (piece > ZERO) & (computed + piece == tokens)
        emitting = decoding + ends.sum(axis=1)
        seconds = batch.step_times.seconds(decoding, context, chunk, pairs, done, emitting)
        end = np.where(prefills, begin + seconds, end)
    end = np.where(goes, end, begin)

    used = p.num_blocks - running.blocks_free
    running.note_blocks(goes, used)
    if batch.log is not None:
        _log(batch, batch.log, goes, (steps, first, half, end), (emitting, decoding + chunk, used))
    if batch.keeps_itl:
        itl.leap(batch, steps * ~prefills, first, half, end, decoding * ~prefills, emits)
        itl.decode_step(batch, prefills, end, emits)
    ended = running.process(steps)
    started = _end_prefills(batch, piece, ended, end) if np.count_nonzero(prefills) else None
    more = (steps > ONE).nonzero()[0]
    if more.size and batch.paged:
        _grow(batch, more, steps[more])
    clock.leap(end, steps)
    if batch.keeps_itl and started is not None:
        itl.start(batch, *started, emits=True)
    _note_done(batch, ended, end)
    if batch.any_async:
        fixes = goes & p.is_async
        make_up(batch, fixes, end_after(begin, first, half, np.maximum(steps - ONE, ZERO)))
        running.know(goes)
        if batch.cache is not None:
            register(batch, fixes)


def _log(
    batch: Batch,
    log: StepLog,
    goes: Bools,
    times: tuple[Floats, Floats, Floats, Floats],
    counts: tuple[Floats, Floats, Floats],
) -> None:
    """Write down the steps of lanes, before they are processed: `times` are their number, the first and half the growth
    of what they take, and the end; `counts` tokens sent and processed in each, and blocks held in the first. [L]"""
    p, running = batch.params, batch.running_list
    rows = (log.wanted[p.lane] & goes).nonzero()[0]
    if not rows.size:
        return
    steps, first, half, end = (values[rows] for values in times)
    row, number, _ = spread(np.zeros(rows.size, np.int64), steps.astype(np.int64))
    lane, before = rows[row], number.astype(np.float64)
    begin = end_after(batch.clock.now[lane], first[row], half[row], before)
    ends = np.where(steps[row] > ONE, end_after(batch.clock.now[lane], first[row], half[row], before + ONE), end[row])
    emitted, tokens, used = (values[lane] for values in counts)
    size, width = p.block_size_f[lane][:, None], running.width
    after = running.computed[lane, :width] + running.share[lane, :width]  # the first step
    room = running.held[lane, :width] * size - after
    grown = np.where(_there(running.size[lane], width), np.ceil(np.maximum(before[:, None] - room, ZERO) / size), ZERO)
    blocks = np.where(p.num_blocks[lane] < NO_LIMIT, used + grown.sum(axis=1), ZERO)
    log.write(p.lane[lane], (begin, ends, running.size[lane].astype(np.float64), emitted, tokens, blocks))


def _steps(batch: Batch, steady: Bools, first: Floats, half: Floats, crossing: Floats | None) -> Floats:
    """How many steps lanes take in which all that runs decodes: as many as nobody is admitted in or ends before the
    last, and blocks are there for; elsewhere 1. [L]"""
    p, running, queue, clock = batch.params, batch.running_list, batch.queue, batch.clock
    width = running.width
    steady = steady & ~running.has_preempted
    rows = steady.nonzero()[0]
    steps = np.ones(steady.size)
    if not rows.size:
        return steps
    most = (running.ends_at[rows, :width] - running.tokens[rows, :width]).min(axis=1)
    if crossing is not None:
        most = np.minimum(most, crossing[rows])
    if batch.paged:
        most = _steps_with_blocks(batch, rows, most)
    admits = (running.size < p.max_running) & has_tokens(batch)
    # Who has been seen and does not join now, does not while blocks only become fewer.
    arrival = np.where(queue.head_arrival > running.seen, queue.head_arrival, np.inf)
    if batch.pool is not None:
        arrival = np.minimum(arrival, np.minimum(batch.pool.next_arrival, batch.pool.next_aged))
        unplaced = (batch.pool.waiting > 0) & (batch.pool.placed_end == queue.head)
        arrival = np.where(batch.pool.out_of_date | unplaced, -np.inf, arrival)
    again = running.seen == -np.inf
    if batch.cache is not None:
        again |= _may_find_more(batch, rows)
    arrival = np.where(admits, np.where(again, -np.inf, arrival), np.inf)
    arrival = arrival[rows]
    later = np.zeros(rows.size)
    if batch.any_async:
        later = p.is_async[rows].astype(np.float64)  # who arrives is seen when the step after that begins
    now = clock.now[rows]
    stops = ((arrival < np.inf) & (most > ONE)).nonzero()[0]
    if stops.size:
        at = rows[stops]
        until, _ = until_arrival(now[stops], arrival[stops], first[at], half[at], most[stops])
        most[stops] = np.minimum(most[stops], until + later[stops])
    if batch.router is not None:
        horizon = batch.inflow.horizon[rows]
        stops = (np.isfinite(horizon) & (most > ONE)).nonzero()[0]
        if stops.size:
            at = rows[stops]
            until, _ = until_arrival(now[stops], horizon[stops], first[at], half[at], most[stops])
            most[stops] = until
    steps[rows] = np.maximum(most, ONE)
    return steps


def _may_find_more(batch: Batch, lanes: Ints) -> Bools:
    """Those of `lanes` [n] whose head waits, and may find more in the prefix cache after a step of those that run, or
    needs less. [L]"""
    p, running, queue, cache = batch.params, batch.running_list, batch.queue, batch.cache
    assert cache is not None
    width = running.width
    may = np.zeros(running.size.size, np.bool_)
    rows = lanes[p.caches[lanes] & (queue.head_arrival[lanes] <= batch.clock.now[lanes])]
    may[rows] = p.chunk_fits[rows]
    if rows.size:
        head = batch.cells(rows, queue.head[rows])
        again = queue.preempted_waiting[rows] > 0
        who = rows[again]
        head[again] = batch.cells(who, queue.preempted_request[who, queue.preempted_waiting[who] - 1].astype(np.int64))
        # The block that becomes known with this step, which instances that prefill apart admit before, or later.
        place = full_blocks(running.computed[rows, :width], p.block_size_f[rows][:, None])
        lane = np.broadcast_to(rows[:, None], place.shape)
        requests = requests_at(batch, lane, np.arange(width))
        first = np.maximum(head - p.out[rows], 0)  # of a head that has no place yet, which is looked at anyway, any
        own = cache.block_at(lane, requests, place)
        of_head = cache.block_at(lane, np.broadcast_to(first[:, None], place.shape), place)
        there = _there(running.size[rows], width)
        may[rows] |= ((own == of_head) & (own >= 0) & there).any(axis=1)
    return may


def _steps_with_blocks(batch: Batch, lanes: Ints, most: Floats) -> Floats:
    """Steps, at least one and at most `most`, that find blocks in `lanes`; those of the first are taken. All [n]"""
    p, running = batch.params, batch.running_list
    width = running.width
    size, computed = p.block_size_f[lanes], running.computed[lanes, :width]
    held, free = running.held[lanes, :width].sum(axis=1), running.blocks_free[lanes]
    there = _there(running.size[lanes], width)

    def fit(rows: Ints | slice, number: Ints) -> Bools:
        tokens = computed[rows] + np.asarray(number, np.float64)[..., None]
        blocks = (np.ceil(tokens / size[rows][:, None]) * there[rows]).sum(axis=-1)
        fits: Bools = blocks - held[rows] <= free[rows]
        return fits

    short = (~fit(ALL, most.astype(np.int64)) & (p.num_blocks[lanes] < NO_LIMIT)).nonzero()[0]
    if short.size:
        ones = np.ones(short.size, np.int64)
        most = most.copy()
        most[short] = largest(ones, most[short].astype(np.int64), lambda rows, n: fit(short[rows], n))
    return most


def _grow(batch: Batch, lanes: Ints, steps: Floats) -> None:
    """Decodes of `lanes` have taken blocks in `steps` steps, the first of which had its own. Both [n]."""
    p, running = batch.params, batch.running_list
    width = running.width
    size, held, computed = p.block_size_f[lanes][:, None], running.held[lanes, :width], running.computed[lanes, :width]
    there = _there(running.size[lanes], width)
    counted = there & (p.num_blocks[lanes] < NO_LIMIT)[:, None]
    blocks = np.where(counted, blocks_for(computed, size), ZERO)
    room = held * size - (computed - (steps[:, None] - ONE))  # after the first step
    over = np.maximum(steps[:, None] - ONE - room, ZERO)
    turns = np.floor(over / size)
    sums = size * turns * (turns + ONE) / 2 + (over - turns * size) * (turns + ONE)
    sums = np.where(there, sums, ZERO).sum(axis=1) + (steps - ONE) * (p.num_blocks[lanes] - running.blocks_free[lanes])
    if batch.cache is not None:
        _grow_known(batch, lanes, steps, blocks - held)
    running.grow(lanes, blocks, (blocks - held).sum(axis=1), sums)


def _grow_known(batch: Batch, lanes: Ints, steps: Floats, more: Floats) -> None:
    """The same of lanes with a prefix cache: `more` [n, w] blocks were taken, and full ones are known."""
    p, running, cache = batch.params, batch.running_list, batch.cache
    assert cache is not None
    rows = p.caches[lanes].nonzero()[0]
    lanes, width = lanes[rows], more.shape[1]
    cache.take(lanes, more[rows].sum(axis=1).astype(np.int64))
    computed, size = running.computed[lanes, :width], p.block_size_f[lanes][:, None]
    blocks = full_blocks(computed, size)
    row, place = (blocks > running.registered[lanes, :width]).nonzero()
    lane = lanes[row]
    began = (computed - steps[rows][:, None])[row, place].astype(np.int64)
    requests = requests_at(batch, lane, place)
    cache.register(lane, requests, running.registered[lane, place], blocks[row, place], (p.block_size[lane], began))
    running.register(lane, place, blocks[row, place])


def _end_prefills(batch: Batch, piece: Floats, ended: Bools, end: Floats) -> tuple[Ints, Ints]:
    """Pieces of prompts [L, w] were computed; of whom has sent a token some decode from now on: their lanes and
    cells. Both [n]."""
    running, times = batch.running_list, batch.times
    lanes, places = piece.nonzero()
    cells = batch.cells(lanes, running.place[lanes, places])
    tokens = piece[lanes, places]
    again = tokens * (times.preemptions[cells] > 0)
    running.count_prefill(lanes, tokens)
    batch.counts.recompute(lanes, again)
    sent = ended[lanes, places]
    lanes, places, cells = lanes[sent], places[sent], cells[sent]
    running.start_decoding(lanes, places)
    first = np.isnan(times.first_token_s[cells])
    times.first_token(cells[first], end[lanes[first]])
    return lanes, cells


def _note_done(batch: Batch, ended: Bools, end: Floats) -> None:
    """Of whom has sent a token [L, w], some have sent their last."""
    running = batch.running_list
    width = ended.shape[1]
    lanes, places = (ended & (running.tokens[:, :width] == running.ends_at[:, :width])).nonzero()
    if not lanes.size:
        return
    batch.times.finish(batch.cells(lanes, running.place[lanes, places]), end[lanes])
    running.end(lanes, running.ends_at[lanes, places])


def let_go(batch: Batch) -> None:
    """Whoever has sent the last token leaves; the blocks are free from the next step on."""
    running = batch.running_list
    lanes = batch.due(running.ended > 0).nonzero()[0]
    if not lanes.size:
        return
    batch.inflow.finish(running.count_done(lanes))
    width = running.width
    over = running.tokens[lanes, :width] == running.ends_at[lanes, :width]
    batch.decodes.leave(np.bincount(lanes, over.sum(axis=1), batch.clock.now.size))
    if batch.answers:
        row, place = over.nonzero()
        batch.answer(batch.cells(lanes[row], running.place[lanes[row], place]), batch.clock.now[lanes[row]])
    freed = (running.held[lanes, :width] * over).sum(axis=1)
    if batch.cache is not None:
        row, place = (over & batch.params.caches[lanes][:, None]).nonzero()
        lane = lanes[row]
        given = batch.cache.release(
            lane,
            requests_at(batch, lane, place),
            running.registered[lane, place],
            running.held[lane, place].astype(np.int64),
            running.whole_nodes[lane, place],
        )
        freed = np.where(batch.params.caches[lanes], np.bincount(row, given, lanes.size), freed)
    running.leave(lanes, _there(running.size[lanes], width) & ~over, freed)


def _there(size: Ints, width: int) -> Bools:
    there: Bools = np.arange(width) < size[:, None]
    return there
