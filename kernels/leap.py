"""Phase *leap*: steps in which nothing changes but counters, taken together.

While the decoding requests of a lane stay the same, its context grows by one token a request and step, so compute and
memory time of step j are straight lines in j. Step time is the larger line, and k steps of one line take k (a + s (k -
1) / 2). A leap ends at the first of: a request finishing; the step before a prefill ends; an arrival that could be
admitted; the blocks running out; the lines changing places. Ending early at any step changes nothing, so a bound may be
too careful, never too generous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import gaps
from .blocks import held, steps_until_full
from .prefill import pairs_of
from .reserve import room_of
from .state import NOTHING_LEFT, Floats, Ints
from .steptime import StepCoefficients

if TYPE_CHECKING:
    from .engine import Engine


_NEARLY = 1 - 1e-12  # a time within its rounding of another is looked at more closely


def leap(engine: Engine, lanes: Ints | slice) -> None:
    """Take as many steps as nothing happens in, possibly none, in each of `lanes`."""
    p, s = engine.params, engine.state
    now, decoding, context = s.now[lanes], s.decoding[lanes], s.context[lanes]
    steps = s.next_end[lanes] - s.tick[lanes]
    busy = decoding > 0
    piece: Floats | float = 0.0
    prefilling = np.zeros(0, np.int64)
    if engine.budgets:
        share = p.budget[lanes] - decoding
        left = s.left[lanes]
        part_way = left < NOTHING_LEFT
        if engine.reserve:
            part_way &= share > 0  # decodes alone can exceed a chunk budget
        busy |= part_way
        piece = np.where(part_way, share, 0)
        prefilling = part_way.nonzero()[0]
        # The step that completes a prefill is not part of a leap.
        pieces = np.ceil(left[prefilling] / np.maximum(share[prefilling], 1)) - 1
        steps[prefilling] = np.minimum(steps[prefilling], pieces)
    if engine.router is not None:
        busy = engine.due(busy)
    steps *= busy.astype(np.float64)

    line = _Line(engine, lanes, decoding, context, piece, steps, prefilling)
    end = _end(now, line.first, line.half, steps)

    stops = (s.head_arrival[lanes] <= end) & busy
    if engine.reserve:
        if engine.budgets:
            stops &= ~part_way & (share > 0)
        rows = stops.nonzero()[0]
        lane = rows if isinstance(lanes, slice) else lanes[rows]
        stops[rows] = s.head_total[lane] <= room_of(engine, lane)
    else:
        stops &= s.running[lanes] < p.max_running[lanes]
    if engine.paged:
        # Blocks only become fewer in a leap: a head that does not fit now will not. Where `free` is a lower bound, it
        # might.
        stops &= (s.head_blocks[lanes] <= s.free[lanes]) | ~s.tight[lanes]
    arrival = s.head_arrival[lanes]
    if engine.router is not None:
        arrival = np.minimum(np.where(stops, arrival, np.inf), s.horizon)
        stops = (arrival <= end) & busy
    rows = stops.nonzero()[0]
    if rows.size:
        steps[rows], end[rows] = _until_arrival(
            now[rows], arrival[rows], line.first[rows], line.half[rows], steps[rows]
        )
    if engine.reserve and np.count_nonzero(s.woken):
        # A lane that was idle takes its first step whoever else has arrived at that moment.
        rows = (s.woken[lanes] & busy & (steps == 0)).nonzero()[0]
        steps[rows] = 1
        end[rows] = _end(now[rows], line.first[rows], line.half[rows], steps[rows])
        s.woken[lanes] = False

    if engine.paged:
        rows = _fit_blocks(engine, lanes, decoding, context, steps)
        if rows.size:
            end[rows] = _end(now[rows], line.first[rows], line.half[rows], steps[rows])
    if engine.log is not None:
        engine.log.leap(engine, lanes, steps, line.first, line.half, piece)
    if engine.gaps:
        gaps.leap(engine, lanes, steps, line.first, line.half, end)

    s.now[lanes] = end
    s.tick[lanes] += steps
    s.context[lanes] = context + steps * decoding
    if prefilling.size:
        tokens = steps * piece
        s.done[lanes] += tokens
        s.left[lanes] -= tokens
        s.silent_steps[lanes] += steps * (part_way if engine.reserve else s.running[lanes] - decoding)
        if engine.paged:
            s.silent_blocks[lanes] += steps * s.prefill_blocks[lanes]
        if engine.preempted:
            _count_recomputed_pieces(engine, np.arange(s.now.size)[lanes], tokens)
    if engine.reserve:
        s.silent_blocks[lanes] += steps * s.reserved[lanes]


class _Line:
    """Time of the first step, and half of what each further step takes more; cuts `steps` where the roofline changes
    sides. [n]"""

    def __init__(
        self,
        engine: Engine,
        lanes: Ints | slice,
        decoding: Floats,
        context: Floats,
        piece: Floats | float,
        steps: Floats,
        prefilling: Ints,
    ) -> None:
        c = engine.coefficients_of(lanes)
        if engine.memory_bound:
            # Without a prefill nothing but the memory matters, and the other line need not be drawn.
            self.first = c.memory_fixed_s + c.memory_per_token_s * context + c.overhead_s
            self.half = c.memory_per_token_s * decoding * 0.5
            if prefilling.size:
                rows = prefilling
                c = engine.coefficients_of(np.arange(engine.state.now.size)[lanes][rows])
                done = engine.state.done[lanes][rows]
                drawn = _roofline(engine, c, decoding[rows], context[rows], np.asarray(piece)[rows], done)
                self.first[rows], self.half[rows], most = drawn
                steps[rows] = np.minimum(steps[rows], most)
        else:
            all_done: Floats | float = engine.state.done[lanes] if engine.budgets else 0.0
            self.first, self.half, most = _roofline(engine, c, decoding, context, piece, all_done)
            np.minimum(steps, most, out=steps)


def _roofline(
    engine: Engine,
    c: StepCoefficients,
    decoding: Floats,
    context: Floats,
    piece: Floats | float,
    done: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Time of the first step, half of its growth a step, and the steps until the other line is the larger one. All
    [n]."""
    tokens = decoding + piece
    work = context + (piece * done + pairs_of(piece))
    compute = c.compute_per_token_s * tokens + c.compute_per_context_s * work
    compute_growth = c.compute_per_context_s * (decoding + piece * piece)
    memory = c.memory_fixed_s + c.memory_per_token_s * (context + piece)
    memory_growth = c.memory_per_token_s * decoding
    ahead = compute - memory
    gains = compute_growth - memory_growth
    growth = np.where(ahead > 0, compute_growth, memory_growth)
    growth = np.where(ahead == 0, np.maximum(compute_growth, memory_growth), growth)
    most = np.full(growth.size, np.inf)
    crossing = (ahead * gains < 0).nonzero()[0]
    most[crossing] = np.floor(np.abs(ahead[crossing] / gains[crossing])) + 1
    if engine.communicates:
        first = np.maximum(compute, memory) + c.overhead_s + c.communication_s(tokens)
    else:
        first = np.maximum(compute, memory) + c.overhead_s
    return first, growth * 0.5, most


def _end(now: Floats, first: Floats, half: Floats, steps: Floats) -> Floats:
    """Time after `steps` steps: the first takes `first`, each further one 2 `half` more."""
    return now + steps * (first + half * (steps - 1))


def _until_arrival(now: Floats, arrival: Floats, first: Floats, half: Floats, most: Floats) -> tuple[Floats, Floats]:
    """The first step that ends at or after `arrival`, at most `most`, and its end: a quadratic root, put right by one
    step. [n]"""
    wait = np.maximum(arrival - now, 0)
    b = first - half
    steps = np.minimum(np.ceil(2 * wait / (b + np.sqrt(b * b + 4 * half * wait))), most)
    growth = half * (steps - 1)
    end = now + steps * (first + growth)
    # Off by a rounding: the arrival is not reached yet, or the last step already began at or after it.
    rows = ((end < arrival) | (end - (first + 2 * growth) >= arrival * _NEARLY)).nonzero()[0]
    if rows.size:
        now, arrival, first, half, most = now[rows], arrival[rows], first[rows], half[rows], most[rows]
        less = np.maximum(steps[rows] - 1, 0)
        enough = _end(now, first, half, less) >= arrival
        steps[rows] = np.where(enough, less, np.where(end[rows] < arrival, np.minimum(less + 2, most), steps[rows]))
        end[rows] = _end(now, first, half, steps[rows])
    return steps, end


def _fit_blocks(engine: Engine, lanes: Ints | slice, decoding: Floats, context: Floats, steps: Floats) -> Ints:
    """Cut `steps` where blocks run out, keep the peak, and decide which lanes must count blocks exactly until the next
    leap.

    Returns the rows that were cut. Where an upper bound of the blocks held is below the peak so far, and that of one
    step more below the memory, neither can be touched, and nothing is counted.
    """
    p, s = engine.params, engine.state
    # Every decoding request may have just begun its last block; `free` also allows each a further one in the next step.
    bound = (context + steps * decoding) * p.blocks_per_token[lanes] + decoding * p.blocks_in_doubt[lanes]
    if engine.budgets:
        bound += s.prefill_blocks[lanes]
    free = p.num_blocks[lanes] - bound - decoding
    tight = (bound > s.peak[lanes]) | (free < 0)
    s.tight[lanes] = tight
    s.free[lanes] = free
    rows = tight.nonzero()[0]
    if not rows.size:
        return rows
    lane = rows if isinstance(lanes, slice) else lanes[rows]
    decoding, context, taken = decoding[rows], context[rows], steps[rows]
    begin = s.tick[lane].astype(np.int64)
    used = held(engine, lane, context + taken * decoding, begin + taken.astype(np.int64))
    space = p.num_blocks[lane] - s.prefill_blocks[lane]
    over = (used > space).nonzero()[0]
    if over.size:
        cut, at = lane[over], begin[over]
        fit = steps_until_full(engine, cut, at, space[over] - held(engine, cut, context[over], at))
        used[over] = held(engine, cut, context[over] + fit * decoding[over], at + fit.astype(np.int64))
        steps[rows[over]] = fit
    s.used[lane] = used
    s.free[lane] = space - used
    s.peak[lane] = np.maximum(s.peak[lane], used + s.prefill_blocks[lane])
    return rows[over]


def _count_recomputed_pieces(engine: Engine, lanes: Ints, tokens: Floats) -> None:
    """Pieces of prompts whose request had been preempted count as recomputed. All [n]."""
    s = engine.state
    again = s.stack_size[lanes] > s.stack_waiting[lanes]
    first = s.first_prefill[lanes]
    seen = ((tokens > 0) & ~again & (s.preempted_until[lanes] > first)).nonzero()[0]
    again[seen] = engine.outcome.preemptions[engine.cells(lanes[seen], first[seen])] > 0
    s.recomputed_tokens[lanes] += np.where(again, tokens, 0)
