"""Phase *leap*: steps in which nothing changes but counters, taken together.

A leap ends at the first of: a request finishing; the step before a prefill ends; an arrival that could be admitted; the
blocks running out; the lines of lines.py changing places. Ending early at any step changes nothing, so a
bound may be too careful, never too generous.
"""

from __future__ import annotations

import numpy as np

from . import itl
from .arrays import ALL, ONE, ZERO, Bools, Floats, Ints
from .batch import Batch, asked_of_head, left_of_budget, whole_in_budget
from .lines import Pieces, end_after, step_time_lines, until_arrival
from .logging_steps import log_leap
from .order_changes import admits_somebody, next_change
from .params import NO_LIMIT
from .prefills import NO_PREFILL
from .ranges import spread
from .request_rows import blocks_for


def leap(batch: Batch) -> None:
    """Take as many steps as nothing happens in, possibly none, in every lane."""
    clock, decodes = batch.clock, batch.decodes
    decoding, context, now = decodes.decoding, decodes.context, clock.now
    steps = decodes.next_end - clock.tick
    busy = decoding > ZERO
    pieces: Pieces | None = None
    part_way = busy
    if batch.budgets:
        part_way, pieces = _pieces(batch, steps)
        busy |= part_way
    if batch.router is not None:
        busy = batch.due(busy)
    if batch.any_chunk_fits:
        np.minimum(steps, ONE, out=steps, where=batch.queue.preempting)
    steps *= busy
    if pieces is not None:
        # Most prompts end in their next step: those take no piece.
        moves = (steps[pieces.lanes] > ZERO).nonzero()[0]
        pieces = Pieces(pieces.lanes[moves], pieces.tokens[moves])
        if batch.any_chunks and batch.paged:
            pieces = _cut_pieces(batch, pieces, steps)

    first_step_s, half_slope_s, steps_to_crossover = step_time_lines(batch, ALL, decoding, context, pieces)
    if steps_to_crossover is not None:
        np.minimum(steps, steps_to_crossover, out=steps)
    end = end_after(now, first_step_s, half_slope_s, steps)

    arrival = batch.queue.head_arrival
    stops = (arrival <= end) & busy
    if batch.reserve:
        if pieces is not None:
            stops &= (batch.params.budget > decoding) & ~part_way
        rows = stops.nonzero()[0]
        stops[rows] = batch.reserved_memory.fits(rows, batch.queue.head_total[rows])
    else:
        stops &= batch.may_admit(batch)
        if batch.any_unsplit:
            stops &= whole_in_budget(batch, left_of_budget(batch))
        if batch.paged:
            # Blocks only become fewer in a leap: a head that does not fit now will not.
            left = left_of_budget(batch) if batch.any_chunk_fits else ONE
            stops &= batch.memory.may_fit(asked_of_head(batch, left))
    if batch.pool is not None:
        changes = np.where(stops, arrival, np.inf)
        rows = (busy & ~stops & admits_somebody(batch, part_way)).nonzero()[0]
        changes[rows] = next_change(batch, batch.pool, rows)
        arrival, stops = changes, (changes <= end) & busy
    if batch.router is not None:
        arrival = np.minimum(np.where(stops, arrival, np.inf), batch.inflow.horizon)
        stops = (arrival <= end) & busy
    rows = stops.nonzero()[0]
    if rows.size:
        lines = first_step_s[rows], half_slope_s[rows]
        steps[rows], end[rows] = until_arrival(now[rows], arrival[rows], *lines, steps[rows])
    if batch.reserve and np.count_nonzero(clock.wakes_now):
        # A lane that was idle takes its first step whoever else has arrived at that moment.
        rows = (clock.wakes_now & busy & (steps == 0)).nonzero()[0]
        steps[rows] = 1
        end[rows] = end_after(now[rows], first_step_s[rows], half_slope_s[rows], steps[rows])
        clock.start_steps()

    after = context + steps * decoding
    if batch.paged:
        if batch.any_chunks and pieces is not None:
            _hold_pieces(batch, pieces, steps)
        rows = batch.memory.leap(after, steps, batch.budgets)
        if rows.size:
            end[rows] = end_after(now[rows], first_step_s[rows], half_slope_s[rows], steps[rows])
            after[rows] = context[rows] + steps[rows] * decoding[rows]
    if batch.log is not None:
        piece = 0.0 if pieces is None else pieces.of_all(decoding.size)
        log_leap(batch, batch.log, steps, first_step_s, half_slope_s, piece)
    if batch.keeps_itl:
        itl.leap(batch, steps, first_step_s, half_slope_s, end, decodes.decoding)

    if batch.any_chunk_fits:
        batch.queue.end_step((steps > ZERO).nonzero()[0])
    clock.leap(end, steps)
    decodes.leap(after)
    if pieces is not None and pieces.lanes.size:
        _process(batch, pieces, steps)
    if batch.reserve:
        batch.counts.hold(steps * batch.reserved_memory.reserved)


def _pieces(batch: Batch, steps: Floats) -> tuple[Bools, Pieces]:
    """Lanes that are in the middle of a prompt [L], and the pieces of it that a leap may take: those that do not end
    it, as the step that does is not part of a leap. Cuts `steps` [L] to them."""
    prefills = batch.prefills
    share = batch.params.budget - batch.decodes.decoding
    part_way = prefills.prefill_left < NO_PREFILL
    if batch.reserve:
        part_way &= share > 0  # decodes alone can exceed a chunk budget
    lanes = part_way.nonzero()[0]
    tokens = share[lanes]
    most = np.ceil(prefills.prefill_left[lanes] / np.maximum(tokens, ONE)) - ONE
    steps[lanes] = np.minimum(steps[lanes], most)
    return part_way, Pieces(lanes, tokens)


def _cut_pieces(batch: Batch, pieces: Pieces, steps: Floats) -> Pieces:
    """Where pieces take blocks of their own: as many steps as are certain to find them, else those whose blocks are
    taken, one or none. Cuts `steps` [L]."""
    p, decodes, memory, lanes = batch.params, batch.decodes, batch.memory, pieces.lanes
    size, done, decoding = p.block_size_f[lanes], batch.prefills.prefill_done[lanes], decodes.decoding[lanes]
    wanted, taken = steps[lanes], memory.prefill_blocks[lanes]
    context = decodes.context[lanes] + wanted * decoding
    in_prefill = np.maximum(taken, blocks_for(done + wanted * pieces.tokens, size))
    sure = memory.sure_to_fit_beside(lanes, context, decoding, in_prefill)
    one = (blocks_for(done + pieces.tokens, size) <= taken).astype(np.float64)
    own = p.takes_chunks[lanes] & (p.num_blocks[lanes] < NO_LIMIT) & ~sure
    steps[lanes] = np.where(own, np.minimum(wanted, one), wanted)
    moves = (steps[lanes] > ZERO).nonzero()[0]
    return Pieces(lanes[moves], pieces.tokens[moves])


def _hold_pieces(batch: Batch, pieces: Pieces, steps: Floats) -> None:
    """Prefills have taken the blocks of `steps` [L] pieces."""
    p = batch.params
    counted = p.takes_chunks[pieces.lanes] & (p.num_blocks[pieces.lanes] < NO_LIMIT)
    rows = (counted & (steps[pieces.lanes] > ZERO)).nonzero()[0]
    lanes, tokens = pieces.lanes[rows], pieces.tokens[rows]
    done = batch.prefills.prefill_done[lanes] + steps[lanes] * tokens
    batch.memory.keep_at(lanes, blocks_for(done, p.block_size_f[lanes]))


def _block_steps(batch: Batch, pieces: Pieces, taken: Floats) -> Floats:
    """Blocks that requests in prefill hold, summed over the `taken` steps. [n], before these are processed."""
    p, lanes = batch.params, pieces.lanes
    held = taken * batch.memory.prefill_blocks[lanes]
    if batch.any_chunks:
        rows = (p.takes_chunks[lanes] & (p.num_blocks[lanes] < NO_LIMIT) & (taken > ONE)).nonzero()[0]
        if rows.size:
            row, number, _ = spread(np.ones(rows.size, np.int64), taken[rows].astype(np.int64))
            at = rows[row]
            done = batch.prefills.prefill_done[lanes[at]] + number * pieces.tokens[at]
            held[rows] = np.bincount(row, blocks_for(done, p.block_size_f[lanes[at]]), rows.size)
    return held


def _process(batch: Batch, pieces: Pieces, steps: Floats) -> None:
    """Count what `steps` [L] steps did."""
    decodes, counts, lanes = batch.decodes, batch.counts, pieces.lanes
    taken = steps[lanes]
    tokens = taken * pieces.tokens
    waiting = taken if batch.reserve else taken * (decodes.running[lanes] - decodes.decoding[lanes])
    counts.wait_at(lanes, waiting)
    if batch.paged:
        counts.hold_at(lanes, _block_steps(batch, pieces, taken))
    batch.prefills.process(lanes, tokens)
    if batch.queue.any_preempted:
        _count_recomputed(batch, lanes, tokens)


def _count_recomputed(batch: Batch, lanes: Ints, tokens: Floats) -> None:
    """Pieces of prompts whose request had been preempted count as recomputed. All [n]."""
    queue = batch.queue
    again = queue.preempted_size[lanes] > queue.preempted_waiting[lanes]
    first = batch.prefills.first_prefill[lanes]
    seen = ((tokens > 0) & ~again & (queue.preempted_until[lanes] > first)).nonzero()[0]
    again[seen] = batch.times.preemptions[batch.cells(lanes[seen], first[seen])] > 0
    batch.counts.recompute(lanes, np.where(again, tokens, 0))
