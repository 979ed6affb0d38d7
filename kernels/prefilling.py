"""Phase *prefill*: the single step that completes at least one prefill, in three: choose what it takes, time it, hand
over what has ended.

Steps that only take a further piece of a long prompt are part of a leap (leaping.py). Under `mixed` and `chunked` the
step also decodes everything that decodes; under `prefill_first` it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import itl
from .arrays import ONE, ZERO, Bools, Floats, Ints
from .batch import Batch
from .logging_steps import log_prefill_step
from .ranges import largest, spread
from .repeated_prefills import Repeated, count_recomputed, repeat_prefills
from .request_rows import pairs_of
from .starting import start_decoding


@dataclass(slots=True)
class PrefillStep:
    """What one step of each lane takes, while it is put together; [L] unless said. Lanes without one go along as steps
    of no tokens and no time."""

    active: Bools  # lanes that take the step
    taken: Floats  # 1 there, else 0
    first: Ints  # the oldest fresh request in prefill, and the first that the step does not end
    end: Ints
    prompts_at_end: Floats  # RequestRows.prompts_before and pairs_before at `end`
    pairs_at_end: Floats
    tokens: Floats  # processed
    pairs: Floats  # their attention work
    prefill_blocks: Floats  # held by requests in prefill during the step
    again: Repeated | None  # preempted requests whose prefill ends
    done: Floats | None  # prompt tokens of it that were processed before, where step times depend on them
    begin_s: Floats
    end_s: Floats  # when its tokens are there
    next_s: Floats  # when the next step can begin
    decoded: Floats  # tokens emitted by requests that were decoding


Choose = Callable[[Batch], PrefillStep | None]
HandOver = Callable[[Batch, PrefillStep], None]


def prefill_phase(choose: Choose, hand_over: HandOver) -> Callable[[Batch], None]:
    """The phase of instances that choose and hand over in these ways."""

    def prefill(batch: Batch) -> None:
        step = choose(batch)
        if step is not None:
            _time(batch, step)
            hand_over(batch, step)

    return prefill


# What the step takes.


def choose_all(batch: Batch) -> PrefillStep | None:
    """All that is in prefill, of instances without a token budget."""
    queue, prefills, blocks = batch.queue, batch.prefills, batch.memory.prefill_blocks
    first = prefills.first_prefill
    active = queue.head > first
    if queue.any_preempted:
        active |= queue.preempted_size > queue.preempted_waiting
    active = batch.due(active)
    if not np.count_nonzero(active):
        return None
    tokens = queue.prompts_at_head - prefills.prompts_at_first
    pairs = queue.pairs_at_head - prefills.pairs_at_first
    again: Repeated | None = None
    if queue.any_preempted:
        blocks = blocks.copy()
        repeated = repeat_prefills(batch, active, batch.params.budget)
        if repeated is not None:
            again, tokens, pairs = repeated[0], tokens + repeated[1], pairs + repeated[2]
    ends = queue.head.copy(), queue.prompts_at_head.copy(), queue.pairs_at_head.copy()
    return _step(batch, active, first, ends, (tokens, pairs), blocks, again)


def choose_within_budget(batch: Batch) -> PrefillStep | None:
    """What the token budget leaves to prefills, oldest first, where the oldest ends with it."""
    queue, prefills, blocks = batch.queue, batch.prefills, batch.memory.prefill_blocks
    share = batch.params.budget - batch.decodes.decoding
    active = batch.due(prefills.prefill_left <= share)
    if not np.count_nonzero(active):
        return None
    first, fresh = prefills.first_prefill, active
    done = prefills.prefill_done.copy() if batch.step_times.lookup is not None else None
    repeated: tuple[Repeated, Floats, Floats] | None = None
    if queue.any_preempted:
        blocks = blocks.copy()
        repeated = repeat_prefills(batch, active, share)
        if repeated is not None:
            share = share - repeated[1]
        count_recomputed(batch, active, share)
        # Elsewhere a repeated prefill is still the oldest.
        fresh = active & (queue.preempted_size == queue.preempted_waiting)
    ends, tokens, pairs = _cut_by_budget(batch, fresh, share)
    if repeated is None:
        return _step(batch, active, first, ends, (tokens, pairs), blocks, None, done)
    again, tokens_again, pairs_again = repeated
    work = tokens + tokens_again, pairs + pairs_again
    return _step(batch, active, first, ends, work, blocks, again, done)


def _step(
    batch: Batch,
    active: Bools,
    first: Ints,
    ends: tuple[Ints, Floats, Floats],
    work: tuple[Floats, Floats],
    blocks: Floats,
    again: Repeated | None,
    done: Floats | None = None,
) -> PrefillStep:
    """The step, before it is timed."""
    now = batch.clock.now
    taken = active.astype(np.float64)
    return PrefillStep(active, taken, first, *ends, *work, blocks, again, done, now, now, now, now)


def _cut_by_budget(batch: Batch, fresh: Bools, share: Floats) -> tuple[tuple[Ints, Floats, Floats], Floats, Floats]:
    """Fresh prefills in order, as many as the share completes in the lanes `fresh`; what is left of it begins the next
    one. Returns the first request that does not end and the prefix sums there, tokens and attention pairs; keeps how
    far that request is. All [L]."""
    p, r, queue, prefills = batch.params, batch.requests, batch.queue, batch.prefills
    first, prompts_at_first, row = prefills.first_prefill, prefills.prompts_at_first, p.row
    done = prefills.prefill_done * fresh
    end = np.where(fresh, queue.head, first)
    before = prompts_at_first + done
    tokens = (queue.prompts_at_head - before) * fresh
    prefills.end_where(fresh, done)
    rest = tokens
    cut = (tokens > share).nonzero()[0]
    if cut.size:
        begin, rest = row[cut] + first[cut], share[cut]
        tokens[cut] = rest
        place = begin + _completed(batch, begin, end[cut] - first[cut], before[cut], rest)
        rest = rest - (r.prompts_before[place] - before[cut])
        end[cut] = place - row[cut]
        prefills.continue_at(cut, rest, r.prompt[place] - rest)
    place = row + end
    prompts_at_end, pairs_at_end = r.prompts_before[place], r.pairs_before[place]
    pairs = pairs_at_end - prefills.pairs_at_first - pairs_of(done)
    if cut.size:
        pairs[cut] += pairs_of(rest)
    return (end, prompts_at_end, pairs_at_end), tokens, pairs


def _completed(batch: Batch, place: Ints, most: Ints, before: Floats, share: Floats) -> Ints:
    """How many of the prefills that begin at `place` end within `share` tokens; fewer than `most`. All [n]."""
    sums = batch.requests.prompts_before
    return largest(
        np.zeros(place.size, np.int64), most, lambda rows, n: sums[place[rows] + n] - before[rows] <= share[rows]
    )


# How long it takes.


def _time(batch: Batch, step: PrefillStep) -> None:
    """Where it ends, and what is emitted in it; writes it down where steps are kept."""
    decodes, times, tokens = batch.decodes, batch.step_times, step.tokens
    decoding, context = decodes.decoding, decodes.context  # of requests that decode in the step
    if batch.any_exclusive:
        mixes_prefill = batch.params.mixes_prefill
        decoding, context = decoding * mixes_prefill, context * mixes_prefill
    step.decoded = decoding * step.taken
    emitted = step.taken
    if batch.log is not None or times.lookup is not None:
        emitted = (step.end - step.first).astype(np.float64) + step.decoded
        if step.again is not None:
            emitted += np.bincount(step.again.lanes, minlength=emitted.size)
    seconds = times.seconds(decoding, context, tokens, step.pairs, step.done, emitted) * step.taken
    step.end_s = step.next_s = step.begin_s + seconds
    if batch.log is not None:
        log_prefill_step(batch, batch.log, step.active, step.end_s, emitted, tokens + step.decoded, step.prefill_blocks)
    if batch.keeps_itl and batch.any_mixed:
        itl.decode_step(batch, step.active & (batch.params.mixes_prefill > ZERO), step.end_s)
    if not batch.rules.decodes:
        step.next_s = step.begin_s + seconds / batch.params.stages


# What it leaves behind.


def hand_over_to_decodes(batch: Batch, step: PrefillStep) -> None:
    """Requests whose prefill ended decode from now on, where memory is counted in blocks or unlimited."""
    p, r, decodes, memory, counts = batch.params, batch.requests, batch.decodes, batch.memory, batch.counts
    first, again, count = step.first, step.again, step.end - step.first
    started = count.astype(np.float64)
    completed = step.prompts_at_end - batch.prefills.prompts_at_first
    batch.prefills.move(step.end, step.prompts_at_end, step.pairs_at_end)
    if batch.budgets:
        if batch.paged:
            memory.end_prefills(r.blocks_before[p.block_row + step.end] - r.blocks_before[p.block_row + first])
        counts.wait((decodes.running - started) * step.taken - step.decoded)
        counts.hold(memory.prefill_blocks * step.taken)
        if again is not None:
            counts.emit_after_all(again.lanes)
    else:
        if batch.paged:
            memory.end_all_prefills()
        if batch.any_exclusive:
            counts.wait(decodes.decoding * step.taken - step.decoded)
    apart, held = _move_clock(batch, step)
    decodes.emit(step.decoded)
    lanes, request, order = spread(first, count)
    if lanes.size:
        _emit_first_tokens(batch, step, lanes, request)
        start_decoding(batch, lanes, request, r.prompt[p.row[lanes] + request], order)
        decodes.start(started, completed + started)
    if again is not None:
        start_decoding(batch, *again)
        decodes.start_some(again.lanes, again.tokens + ONE)
    decodes.sort(step.active.nonzero()[0])
    if apart.size:
        memory.end_exclusive_step(apart, held + step.prefill_blocks[apart])


def hand_over_to_lane(batch: Batch, step: PrefillStep) -> None:
    """Requests whose prefill ended wait for the lane, under reserved memory (entering.py)."""
    counts, decodes = batch.counts, batch.decodes
    batch.prefills.move(step.end, step.prompts_at_end, step.pairs_at_end)
    if batch.budgets:
        counts.wait((batch.queue.head - step.end) * step.taken)
    elif batch.any_exclusive:
        counts.wait(decodes.decoding * step.taken - step.decoded)
    _move_clock(batch, step)
    decodes.emit(step.decoded)
    _emit_first_tokens(batch, step, *spread(step.first, step.end - step.first)[:2])
    batch.clock.start_step(step.active)
    counts.hold(batch.reserved_memory.reserved * step.active)


def hand_over_done(batch: Batch, step: PrefillStep) -> None:
    """Requests whose prefill ended are done, on prefill instances."""
    count = step.end - step.first
    batch.prefills.move(step.end, step.prompts_at_end, step.pairs_at_end)
    _move_clock(batch, step)
    _emit_first_tokens(batch, step, *spread(step.first, count)[:2])
    batch.clock.start_step(step.active)
    batch.decodes.leave(count)
    if batch.router is not None:
        batch.inflow.end_batch(step.active, count.astype(np.float64), step.tokens)


_NO_LANES = np.zeros(0, np.int64)


def _move_clock(batch: Batch, step: PrefillStep) -> tuple[Ints, Floats]:
    """Time and ticks after the step. Returns lanes whose decoding requests waited, and the blocks that these hold,
    where blocks are counted. Both [n]."""
    if not batch.any_exclusive:
        batch.clock.prefill(step.next_s, step.taken)
        return _NO_LANES, step.next_s
    exclusive = step.taken * (ONE - batch.params.mixes_prefill)
    batch.clock.prefill_exclusively(step.next_s, step.taken, exclusive)
    if not batch.paged:
        return _NO_LANES, step.next_s
    apart = exclusive.nonzero()[0]
    held = batch.memory.waiting_decodes(apart)
    batch.counts.hold_at(apart, held)
    return apart, held


def _emit_first_tokens(batch: Batch, step: PrefillStep, lanes: Ints, requests: Ints) -> None:
    """Note the first tokens of requests; without a budget they were admitted in this loop. Both [n]."""
    cells = batch.cells(lanes, requests)
    batch.times.first_token(cells, step.end_s[lanes])
    if not batch.budgets:
        batch.times.admit(cells, step.begin_s[lanes])
