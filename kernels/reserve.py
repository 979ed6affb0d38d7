"""Phases of instances with reserved memory (docs/systems.md): *take* requests from the queue for prefill, and *join*
those whose prefill is done to the lane that decodes them.

A request's prompt + output tokens are set aside when the lane admits it, so nothing grows and nobody is preempted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .prefill import start_decoding
from .queue import largest, set_head, spread
from .slots import sort
from .state import NOTHING_LEFT, Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

_WINDOW = 4


def take(engine: Engine) -> None:
    """Take up requests from the head of the queue: the prefill batch of a `prefill_first` or prefill instance; under
    `chunked` those whose prefill begins in this step. A lane that was just woken takes one.

    Requests already taken in this step do not count in the test of those behind them.
    """
    p, s, t = engine.params, engine.state, engine.traffic
    ready = s.head_arrival <= s.now
    limit = p.max_tokens  # most prompt tokens until the end of the last request
    if engine.budgets:
        # The last request may begin with the last token of the share.
        part_way = s.left < NOTHING_LEFT
        limit = p.budget - s.decoding - np.where(part_way, s.left, 0)
        ready &= limit > 0
    ready = engine.due(ready)
    if engine.rules.decodes:
        lanes = ready.nonzero()[0]
        ready[lanes] = s.head_total[lanes] <= room_of(engine, lanes)
    if not np.count_nonzero(ready):
        return
    head, place = s.head, p.row + s.head
    count = ready.astype(np.int64)
    several = (ready & ~s.woken & (t.arrival[place + 1] / p.rate <= s.now)).nonzero()[0]
    if several.size:
        count[several] = _count_several(engine, several, limit[several])
    s.running += count.astype(np.float64)
    s.head = head + count
    set_head(engine)
    if engine.budgets:
        s.left = np.where(ready & ~part_way, t.prompt[place], s.left)
        lanes, request, _ = spread(head, count)
        engine.outcome.admitted_s[engine.cells(lanes, request)] = s.now[lanes]


def _count_several(engine: Engine, lanes: Ints, limit: Floats) -> Ints:
    """How many requests `lanes` take, the first of which is known to be taken and the second to have arrived. [n]"""
    p, s, t = engine.params, engine.state, engine.traffic
    begin, rate, now = p.row[lanes] + s.head[lanes], p.rate[lanes], s.now[lanes]
    most_prompts = s.prompts_at_head[lanes] + limit
    inside = 0 if engine.budgets else 1  # whether the last request must end within the limit, or only begin

    def test(rows: Ints | slice, number: Ints) -> Bools:
        place = begin[rows] + number
        ok: Bools = t.arrival[place - 1] / rate[rows] <= now[rows]
        before = t.prompts_before[place - 1 + inside]
        ok &= before <= most_prompts[rows] if inside else before < most_prompts[rows]
        return ok

    count = largest(np.ones(lanes.size, np.int64), s.known[lanes] - s.head[lanes] + 1, test)
    if engine.rules.decodes:
        # Nobody skips ahead of the first that does not fit.
        rows, request, place = spread(begin, count)
        misfit = (t.total[request] > room_of(engine, lanes)[rows]).nonzero()[0]
        np.minimum.at(count, rows[misfit], place[misfit])
    return count


def join(engine: Engine) -> None:
    """Let prefilled requests, on decode instances those that have arrived, join the lane; it admits those that fit."""
    p, s = engine.params, engine.state
    if engine.rules.prefills:
        due = engine.due(s.joined < s.first_prefill)
        s.joined = np.where(due, s.first_prefill, s.joined)
        waiting = engine.due(s.lane_head < s.joined)
    else:
        waiting = engine.due(s.head_arrival <= s.now)
        lanes = waiting.nonzero()[0]
        if lanes.size:
            s.joined[lanes] = s.lane_head[lanes] + _arrived(engine, lanes)
    lanes = waiting.nonzero()[0]
    if not lanes.size:
        return
    first = s.lane_head[lanes]
    end = s.joined[lanes]
    place = p.row[lanes]
    all_tokens = engine.traffic.totals_before[place + end] - engine.traffic.totals_before[place + first]
    all_fit = s.reserved[lanes] + all_tokens <= p.num_blocks[lanes]
    count = np.where(all_fit, end - first, 0)
    tight = (~all_fit).nonzero()[0]
    if tight.size:
        count[tight] = _count_fitting(engine, lanes[tight])
    _admit_to_lane(engine, lanes, first, count)
    s.lane_head[lanes] = first + count
    if not engine.rules.prefills:
        s.head = s.lane_head.copy()
        set_head(engine)
        s.resting |= s.woken & (s.decoding == 0)
        s.woken &= ~s.resting
    s.peak = np.maximum(s.peak, s.reserved)
    engine.waits = bool(np.count_nonzero(s.lane_head < s.joined)) if engine.rules.prefills else False


def _arrived(engine: Engine, lanes: Ints) -> Ints:
    """Requests that wait in lanes of decode instances, one where the lane was woken. [n]"""
    p, s, t = engine.params, engine.state, engine.traffic
    begin, rate, now = p.row[lanes] + s.head[lanes], p.rate[lanes], s.now[lanes]
    count = np.ones(lanes.size, np.int64)
    several = (~s.woken[lanes] & (t.arrival[begin + 1] / rate <= now)).nonzero()[0]
    if several.size:
        begin, rate, now, lanes = begin[several], rate[several], now[several], lanes[several]
        count[several] = largest(
            count[several],
            s.known[lanes] - s.head[lanes] + 1,
            lambda rows, number: t.arrival[begin[rows] + number - 1] / rate[rows] <= now[rows],
        )
    return count


def _count_fitting(engine: Engine, lanes: Ints) -> Ints:
    """How many of those that wait in `lanes` are admitted, some at a time. [n]"""
    p, s, t = engine.params, engine.state, engine.traffic
    count = np.zeros(lanes.size, np.int64)
    reserved, running = s.reserved[lanes].copy(), s.decoding[lanes].copy()
    rows = np.arange(lanes.size)
    while rows.size:
        lane = lanes[rows]
        index = (s.lane_head[lane] + count[rows])[:, None] + np.arange(_WINDOW)
        there = index < s.joined[lane][:, None]
        place = p.row[lane][:, None] + np.where(there, index, 0)
        total = t.total[place]
        kept = total - t.prompt[place] > 1  # requests of one token take the test, but no room
        tokens = np.where(kept, total, 0)
        before = tokens.cumsum(axis=1) - tokens
        alone = (running[rows][:, None] == 0) & (kept.cumsum(axis=1) - kept == 0)
        ok = there & (alone | (reserved[rows][:, None] + before + total <= p.num_blocks[lane][:, None]))
        ok = np.logical_and.accumulate(ok, axis=1)
        count[rows] += ok.sum(axis=1)
        reserved[rows] += (tokens * ok).sum(axis=1)
        running[rows] += (kept & ok).sum(axis=1)
        rows = rows[ok[:, -1]]
    return count


def _admit_to_lane(engine: Engine, lanes: Ints, first: Ints, count: Ints) -> None:
    """The requests first, first + 1, ... of each lane start to decode; those of one token are done. All [n]."""
    p, s, t = engine.params, engine.state, engine.traffic
    row, request, order = spread(first, count)
    if not row.size:
        return
    lane = lanes[row]
    place = p.row[lane] + request
    prompt, total = t.prompt[place], t.total[place]
    cells = engine.cells(lane, request)
    if not engine.rules.prefills:
        engine.outcome.admitted_s[cells] = s.now[lane]
    one = (total - prompt == 1).nonzero()[0]
    if one.size:
        done = lane[one]
        engine.outcome.finish_s[cells[one]] = engine.outcome.first_token_s[cells[one]]
        if engine.gaps:
            engine.outcome.gap_s[cells[one]] = 0
        if engine.router is not None:
            s.outstanding_tokens -= np.bincount(done, total[one], s.now.size)
        if engine.rules.prefills:
            s.running -= np.bincount(done, minlength=s.now.size)
        kept = (total - prompt > 1).nonzero()[0]
        if not kept.size:
            return
        lane, request, prompt, total = lane[kept], request[kept], prompt[kept], total[kept]
        # Places behind the decoding ones: rows of a lane lie together.
        at = np.arange(lane.size)
        order = at - np.maximum.accumulate(np.where(np.diff(lane, prepend=-1) != 0, at, 0))
    start_decoding(engine, lane, request, prompt, order, emits=False)
    number = np.bincount(lane, minlength=s.now.size).astype(np.float64)
    s.decoding += number
    s.context += np.bincount(lane, prompt + 1, s.now.size)
    s.reserved += np.bincount(lane, total, s.now.size)
    sort(engine, number.nonzero()[0])
    if not engine.rules.prefills:
        s.running += number


def room_of(engine: Engine, lanes: Ints) -> Floats:
    """Tokens that the head of the queue may take: not set aside, nor waited for in the lane; all it likes when the lane
    is empty. [n]"""
    p, s, t = engine.params, engine.state, engine.traffic
    room = p.num_blocks[lanes] - s.reserved[lanes]
    if engine.waits:
        row = p.row[lanes]
        room -= t.totals_before[row + s.joined[lanes]] - t.totals_before[row + s.lane_head[lanes]]
        empty = (s.decoding[lanes] == 0) & (s.lane_head[lanes] == s.joined[lanes])
    else:
        empty = s.decoding[lanes] == 0
    room[empty] = np.inf
    return room
