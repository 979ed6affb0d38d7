"""Phase *prefill*: the single step that completes at least one prefill.

Steps that only take a further piece of a long prompt are part of a leap (leap.py). Under `mixed` and `chunked` the step also decodes
everything that decodes; under `prefill_first` it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import blocks_for, held
from .queue import largest, spread
from .state import NOTHING_LEFT, Floats, Ints
from .steptime import StepCoefficients, step_seconds

if TYPE_CHECKING:
    from .engine import Engine


def pairs_of(tokens: Floats) -> Floats:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + 1) / 2


def prefill(engine: Engine) -> None:
    """Run one step in every lane whose oldest prefill ends in it."""
    p, s, t = engine.params, engine.state, engine.traffic
    share = p.budget - s.decoding
    lanes = (s.left <= share).nonzero()[0] if engine.budgets else (s.left < NOTHING_LEFT).nonzero()[0]
    if not lanes.size:
        return
    share = share[lanes]
    beside = engine.decode_beside_prefill
    begin, decoding, context = s.now[lanes], s.decoding[lanes], s.context[lanes]
    prefill_blocks = s.prefill_blocks[lanes]
    tokens, pairs = np.zeros(lanes.size), np.zeros(lanes.size)
    again = _Finished.none()
    if engine.preempted:
        again = _repeat_prefills(engine, lanes, share, tokens, pairs)
        share = share - tokens
        _count_recomputed(engine, lanes, share)

    # Fresh prefills in order, as many as the share completes; what is left of it begins the next one.
    first, head, row = s.first_prefill[lanes], s.head[lanes], p.row[lanes]
    part_way = s.stack_size[lanes] > s.stack_waiting[lanes]  # a repeated prefill is still the oldest
    done = np.where(part_way, 0, s.done[lanes])
    before = t.prompts_before[row + first] + done
    fresh_tokens = t.prompts_before[row + head] - before
    end, rest = head.copy(), np.zeros(lanes.size)
    if engine.budgets:
        cut = (fresh_tokens > share).nonzero()[0]
        if cut.size:
            end[cut] = _completed(engine, row[cut] + first[cut], head[cut] - first[cut], before[cut], share[cut]) + first[cut]
            rest[cut] = share[cut] - (t.prompts_before[row[cut] + end[cut]] - before[cut])
            fresh_tokens[cut] = share[cut]
    tokens += fresh_tokens
    pairs += t.pairs_before[row + end] - t.pairs_before[row + first] - pairs_of(done) + pairs_of(rest)

    coefficients = StepCoefficients(*p.coefficients[:, lanes])
    if beside:
        now = begin + step_seconds(coefficients, decoding + tokens, context + pairs, context + tokens)
    else:
        now = begin + step_seconds(coefficients, tokens, pairs, tokens)

    if engine.paged:
        s.block_steps[lanes] += prefill_blocks
    decoding_blocks = _blocks_of_waiting_decodes(engine, lanes) if engine.paged and not beside else np.zeros(0)
    if engine.log is not None:
        emitted = end - first + np.bincount(again.which, minlength=lanes.size) + decoding * beside
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
    s.done[lanes] = np.where(part_way, s.done[lanes], rest)
    left = np.where(end < head, t.prompt[row + end] - rest, NOTHING_LEFT)
    s.left[lanes] = np.where(part_way, s.left[lanes], left)
    which, request = spread(first, end - first)
    if request.size:
        lane = lanes[which]
        engine.outcome.first_token_s[p.out[lane] + request] = now[which]
        _start_decoding(engine, lane, request, t.prompt[row[which] + request])
    if again.which.size:
        _start_decoding(engine, lanes[again.which], again.request, again.tokens)
    if engine.paged and not beside:
        # The step's blocks in full, counted while they are known: all are now held by decoding requests.
        s.used[lanes] = decoding_blocks + prefill_blocks
        s.free[lanes] = p.num_blocks[lanes] - s.used[lanes]
        s.peak[lanes] = np.maximum(s.peak[lanes], s.used[lanes])
        s.tight[lanes] = True


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


class _Finished:
    """Repeated prefills that end in this step: index into the step's lanes, request, tokens processed. All [n]."""

    def __init__(self, which: list[Ints], request: list[Ints], tokens: list[Floats]) -> None:
        unordered = np.concatenate([np.zeros(0, np.int64), *which])
        order = np.argsort(unordered, kind="stable")  # rounds mix the lanes; their requests must come in runs
        self.which = unordered[order]
        self.request = np.concatenate([np.zeros(0, np.int64), *request])[order]
        self.tokens = np.concatenate([np.zeros(0), *tokens])[order]

    @classmethod
    def none(cls) -> _Finished:
        return cls([], [], [])


def _repeat_prefills(engine: Engine, lanes: Ints, share: Floats, tokens: Floats, pairs: Floats) -> _Finished:
    """Spend the share on preempted requests admitted again, oldest first, one a lane and round; adds to `tokens` and `pairs`."""
    p, s = engine.params, engine.state
    whiches, requests, processed = [], [], []
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
    return _Finished(whiches, requests, processed)


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


def _start_decoding(engine: Engine, lanes: Ints, requests: Ints, processed: Floats) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots. All [n]; lanes in runs."""
    p, s, t = engine.params, engine.state, engine.traffic
    total = t.total[p.row[lanes] + requests]
    end = s.tick[lanes] + total - processed - 1
    decoding = s.decoding[lanes].astype(np.int64)
    once = lanes.size < 2 or bool((lanes[1:] != lanes[:-1]).all())
    if not once:
        begins = np.concatenate([[True], lanes[1:] != lanes[:-1]])
        place = np.arange(lanes.size)
        decoding += place - np.maximum.accumulate(np.where(begins, place, 0))
    engine.make_room(int(decoding.max()) + 1)
    slot = s.slot_order[lanes, decoding].astype(np.int64)
    index = lanes * s.slot_end.shape[1] + slot
    s.slot_end.ravel()[index] = end
    s.slot_request.ravel()[index] = requests
    np.add.at(s.decoding, lanes, 1.0)
    np.add.at(s.context, lanes, processed + 1)
    sooner = (end < s.next_end[lanes]).nonzero()[0]
    if not once:
        # Of repeated indices the last one is written: the smallest end must be it.
        sooner = sooner[np.argsort(-end[sooner], kind="stable")]
    s.next_end[lanes[sooner]] = end[sooner]
    s.next_slot[lanes[sooner]] = slot[sooner]
    if engine.paged:
        residue = (end + 1 - total).astype(np.int64) % p.block_size[lanes]
        np.add.at(s.growth.ravel(), lanes * s.growth.shape[1] + residue, 1)
