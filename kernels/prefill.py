"""Phase *prefill*: the single step that completes at least one prefill.

Steps that only take a further piece of a long prompt are part of a leap (leap.py). Under `mixed` and `chunked` the step
also decodes everything that decodes; under `prefill_first` it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import gaps
from .blocks import blocks_for, held, residue_of
from .queue import largest, spread
from .slots import put, sort
from .state import HALF, NOTHING, NOTHING_LEFT, ONE, ZERO, Bools, Floats, Ints
from .steptime import step_seconds

if TYPE_CHECKING:
    from .engine import Engine


def pairs_of(tokens: Any) -> Any:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + ONE) * HALF


def prefill(engine: Engine) -> None:
    """Run one step in every lane whose oldest prefill ends in it. Lanes without one go along as steps of no tokens
    and no time."""
    p, s, t = engine.params, engine.state, engine.traffic
    first = s.first_prefill
    if engine.budgets:
        share = p.budget - s.decoding
        active = s.left <= share
    else:
        share = p.budget
        active = s.head > first
        if engine.preempted:
            active |= s.stack_size > s.stack_waiting
    active = engine.due(active)
    if not np.count_nonzero(active):
        return
    held_by_prefills = s.prefill_blocks
    again: _Finished | None = None
    if engine.preempted:
        held_by_prefills = held_by_prefills.copy()
        again_tokens, again_pairs = np.zeros(first.size), np.zeros(first.size)
        again = _repeat_prefills(engine, active, share, again_tokens, again_pairs)
        if again is not None:
            share = share - again_tokens
        if engine.budgets:
            _count_recomputed_prefills(engine, active, share)

    # Fresh prefills in order, as many as the share completes; what is left of it begins the next one.
    prompts_at_first = s.prompts_at_first
    if engine.budgets:
        end, tokens, pairs = _cut_by_budget(engine, active, share)
    else:
        end = s.head.copy()
        tokens, pairs = s.prompts_at_head - prompts_at_first, s.pairs_at_head - s.pairs_at_first
        s.prompts_at_first, s.pairs_at_first = s.prompts_at_head.copy(), s.pairs_at_head.copy()
    completed = s.prompts_at_first - prompts_at_first
    if again is not None:
        tokens, pairs = tokens + again_tokens, pairs + again_pairs

    step = active.astype(np.float64)
    decoding, context = s.decoding, s.context  # of requests that decode in the step
    if engine.some_apart:
        decoding, context = decoding * p.beside, context * p.beside
    work = decoding + tokens, context + pairs, context + tokens
    begin = s.now
    seconds = step_seconds(engine.coefficients_of(slice(None)), *work, engine.communicates) * step
    now = begin + seconds
    count = end - first
    started = count.astype(np.float64)
    decoded = decoding * step
    if engine.log is not None:
        emitted = started + decoded
        if again is not None:
            emitted += np.bincount(again.lanes, minlength=count.size)
        engine.log.prefill_step(engine, active, now, emitted, tokens + decoded, held_by_prefills)

    if engine.gaps and engine.some_beside:
        gaps.decode_step(engine, active & (p.beside > ZERO), now)
    s.now = now if engine.rules.decodes else begin + seconds / p.stages
    s.first_prefill = end
    if engine.paged and engine.budgets:
        s.prefill_blocks = s.prefill_blocks - (
            t.blocks_before[p.block_row + end] - t.blocks_before[p.block_row + first]
        )
    elif engine.paged:
        s.prefill_blocks = np.zeros(first.size)
    if engine.budgets and not engine.reserve:
        s.silent_steps += (s.running - started) * step - decoded
        s.silent_blocks += s.prefill_blocks * step
        if again is not None:
            np.subtract.at(s.silent_steps, again.lanes, 1.0)
    elif engine.budgets:
        s.silent_steps += (s.head - end) * step
    elif engine.some_apart and engine.rules.decodes:
        s.silent_steps += s.decoding * step - decoded
    apart = np.zeros(0, np.int64)  # lanes whose decoding requests wait
    if engine.some_apart:
        waits = step * (ONE - p.beside)
        s.prefill_steps += waits
        s.tick += step - waits
        if engine.paged:
            apart = waits.nonzero()[0]
            waiting = _blocks_of_waiting_decodes(engine, apart)
            s.silent_blocks[apart] += waiting
    else:
        s.tick += step
    s.context += decoded
    which, request, place = spread(first, count)
    if which.size:
        cell = engine.cells(which, request)
        engine.outcome.first_token_s[cell] = now[which]
        if not engine.budgets:
            engine.outcome.admitted_s[cell] = begin[which]
        if not engine.reserve:
            start_decoding(engine, which, request, t.prompt[p.row[which] + request], place)
            s.decoding += started
            s.context += completed + started
    if engine.reserve:
        _close_reserved_step(engine, active, started, tokens)
    if again is not None:
        start_decoding(engine, *again)
        np.add.at(s.decoding, again.lanes, 1.0)
        np.add.at(s.context, again.lanes, again.tokens + 1)
    if not engine.reserve:
        sort(engine, active.nonzero()[0])
    if apart.size:
        # The step's blocks in full, counted while they are known: all are now held by decoding requests.
        s.used[apart] = waiting + held_by_prefills[apart]
        s.free[apart] = p.num_blocks[apart] - s.used[apart]
        s.peak[apart] = np.maximum(s.peak[apart], s.used[apart])
        s.tight[apart] = True


def _close_reserved_step(engine: Engine, active: Bools, requests: Floats, tokens: Floats) -> None:
    """What a prefill step of `requests` and `tokens` leaves behind under reserved memory. All [L]."""
    s = engine.state
    s.woken &= ~active
    if engine.rules.decodes:
        s.silent_blocks += s.reserved * active
        return
    s.running -= requests
    if engine.router is not None:
        s.batch = np.where(active, requests, s.batch)
        s.batch_tokens = np.where(active, tokens, s.batch_tokens)


def _cut_by_budget(engine: Engine, active: Bools, share: Floats) -> tuple[Ints, Floats, Floats]:
    """The first request that this step's fresh prefills do not complete, their tokens and attention pairs; keeps how
    far that request is. All [L]."""
    p, s, t = engine.params, engine.state, engine.traffic
    first, row = s.first_prefill, p.row
    fresh = active
    if engine.preempted:
        fresh = active & (s.stack_size == s.stack_waiting)  # elsewhere a repeated prefill is still the oldest
    done = s.done * fresh
    end = np.where(fresh, s.head, first)
    before = s.prompts_at_first + done
    tokens = (s.prompts_at_head - before) * fresh
    s.done = s.done - done
    np.putmask(s.left, fresh, NOTHING)
    rest = np.zeros(0)
    cut = (tokens > share).nonzero()[0]
    if cut.size:
        begin, tokens[cut] = row[cut] + first[cut], share[cut]
        place = begin + _completed(engine, begin, end[cut] - first[cut], before[cut], share[cut])
        rest = share[cut] - (t.prompts_before[place] - before[cut])
        end[cut] = place - row[cut]
        s.done[cut] = rest
        s.left[cut] = t.prompt[place] - rest
    place = row + end
    s.prompts_at_first = t.prompts_before[place]
    pairs_at_end = t.pairs_before[place]
    pairs = pairs_at_end - s.pairs_at_first - pairs_of(done)
    if cut.size:
        pairs[cut] += pairs_of(rest)
    s.pairs_at_first = pairs_at_end
    return end, tokens, pairs


def _completed(engine: Engine, place: Ints, most: Ints, before: Floats, share: Floats) -> Ints:
    """How many of the prefills that begin at `place` end within `share` tokens; fewer than `most`. All [n]."""
    sums = engine.traffic.prompts_before
    return largest(
        np.zeros(place.size, np.int64), most, lambda rows, n: sums[place[rows] + n] - before[rows] <= share[rows]
    )


def _blocks_of_waiting_decodes(engine: Engine, lanes: Ints) -> Floats:
    """Blocks of requests that wait while a batch prefills. [n]"""
    s = engine.state
    used = s.used[lanes]
    loose = (~s.tight[lanes]).nonzero()[0]
    if loose.size:
        lane = lanes[loose]
        used[loose] = held(engine, lane, s.context[lane], s.tick[lane].astype(np.int64))
    return used


class _Finished(NamedTuple):
    """Repeated prefills that end in this step: lane, request, tokens processed, place among those of the lane. All
    [n]."""

    lanes: Ints
    requests: Ints
    tokens: Floats
    place: Ints


def _repeat_prefills(engine: Engine, active: Bools, share: Floats, tokens: Floats, pairs: Floats) -> _Finished | None:
    """Spend the share on preempted requests admitted again, oldest first; adds to `tokens` and `pairs` [L].

    The oldest ends in this step (its lane is active); the first that does not gets what is left of the share.
    """
    p, s = engine.params, engine.state
    lane = (active & (s.stack_size > s.stack_waiting)).nonzero()[0]
    if not lane.size:
        return None
    size, room, done = s.stack_size[lane], share[lane], s.done[lane]
    count = size - s.stack_waiting[lane]
    row, _, place = spread(size, count)
    lanes, index = lane[row], (size - 1)[row] - place
    request, all_tokens = s.stack_request[lanes, index], s.stack_tokens[lanes, index].astype(np.float64)
    # Tokens of the share that are gone when a request's turn has come and gone.
    following = count.cumsum()
    sums = all_tokens.cumsum()
    reach = sums - (sums[following - count] - all_tokens[following - count] + done)[row]
    ends = (reach <= room[row]).nonzero()[0]
    row, lanes, request, place, ended = row[ends], lanes[ends], request[ends], place[ends], all_tokens[ends]
    number = np.bincount(row, minlength=lane.size)
    spent = np.bincount(row, ended, lane.size)
    rest, left = np.zeros(lane.size), np.full(lane.size, NOTHING_LEFT)
    cut = (number < count).nonzero()[0]
    if cut.size:
        rest[cut] = room[cut] - (spent[cut] - done[cut])
        left[cut] = all_tokens[(following - count + number)[cut]] - rest[cut]
    used = spent - done + rest
    tokens[lane] = used
    pairs[lane] = np.bincount(row, pairs_of(ended), lane.size) - pairs_of(done) + pairs_of(rest)
    s.done[lane], s.left[lane] = rest, left
    s.stack_size[lane] = size - number
    s.recomputed_tokens[lane] += used
    s.repeated_tokens[lane] += spent
    if engine.paged:
        s.prefill_blocks[lane] -= np.bincount(row, blocks_for(ended, p.size[lanes]), lane.size)
    return _Finished(lanes, request.astype(np.int64), ended, place)


def _count_recomputed_prefills(engine: Engine, active: Bools, share: Floats) -> None:
    """Add the tokens that this step processes of fresh requests preempted in an earlier prefill. All [L]."""
    p, s, t = engine.params, engine.state, engine.traffic
    seen = active & (s.preempted_until > s.first_prefill) & (s.stack_size == s.stack_waiting)
    lane = seen.nonzero()[0]
    if not lane.size:
        return
    first = s.first_prefill[lane]
    row, request, order = spread(first, s.head[lane] - first)
    again = (engine.outcome.preemptions[engine.cells(lane[row], request)] > 0).nonzero()[0]
    if not again.size:
        return
    row, request, order = row[again], request[again], order[again]
    lanes = lane[row]
    place = p.row[lanes] + request
    done = s.done[lanes]
    # Tokens of the share that are gone before this request's turn, counted from the beginning of the part-way one.
    offset = t.prompts_before[place] - t.prompts_before[place - order]
    after = np.minimum(np.maximum(done + share[lanes] - offset, ZERO), t.prompt[place])
    before = np.where(order == 0, done, ZERO)
    np.add.at(s.recomputed_tokens, lanes, after - before)


def start_decoding(
    engine: Engine, lanes: Ints, requests: Ints, processed: Floats, place: Ints, *, emits: bool = True
) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots behind the decoding
    ones; when all are there, the lanes want sorting.

    `place` is 0 for a lane's first request, 1 for its second, ...; `emits`: the token came with this very step. All
    [n].
    """
    p, s, t = engine.params, engine.state, engine.traffic
    tick = s.tick[lanes]
    end = tick - processed + t.total[p.row[lanes] + requests] - ONE
    put(engine, lanes, place, requests, end)
    if engine.gaps:
        gaps.start(engine, lanes, engine.cells(lanes, requests), emits)
    if engine.paged:
        np.add.at(s.growth.ravel(), residue_of(engine, lanes, tick, processed), engine.one)
