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
from .state import NOTHING_LEFT, Bools, Floats, Ints
from .steptime import step_seconds

if TYPE_CHECKING:
    from .engine import Engine


def pairs_of(tokens: Any) -> Any:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + 1) * 0.5


def prefill(engine: Engine) -> None:
    """Run one step in every lane whose oldest prefill ends in it. Lanes without one go along as steps of no tokens
    and no time."""
    p, s, t = engine.params, engine.state, engine.traffic
    beside = engine.decode_beside_prefill
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
    again_tokens: Floats | float = 0.0
    again_pairs: Floats | float = 0.0
    if engine.preempted:
        held_by_prefills = held_by_prefills.copy()
        again_tokens, again_pairs = np.zeros(first.size), np.zeros(first.size)
        again = _repeat_prefills(engine, active, share, again_tokens, again_pairs)
        if engine.budgets:
            _count_recomputed_prefills(engine, active.nonzero()[0], share - again_tokens)

    # Fresh prefills in order, as many as the share completes; what is left of it begins the next one.
    prompts_at_first = s.prompts_at_first
    if engine.budgets:
        end, tokens, pairs = _cut_by_budget(engine, active, share - again_tokens)
    else:
        end = s.head.copy()
        tokens, pairs = s.prompts_at_head - prompts_at_first, s.pairs_at_head - s.pairs_at_first
        s.prompts_at_first, s.pairs_at_first = s.prompts_at_head.copy(), s.pairs_at_head.copy()
    completed = s.prompts_at_first - prompts_at_first
    if engine.preempted:
        tokens, pairs = tokens + again_tokens, pairs + again_pairs

    step = active.astype(np.float64)
    work = (s.decoding + tokens, s.context + pairs, s.context + tokens) if beside else (tokens, pairs, tokens)
    begin = s.now
    seconds = step_seconds(engine.coefficients_of(slice(None)), *work, engine.communicates) * step
    now = begin + seconds
    count = end - first
    started = count.astype(np.float64)
    if engine.log is not None:
        decoded = s.decoding * step * beside
        emitted = started + decoded
        if again is not None:
            emitted += np.bincount(again.lanes, minlength=count.size)
        engine.log.prefill_step(engine, active, now, emitted, tokens + decoded, held_by_prefills)

    if engine.gaps and beside:
        gaps.decode_step(engine, active, now)
    s.now = now if engine.rules.decodes else begin + seconds / p.stages
    s.first_prefill = end
    if engine.paged and engine.budgets:
        s.prefill_blocks = s.prefill_blocks - (
            t.blocks_before[p.block_row + end] - t.blocks_before[p.block_row + first]
        )
    elif engine.paged:
        s.prefill_blocks = np.zeros(first.size)
    lanes = np.zeros(0, np.int64)
    if beside:
        s.tick += step
        s.context += s.decoding * step
        if engine.reserve:
            s.silent_steps += (s.head - end) * step
        elif engine.budgets:
            s.silent_steps += (s.running - s.decoding - started) * step
            s.silent_blocks += s.prefill_blocks * step
            if again is not None:
                np.subtract.at(s.silent_steps, again.lanes, 1.0)
    else:
        s.prefill_steps += step
        if engine.rules.decodes:
            s.silent_steps += s.decoding * step
        if engine.paged:
            lanes = active.nonzero()[0]
            waiting = _blocks_of_waiting_decodes(engine, lanes)
            s.silent_blocks[lanes] += waiting
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
    if lanes.size:
        # The step's blocks in full, counted while they are known: all are now held by decoding requests.
        s.used[lanes] = waiting + held_by_prefills[lanes]
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes]
        s.peak[lanes] = np.maximum(s.peak[lanes], s.used[lanes])
        s.tight[lanes] = True


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
    done = s.done * fresh.astype(np.float64)
    end = np.where(fresh, s.head, first)
    before = s.prompts_at_first + done
    tokens = np.where(fresh, s.prompts_at_head - before, 0)
    s.done = np.where(fresh, 0, s.done)
    s.left = np.where(fresh, NOTHING_LEFT, s.left)
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
    """Spend the share on preempted requests admitted again, oldest first, one a lane and round; adds to `tokens` and
    `pairs` [L]."""
    p, s = engine.params, engine.state
    rounds: list[_Finished] = []
    lane = (active & (s.stack_size > s.stack_waiting)).nonzero()[0]
    while lane.size:
        place = s.stack_size[lane] - 1
        all_tokens = s.stack_tokens[lane, place].astype(np.float64)
        done = s.done[lane]
        piece = np.minimum(all_tokens - done, share[lane] - tokens[lane])
        tokens[lane] += piece
        pairs[lane] += pairs_of(done + piece) - pairs_of(done)
        s.recomputed_tokens[lane] += piece
        ends = done + piece == all_tokens
        s.done[lane] = np.where(ends, 0, done + piece)
        s.left[lane] = np.where(ends, NOTHING_LEFT, all_tokens - done - piece)
        lane, place, all_tokens = lane[ends], place[ends], all_tokens[ends]
        s.stack_size[lane] = place
        s.prefill_blocks[lane] -= blocks_for(all_tokens, p.size[lane])
        s.repeated_tokens[lane] += all_tokens
        request = s.stack_request[lane, place].astype(np.int64)
        rounds.append(_Finished(lane, request, all_tokens, np.full(lane.size, len(rounds))))
        more = (place > s.stack_waiting[lane]).nonzero()[0]
        lane, place = lane[more], place[more]
        s.left[lane] = s.stack_tokens[lane, place - 1].astype(np.float64)
        lane = lane[tokens[lane] < share[lane]]
    return _Finished(*map(np.concatenate, zip(*rounds, strict=True))) if rounds else None


def _count_recomputed_prefills(engine: Engine, lanes: Ints, share: Floats) -> None:
    """Add the tokens that this step processes of fresh requests preempted in an earlier prefill."""
    p, s, t = engine.params, engine.state, engine.traffic
    seen = (s.preempted_until[lanes] > s.first_prefill[lanes]) & (s.stack_size[lanes] == s.stack_waiting[lanes])
    if not seen.any():
        return
    lane, share = lanes[seen], share[lanes[seen]]
    first = s.first_prefill[lane]
    which, request, _ = spread(first, s.head[lane] - first)
    place = p.row[lane][which] + request
    # Tokens of the share that are gone before this request's turn, counted from the beginning of the part-way one.
    offset = t.prompts_before[place] - t.prompts_before[p.row[lane] + first][which]
    reach = s.done[lane][which] + share[which]
    after = np.clip(reach - offset, 0, t.prompt[place])
    before = np.where(request == first[which], s.done[lane][which], 0)
    preempted = engine.outcome.preemptions[engine.cells(lane[which], request)] > 0
    np.add.at(s.recomputed_tokens, lane[which], np.where(preempted, after - before, 0))


def start_decoding(
    engine: Engine, lanes: Ints, requests: Ints, processed: Floats, place: Ints, *, emits: bool = True
) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots behind the decoding
    ones.

    `place` is 0 for a lane's first request, 1 for its second, ...; `emits`: the token came with this very step. All
    [n].
    """
    p, s, t = engine.params, engine.state, engine.traffic
    tick = s.tick[lanes]
    end = tick + (t.total[p.row[lanes] + requests] - processed - 1)
    decoding = s.decoding[lanes].astype(np.int64) + place
    engine.make_room(int(decoding.max()) + 1)
    slots = s.slot_end.shape[1]
    begin = lanes * slots
    slot = s.slot_order.ravel()[begin + decoding]
    index = begin + slot
    s.slot_end.ravel()[index] = end
    s.slot_request.ravel()[index] = requests
    if engine.gaps:
        gaps.start(engine, lanes, index, engine.cells(lanes, requests), emits)
    np.minimum.at(s.next_end, lanes, end)
    soonest = (end == s.next_end[lanes]).nonzero()[0]
    s.next_slot[lanes[soonest]] = slot[soonest]
    if engine.paged:
        np.add.at(s.growth.ravel(), residue_of(engine, lanes, tick, processed), engine.one)
