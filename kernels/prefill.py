"""Phase *prefill*: the single step that completes at least one prefill.

Steps that only take a further piece of a long prompt are part of a leap (leap.py). Under `mixed` and `chunked` the step also decodes
everything that decodes; under `prefill_first` it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .blocks import blocks_for, held
from .queue import largest, spread
from .state import NOTHING_LEFT, Floats, Ints
from .steptime import step_seconds

if TYPE_CHECKING:
    from .engine import Engine


def pairs_of(tokens: Floats) -> Floats:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + 1) / 2


def prefill(engine: Engine) -> None:
    """Run one step in every lane whose oldest prefill ends in it."""
    p, s, t = engine.params, engine.state, engine.traffic
    beside = engine.decode_beside_prefill
    share = p.budget - s.decoding
    lanes = (s.left <= share).nonzero()[0]
    if not lanes.size:
        return
    begin, decoding, context = s.now[lanes], s.decoding[lanes], s.context[lanes]
    prefill_blocks = s.prefill_blocks[lanes]
    again: _Finished | None = None
    again_tokens: Floats | float = 0.0
    if engine.preempted:
        again_tokens, again_pairs = np.zeros(lanes.size), np.zeros(lanes.size)
        again = _repeat_prefills(engine, lanes, share[lanes], again_tokens, again_pairs)
        if engine.budgets:
            _count_recomputed(engine, lanes, share[lanes] - again_tokens)

    # Fresh prefills in order, as many as the share completes; what is left of it begins the next one.
    first, row, out = s.first_prefill[lanes], p.row[lanes], p.out[lanes]
    end = s.head[lanes]
    start = row + first
    tokens = t.prompts_before[row + end] - t.prompts_before[start]
    if engine.budgets:
        tokens, pairs = _cut_by_budget(engine, lanes, start, end, share[lanes] - again_tokens, tokens)
    else:
        pairs = t.pairs_before[row + end] - t.pairs_before[start]
        s.left[lanes] = NOTHING_LEFT
    if engine.preempted:
        tokens += again_tokens
        pairs += again_pairs

    coefficients = engine.coefficients_of(lanes)
    if beside:
        work = (decoding + tokens, context + pairs, context + tokens)
    else:
        work = (tokens, pairs, tokens)
    now = begin + step_seconds(coefficients, *work, engine.communicates)

    decoding_blocks = np.zeros(0)
    if engine.paged:
        s.block_steps[lanes] += prefill_blocks
        if not beside:
            decoding_blocks = _blocks_of_waiting_decodes(engine, lanes)
    if engine.log is not None:
        emitted = end - first + decoding * beside
        if again is not None:
            emitted = emitted + np.bincount(again.which, minlength=lanes.size)
        engine.log.prefill_step(engine, lanes, begin, now, emitted, tokens + decoding * beside, prefill_blocks)

    s.now[lanes] = now
    s.steps[lanes] += 1
    s.running_steps[lanes] += s.running[lanes]
    s.prefill_tokens[lanes] += tokens
    if beside:
        s.tick[lanes] += 1
        s.context[lanes] = context + decoding
    s.first_prefill[lanes] = end
    if engine.paged:
        block_row = p.block_row[lanes]
        s.prefill_blocks[lanes] -= t.blocks_before[block_row + end] - t.blocks_before[block_row + first]
    count = end - first
    which, request = spread(first, count)
    if request.size:
        cell = out[which] + request
        engine.outcome.first_token_s[cell] = now[which]
        if not engine.budgets:
            engine.outcome.admitted_s[cell] = begin[which]
        _start_decoding(engine, lanes[which], request, t.prompt[row[which] + request], request - first[which])
    if again is not None:
        _start_decoding(engine, lanes[again.which], again.request, again.tokens, again.place)
    if engine.paged and not beside:
        # The step's blocks in full, counted while they are known: all are now held by decoding requests.
        s.used[lanes] = decoding_blocks + prefill_blocks
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes]
        s.peak[lanes] = np.maximum(s.peak[lanes], s.used[lanes])
        s.tight[lanes] = True


def _cut_by_budget(
    engine: Engine, lanes: Ints, start: Ints, end: Ints, share: Floats, tokens: Floats
) -> tuple[Floats, Floats]:
    """Tokens and attention pairs of this step's fresh prefills, all of which hold `tokens`; `end` is moved back to those that
    complete, and the state of the next one is kept. All [n]."""
    p, s, t = engine.params, engine.state, engine.traffic
    row = p.row[lanes]
    done, left = s.done[lanes], np.full(lanes.size, NOTHING_LEFT)
    part_way = np.zeros(0, np.int64)
    if engine.preempted:
        part_way = (s.stack_size[lanes] > s.stack_waiting[lanes]).nonzero()[0]  # a repeated prefill is still the oldest
        left[part_way] = s.left[lanes[part_way]]
        kept = done[part_way]
        done[part_way] = 0
    tokens = tokens - done
    rest = np.zeros(lanes.size)
    cut = (tokens > share).nonzero()[0]
    if cut.size:
        before = t.prompts_before[start[cut]] + done[cut]
        some = _completed(engine, start[cut], end[cut] + row[cut] - start[cut], before, share[cut])
        place = start[cut] + some
        end[cut] = place - row[cut]
        rest[cut] = share[cut] - (t.prompts_before[place] - before)
        tokens[cut] = share[cut]
        ahead = np.setdiff1d(cut, part_way, assume_unique=True) if part_way.size else cut
        left[ahead] = t.prompt[row[ahead] + end[ahead]] - rest[ahead]
    pairs = t.pairs_before[row + end] - t.pairs_before[start] - pairs_of(done)
    pairs[cut] += pairs_of(rest[cut])
    if part_way.size:
        rest[part_way] = kept
    s.done[lanes], s.left[lanes] = rest, left
    return tokens, pairs


def _completed(engine: Engine, place: Ints, most: Ints, before: Floats, share: Floats) -> Ints:
    """How many of the prefills that begin at `place` end within `share` tokens; fewer than `most`. All [n]."""
    sums = engine.traffic.prompts_before
    return largest(
        np.zeros(place.size, np.int64), most, lambda rows, n: sums[place[rows] + n] - before[rows] <= share[rows]
    )


def _blocks_of_waiting_decodes(engine: Engine, lanes: Ints) -> Floats:
    """Blocks of requests that wait while a batch prefills; they count for the step too."""
    s = engine.state
    used = s.used[lanes]
    loose = (~s.tight[lanes]).nonzero()[0]
    if loose.size:
        lane = lanes[loose]
        used[loose] = held(engine, lane, s.context[lane], s.tick[lane].astype(np.int64))
    s.block_steps[lanes] += used
    return used


class _Finished(NamedTuple):
    """Repeated prefills that end in this step: index into the step's lanes, request, tokens processed, place among those of the
    lane. All [n]."""

    which: Ints
    request: Ints
    tokens: Floats
    place: Ints


def _repeat_prefills(engine: Engine, lanes: Ints, share: Floats, tokens: Floats, pairs: Floats) -> _Finished | None:
    """Spend the share on preempted requests admitted again, oldest first, one a lane and round; adds to `tokens` and `pairs`."""
    p, s = engine.params, engine.state
    whiches, requests, processed = list[Ints](), list[Ints](), list[Floats]()
    which = (s.stack_size[lanes] > s.stack_waiting[lanes]).nonzero()[0]
    while which.size:
        lane = lanes[which]
        place = s.stack_size[lane] - 1
        all_tokens = s.stack_tokens[lane, place].astype(np.float64)
        done = s.done[lane]
        piece = np.minimum(all_tokens - done, share[which] - tokens[which])
        tokens[which] += piece
        pairs[which] += pairs_of(done + piece) - pairs_of(done)
        s.recomputed_tokens[lane] += piece
        ends = done + piece == all_tokens
        s.done[lane] = np.where(ends, 0, done + piece)
        s.left[lane] = np.where(ends, NOTHING_LEFT, all_tokens - done - piece)
        which, lane, place, all_tokens = which[ends], lane[ends], place[ends], all_tokens[ends]
        blocks = blocks_for(all_tokens, p.block_size[lane])
        s.stack_size[lane] = place
        s.prefill_blocks[lane] -= blocks
        s.block_steps[lane] -= blocks  # its next token comes without a decode step, see engine.block_steps
        whiches.append(which)
        requests.append(s.stack_request[lane, place].astype(np.int64))
        processed.append(all_tokens)
        more = place > s.stack_waiting[lane]
        more_which = which[more]
        more_lane = lane[more]
        upcoming = s.stack_tokens[more_lane, place[more] - 1].astype(np.float64)
        s.left[more_lane] = upcoming
        which = more_which[tokens[more_which] < share[more_which]]
    if not whiches:
        return None
    places = [np.full(which.size, place) for place, which in enumerate(whiches)]
    return _Finished(*map(np.concatenate, (whiches, requests, processed, places)))


def _count_recomputed(engine: Engine, lanes: Ints, share: Floats) -> None:
    """Add the tokens that this step processes of fresh requests preempted in an earlier prefill."""
    p, s, t = engine.params, engine.state, engine.traffic
    seen = (s.high_water[lanes] > s.first_prefill[lanes]) & (s.stack_size[lanes] == s.stack_waiting[lanes])
    if not seen.any():
        return
    lane, share = lanes[seen], share[seen]
    first = s.first_prefill[lane]
    which, request = spread(first, s.head[lane] - first)
    place = p.row[lane][which] + request
    # Tokens of the share that are gone before this request's turn, counted from the beginning of the part-way one.
    offset = t.prompts_before[place] - t.prompts_before[p.row[lane] + first][which]
    reach = s.done[lane][which] + share[which]
    after = np.clip(reach - offset, 0, t.prompt[place])
    before = np.where(request == first[which], s.done[lane][which], 0)
    preempted = engine.outcome.preemptions[p.out[lane][which] + request] > 0
    np.add.at(s.recomputed_tokens, lane[which], np.where(preempted, after - before, 0))


def _start_decoding(engine: Engine, lanes: Ints, requests: Ints, processed: Floats, place: Ints) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots.

    `place` is 0 for a lane's first request, 1 for its second, ... All [n].
    """
    p, s, t = engine.params, engine.state, engine.traffic
    total = t.total[p.row[lanes] + requests]
    end = s.tick[lanes] + total - processed - 1
    decoding = s.decoding[lanes].astype(np.int64) + place
    engine.make_room(int(decoding.max()) + 1)
    slots = s.slot_end.shape[1]
    slot = s.slot_order.ravel()[lanes * slots + decoding].astype(np.int64)
    index = lanes * slots + slot
    s.slot_end.ravel()[index] = end
    s.slot_request.ravel()[index] = requests
    np.add.at(s.decoding, lanes, 1.0)
    np.add.at(s.context, lanes, processed + 1)
    np.minimum.at(s.next_end, lanes, end)
    soonest = (end == s.next_end[lanes]).nonzero()[0]
    s.next_slot[lanes[soonest]] = slot[soonest]
    if engine.paged:
        residue = (end + 1 - total).astype(np.int64) % p.block_size[lanes]
        np.add.at(s.growth.ravel(), lanes * s.growth.shape[1] + residue, engine.one)
