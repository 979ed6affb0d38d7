"""Phase *prefill*: the single step that completes at least one prefill.

Steps that only take a further piece of a long prompt are part of a leap (leap.py). Under `mixed` and `chunked` the step also decodes
everything that decodes; under `prefill_first` it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .blocks import blocks_for, held
from .queue import largest, spread
from .state import NOTHING_LEFT, Bools, Floats, Ints
from .steptime import step_seconds

if TYPE_CHECKING:
    from .engine import Engine


def pairs_of(tokens: Floats) -> Floats:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + 1) / 2


def prefill(engine: Engine) -> None:
    """Run one step in every lane whose oldest prefill ends in it. Lanes without one go along as steps of no tokens and no time."""
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
    if not np.count_nonzero(active):
        return
    prefill_blocks = s.prefill_blocks
    again: _Finished | None = None
    again_tokens: Floats | float = 0.0
    again_pairs: Floats | float = 0.0
    if engine.preempted:
        prefill_blocks = prefill_blocks.copy()
        again_tokens, again_pairs = np.zeros(first.size), np.zeros(first.size)
        again = _repeat_prefills(engine, active, share, again_tokens, again_pairs)
        if engine.budgets:
            _count_recomputed(engine, active.nonzero()[0], share - again_tokens)

    # Fresh prefills in order, as many as the share completes; what is left of it begins the next one.
    if engine.budgets:
        end, tokens, pairs = _cut_by_budget(engine, active, share - again_tokens)
    else:
        end = s.head.copy()
        tokens = t.prompts_before[p.row + end] - t.prompts_before[p.row + first]
        pairs = t.pairs_before[p.row + end] - t.pairs_before[p.row + first]
    if engine.preempted:
        tokens = tokens + again_tokens
        pairs = pairs + again_pairs

    work = (s.decoding + tokens, s.context + pairs, s.context + tokens) if beside else (tokens, pairs, tokens)
    begin = s.now
    now = begin + step_seconds(engine.coefficients, *work, engine.communicates) * active

    decoding_blocks = np.zeros(0)
    lanes = np.zeros(0, np.int64)
    if engine.paged:
        s.block_steps += prefill_blocks * active
        if not beside:
            lanes = active.nonzero()[0]
            decoding_blocks = _blocks_of_waiting_decodes(engine, lanes)
    count = end - first
    if engine.log is not None:
        decoded = s.decoding * (active & beside)
        emitted = count + decoded
        if again is not None:
            emitted = emitted + np.bincount(again.lanes, minlength=count.size)
        engine.log.prefill_step(engine, active, now, emitted, tokens + decoded, prefill_blocks)

    s.now = now
    s.steps += active
    s.running_steps += s.running * active
    s.prefill_tokens += tokens
    if beside:
        s.tick += active
        s.context += s.decoding * active
    s.first_prefill = end
    if engine.paged:
        s.prefill_blocks = s.prefill_blocks - (t.blocks_before[p.block_row + end] - t.blocks_before[p.block_row + first])
    which, request, place = spread(first, count)
    if which.size:
        cell = p.out[which] + request
        engine.outcome.first_token_s[cell] = now[which]
        if not engine.budgets:
            engine.outcome.admitted_s[cell] = begin[which]
        _start_decoding(engine, which, request, t.prompt[p.row[which] + request], place)
        s.decoding += count
        s.context += t.prompts_before[p.row + end] - t.prompts_before[p.row + first] + count
    if again is not None:
        _start_decoding(engine, *again)
        np.add.at(s.decoding, again.lanes, 1.0)
        np.add.at(s.context, again.lanes, again.tokens + 1)
    if engine.paged and not beside:
        # The step's blocks in full, counted while they are known: all are now held by decoding requests.
        s.used[lanes] = decoding_blocks + prefill_blocks[lanes]
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes]
        s.peak[lanes] = np.maximum(s.peak[lanes], s.used[lanes])
        s.tight[lanes] = True


def _cut_by_budget(engine: Engine, active: Bools, share: Floats) -> tuple[Ints, Floats, Floats]:
    """First request that this step's fresh prefills do not complete, their tokens and attention pairs; keeps how far that request
    is. All [L]."""
    p, s, t = engine.params, engine.state, engine.traffic
    first, row = s.first_prefill, p.row
    fresh = active
    if engine.preempted:
        fresh = active & (s.stack_size == s.stack_waiting)  # elsewhere a repeated prefill is still the oldest
    done = s.done * fresh
    end = np.where(fresh, s.head, first)
    before = t.prompts_before[row + first] + done
    tokens = np.where(fresh, t.prompts_before[row + end] - before, 0)
    pairs = t.pairs_before[row + end] - t.pairs_before[row + first] - pairs_of(done)
    s.done = np.where(fresh, 0, s.done)
    s.left = np.where(fresh, NOTHING_LEFT, s.left)
    cut = (tokens > share).nonzero()[0]
    if cut.size:
        begin, tokens[cut] = row[cut] + first[cut], share[cut]
        place = begin + _completed(engine, begin, end[cut] - first[cut], before[cut], share[cut])
        rest = share[cut] - (t.prompts_before[place] - before[cut])
        end[cut] = place - row[cut]
        pairs[cut] = t.pairs_before[place] - t.pairs_before[begin] - pairs_of(done[cut]) + pairs_of(rest)
        s.done[cut] = rest
        s.left[cut] = t.prompt[place] - rest
    return end, tokens, pairs


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
    """Repeated prefills that end in this step: lane, request, tokens processed, place among those of the lane. All [n]."""

    lanes: Ints
    requests: Ints
    tokens: Floats
    place: Ints


def _repeat_prefills(engine: Engine, active: Bools, share: Floats, tokens: Floats, pairs: Floats) -> _Finished | None:
    """Spend the share on preempted requests admitted again, oldest first, one a lane and round; adds to `tokens` and `pairs` [L]."""
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
        blocks = blocks_for(all_tokens, p.block_size[lane])
        s.stack_size[lane] = place
        s.prefill_blocks[lane] -= blocks
        s.block_steps[lane] -= blocks  # its next token comes without a decode step, see Engine._decode_block_steps
        request = s.stack_request[lane, place].astype(np.int64)
        rounds.append(_Finished(lane, request, all_tokens, np.full(lane.size, len(rounds))))
        more = (place > s.stack_waiting[lane]).nonzero()[0]
        lane, place = lane[more], place[more]
        s.left[lane] = s.stack_tokens[lane, place - 1].astype(np.float64)
        lane = lane[tokens[lane] < share[lane]]
    return _Finished(*map(np.concatenate, zip(*rounds, strict=True))) if rounds else None


def _count_recomputed(engine: Engine, lanes: Ints, share: Floats) -> None:
    """Add the tokens that this step processes of fresh requests preempted in an earlier prefill."""
    p, s, t = engine.params, engine.state, engine.traffic
    seen = (s.high_water[lanes] > s.first_prefill[lanes]) & (s.stack_size[lanes] == s.stack_waiting[lanes])
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
    preempted = engine.outcome.preemptions[p.out[lane][which] + request] > 0
    np.add.at(s.recomputed_tokens, lane[which], np.where(preempted, after - before, 0))


def _start_decoding(engine: Engine, lanes: Ints, requests: Ints, processed: Floats, place: Ints | int) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots behind the decoding ones.

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
    np.minimum.at(s.next_end, lanes, end)
    soonest = (end == s.next_end[lanes]).nonzero()[0]
    s.next_slot[lanes[soonest]] = slot[soonest]
    if engine.paged:
        residue = (end + 1 - total).astype(np.int64) % p.block_size[lanes]
        np.add.at(s.growth.ravel(), lanes * s.growth.shape[1] + residue, engine.one)
