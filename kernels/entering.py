"""Phases of instances with reserved memory (docs/systems.md): *start prefills* takes requests from the queue, and
*enter decode* lets those whose prefill is done into the lane that decodes them."""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints
from .batch import Batch
from .prefills import NO_PREFILL
from .ranges import largest, spread
from .starting import start_with_kv


def start_prefills(batch: Batch) -> None:
    """Take up requests from the head of the queue: the prefill batch of a `prefill_first` or prefill instance; under
    `chunked` those whose prefill begins in this step. A lane that was just woken takes one.

    Requests already taken in this step do not count in the test of those behind them.
    """
    p, r, clock, queue, prefills = batch.params, batch.requests, batch.clock, batch.queue, batch.prefills
    ready = queue.head_arrival <= clock.now
    limit = p.max_tokens  # most prompt tokens until the end of the last request
    if batch.budgets:
        # The last request may begin with the last token of the share.
        part_way = prefills.prefill_left < NO_PREFILL
        limit = p.budget - batch.decodes.decoding - np.where(part_way, prefills.prefill_left, 0)
        ready &= limit > 0
    ready = batch.due(ready)
    if batch.rules.decodes:
        lanes = ready.nonzero()[0]
        ready[lanes] = batch.reserved_memory.fits(lanes, queue.head_total[lanes])
    if not np.count_nonzero(ready):
        return
    head, place = queue.head, p.row + queue.head
    count = ready.astype(np.int64)
    several = (ready & ~clock.wakes_now & (r.arrival[place + 1] / p.rate <= clock.now)).nonzero()[0]
    if several.size:
        count[several] = _count_several(batch, several, limit[several])
    batch.decodes.admit(count)
    queue.move(head + count)
    if batch.budgets:
        prefills.begin_where(ready & ~part_way, r.prompt[place])
        lanes, request, _ = spread(head, count)
        batch.times.admit(batch.cells(lanes, request), clock.now[lanes])


def _count_several(batch: Batch, lanes: Ints, limit: Floats) -> Ints:
    """How many requests `lanes` take, the first of which is known to be taken and the second to have arrived. [n]"""
    p, r, queue = batch.params, batch.requests, batch.queue
    head = queue.head[lanes]
    begin, rate, now = p.row[lanes] + head, p.rate[lanes], batch.clock.now[lanes]
    most_prompts = queue.prompts_at_head[lanes] + limit
    inside = 0 if batch.budgets else 1  # whether the last request must end within the limit, or only begin

    def test(rows: Ints | slice, number: Ints) -> Bools:
        place = begin[rows] + number
        ok: Bools = r.arrival[place - 1] / rate[rows] <= now[rows]
        before = r.prompts_before[place - 1 + inside]
        ok &= before <= most_prompts[rows] if inside else before < most_prompts[rows]
        return ok

    count = largest(np.ones(lanes.size, np.int64), batch.row_end(lanes) - head + 1, test)
    return batch.reserved_memory.fitting(lanes, begin, count) if batch.rules.decodes else count


def enter_decode_if_waiting(batch: Batch) -> None:
    """Let those into the lane that may have been left waiting for it."""
    if batch.reserved_memory.any_waits or batch.router is not None:
        enter_decode(batch)


def enter_decode(batch: Batch) -> None:
    """Let prefilled requests join the lane; it admits those that fit."""
    reserved, first = batch.reserved_memory, batch.prefills.first_prefill
    reserved.join(batch.due(reserved.prefilled_end < first), first)
    lanes = batch.due(reserved.decode_queue_head < reserved.prefilled_end).nonzero()[0]
    if lanes.size:
        _admit_to_lane(batch, lanes)
        reserved.note(prefills=True)


def enter_arrived(batch: Batch) -> None:
    """Let requests that have arrived with their KV join the lane, on decode instances; it admits those that fit."""
    clock, queue, reserved = batch.clock, batch.queue, batch.reserved_memory
    lanes = batch.due(queue.head_arrival <= clock.now).nonzero()[0]
    if not lanes.size:
        return
    reserved.join_at(lanes, reserved.decode_queue_head[lanes] + _arrived(batch, lanes))
    _admit_to_lane(batch, lanes)
    queue.move(reserved.decode_queue_head.copy())
    clock.settle(batch.decodes.decoding == 0)
    reserved.note(prefills=False)


def _arrived(batch: Batch, lanes: Ints) -> Ints:
    """Requests that wait in lanes of decode instances, one where the lane was woken. [n]"""
    p, clock, arrival = batch.params, batch.clock, batch.requests.arrival
    head = batch.queue.head[lanes]
    begin, rate, now = p.row[lanes] + head, p.rate[lanes], clock.now[lanes]
    count = np.ones(lanes.size, np.int64)
    several = (~clock.wakes_now[lanes] & (arrival[begin + 1] / rate <= now)).nonzero()[0]
    if several.size:
        begin, rate, now = begin[several], rate[several], now[several]
        count[several] = largest(
            count[several],
            batch.row_end(lanes[several]) - head[several] + 1,
            lambda rows, number: arrival[begin[rows] + number - 1] / rate[rows] <= now[rows],
        )
    return count


def _admit_to_lane(batch: Batch, lanes: Ints) -> None:
    """Requests that wait in `lanes` and fit start to decode; those of one token are done."""
    r, times, decodes = batch.requests, batch.times, batch.decodes
    row, request, order = spread(*batch.reserved_memory.admit(lanes))
    if not row.size:
        return
    lane, width, prefills = lanes[row], batch.clock.now.size, batch.rules.prefills
    place = batch.params.row[lane] + request
    prompt, total = r.prompt[place], r.total[place]
    cells = batch.cells(lane, request)
    if not prefills:
        times.admit(cells, batch.clock.now[lane])
    one = (total - prompt == 1).nonzero()[0]
    if one.size:
        done, finished = lane[one], cells[one]
        times.finish(finished, times.first_token_s[finished])
        batch.answer(finished, batch.clock.now[done])
        if batch.keeps_itl:
            times.wait(finished, 0.0)
        if batch.router is not None:
            batch.inflow.finish(np.bincount(done, total[one], width))
        if prefills:
            decodes.leave(np.bincount(done, minlength=width))
        kept = (total - prompt > 1).nonzero()[0]
        if not kept.size:
            return
        lane, request, prompt, total = lane[kept], request[kept], prompt[kept], total[kept]
        # Places behind the decoding ones: rows of a lane lie together.
        at = np.arange(lane.size)
        order = at - np.maximum.accumulate(np.where(np.diff(lane, prepend=-1) != 0, at, 0))
    number = start_with_kv(batch, lane, request, prompt, order)
    batch.reserved_memory.reserve(np.bincount(lane, total, width))
    if not prefills:
        decodes.admit(number)
