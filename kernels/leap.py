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
from .queue import ALL
from .reserve import room_of
from .state import HALF, NOTHING, ONE, ZERO, Floats, Ints
from .steptime import StepCoefficients

if TYPE_CHECKING:
    from .engine import Engine


_NEARLY = np.array(1 - 1e-12)  # a time within its rounding of another is looked at more closely


def leap(engine: Engine) -> None:
    """Take as many steps as nothing happens in, possibly none, in every lane."""
    p, s = engine.params, engine.state
    decoding, context = s.decoding, s.context
    steps = s.next_end - s.tick
    busy = decoding > ZERO
    pieces: _Pieces | None = None
    if engine.budgets:
        pieces = _Pieces(engine, decoding, steps)
        busy |= pieces.part_way
    if engine.router is not None:
        busy = engine.due(busy)
    steps *= busy
    if pieces is not None:
        pieces.keep_moving(steps)

    first, half, most = lines(engine, ALL, decoding, context, pieces)
    if most is not None:
        np.minimum(steps, most, out=steps)
    end = _end(s.now, first, half, steps)

    arrival = s.head_arrival
    stops = (arrival <= end) & busy
    if engine.reserve:
        if pieces is not None:
            stops &= (p.budget > decoding) & ~pieces.part_way
        rows = stops.nonzero()[0]
        stops[rows] = s.head_total[rows] <= room_of(engine, rows)
    else:
        stops &= s.running < p.max_running
    if engine.paged:
        # Blocks only become fewer in a leap: a head that does not fit now will not. Where `free` is a lower bound, it
        # might.
        stops &= (s.head_blocks <= s.free) | ~s.tight
    if engine.router is not None:
        arrival = np.minimum(np.where(stops, arrival, np.inf), s.horizon)
        stops = (arrival <= end) & busy
    rows = stops.nonzero()[0]
    if rows.size:
        steps[rows], end[rows] = _until_arrival(s.now[rows], arrival[rows], first[rows], half[rows], steps[rows])
    if engine.reserve and np.count_nonzero(s.woken):
        # A lane that was idle takes its first step whoever else has arrived at that moment.
        rows = (s.woken & busy & (steps == 0)).nonzero()[0]
        steps[rows] = 1
        end[rows] = _end(s.now[rows], first[rows], half[rows], steps[rows])
        s.woken[:] = False

    after = context + steps * decoding
    if engine.paged:
        rows = _fit_blocks(engine, after, steps)
        if rows.size:
            end[rows] = _end(s.now[rows], first[rows], half[rows], steps[rows])
            after[rows] = context[rows] + steps[rows] * decoding[rows]
    if engine.log is not None:
        piece = 0.0 if pieces is None else pieces.of_lanes(decoding.size)
        engine.log.leap(engine, steps, first, half, piece)
    if engine.gaps:
        gaps.leap(engine, steps, first, half, end)

    s.now = end
    s.tick = s.tick + steps
    s.context = after
    if pieces is not None and pieces.lanes.size:
        pieces.take(engine, steps)
    if engine.reserve:
        s.silent_blocks += steps * s.reserved


class _Pieces:
    """Pieces of prompts that a leap may take in all lanes: which lanes are in the middle of one, and how much of it a
    step does. Only pieces that do not end a prompt: the step that does is not part of a leap."""

    def __init__(self, engine: Engine, decoding: Floats, steps: Floats) -> None:
        """Cuts `steps` to the pieces. All [L]."""
        s = engine.state
        share = engine.params.budget - decoding
        self.part_way = s.left < NOTHING
        if engine.reserve:
            self.part_way &= share > 0  # decodes alone can exceed a chunk budget
        self.lanes = self.part_way.nonzero()[0]
        self.share = share[self.lanes]
        most = np.ceil(s.left[self.lanes] / np.maximum(self.share, ONE)) - ONE
        steps[self.lanes] = np.minimum(steps[self.lanes], most)

    def keep_moving(self, steps: Floats) -> None:
        """Forget lanes that take no step: most prompts end in their next one."""
        moves = (steps[self.lanes] > ZERO).nonzero()[0]
        self.lanes, self.share = self.lanes[moves], self.share[moves]

    def of_lanes(self, lanes: int) -> Floats:
        """Tokens of a piece, 0 in other lanes. [L]"""
        piece = np.zeros(lanes)
        piece[self.lanes] = self.share
        return piece

    def take(self, engine: Engine, steps: Floats) -> None:
        """Count what `steps` [L] steps did."""
        s, lanes = engine.state, self.lanes
        taken = steps[lanes]
        tokens = taken * self.share
        s.done[lanes] += tokens
        s.left[lanes] -= tokens
        s.silent_steps[lanes] += taken if engine.reserve else taken * (s.running[lanes] - s.decoding[lanes])
        if engine.paged:
            s.silent_blocks[lanes] += taken * s.prefill_blocks[lanes]
        if engine.preempted:
            _count_recomputed_pieces(engine, lanes, tokens)


def lines(
    engine: Engine, lanes: Ints | slice, decoding: Floats, context: Floats, pieces: _Pieces | None = None
) -> tuple[Floats, Floats, Floats | None]:
    """Time of the first step, half of what each further step takes more, and the steps until the roofline changes
    sides, None where it never does. [n], without pieces also [*, n]"""
    c = engine.coefficients_of(lanes)
    if not engine.memory_bound:
        piece = 0.0 if pieces is None else pieces.of_lanes(decoding.size)
        done = 0.0 if pieces is None else engine.state.done
        return _roofline(engine, c, decoding, context, piece, done)
    # Without a prefill nothing but the memory matters, and the other line need not be drawn.
    first = c.memory_fixed_s + c.memory_per_token_s * context + c.overhead_s
    half = c.memory_per_token_s * decoding * HALF
    if pieces is None or not pieces.lanes.size:
        return first, half, None
    rows, most = pieces.lanes, np.full(decoding.size, np.inf)
    c = engine.coefficients_of(rows)
    drawn = _roofline(engine, c, decoding[rows], context[rows], pieces.share, engine.state.done[rows])
    first[rows], half[rows], most[rows] = drawn
    return first, half, most


def _roofline(
    engine: Engine,
    c: StepCoefficients,
    decoding: Floats,
    context: Floats,
    piece: Floats | float,
    done: Floats | float,
) -> tuple[Floats, Floats, Floats]:
    """Time of the first step, half of its growth a step, and the steps until the other line is the larger one. All
    of one shape."""
    tokens = decoding + piece
    work = context + (piece * done + pairs_of(piece))
    compute = c.compute_per_token_s * tokens + c.compute_per_context_s * work
    compute_growth = c.compute_per_context_s * (decoding + piece * piece)
    memory = c.memory_fixed_s + c.memory_per_token_s * (context + piece)
    memory_growth = c.memory_per_token_s * decoding
    ahead = compute - memory
    gains = compute_growth - memory_growth
    growth = np.where(ahead > ZERO, compute_growth, memory_growth)
    even = (ahead == ZERO).nonzero()
    if even[0].size:
        growth[even] = np.maximum(compute_growth[even], memory_growth[even])
    most = np.full(growth.shape, np.inf)
    crossing = (ahead * gains < ZERO).nonzero()
    most[crossing] = np.floor(np.abs(ahead[crossing] / gains[crossing])) + 1
    first = np.maximum(compute, memory) + c.overhead_s
    if engine.communicates:
        first += c.communication_s(tokens)
    return first, growth * HALF, most


def _end(now: Floats, first: Floats, half: Floats, steps: Floats) -> Floats:
    """Time after `steps` steps: the first takes `first`, each further one 2 `half` more."""
    end: Floats = now + steps * (first + half * (steps - ONE))
    return end


def _until_arrival(now: Floats, arrival: Floats, first: Floats, half: Floats, most: Floats) -> tuple[Floats, Floats]:
    """The first step that ends at or after `arrival`, at most `most`, and its end: a quadratic root, put right by one
    step. [n]"""
    wait = np.maximum(arrival - now, ZERO)
    b = first - half
    # Sums in place of products with 2 and 4: the same bits, and a product with a number costs twice a sum of arrays.
    twice, slope = wait + wait, half + half
    steps = np.minimum(np.ceil(twice / (b + np.sqrt(b * b + slope * twice))), most)
    growth = half * (steps - ONE)
    end = now + steps * (first + growth)
    # Off by a rounding: the arrival is not reached yet, or the last step already began at or after it.
    rows = ((end < arrival) | (end - (first + (growth + growth)) >= arrival * _NEARLY)).nonzero()[0]
    if rows.size:
        now, arrival, first, half, most = now[rows], arrival[rows], first[rows], half[rows], most[rows]
        tried, reached = steps[rows], end[rows]
        less = np.maximum(tried - ONE, ZERO)
        enough = _end(now, first, half, less) >= arrival
        tried = np.where(enough, less, np.where(reached < arrival, np.minimum(less + 2, most), tried))
        steps[rows] = tried
        end[rows] = _end(now, first, half, tried)
    return steps, end


def _fit_blocks(engine: Engine, after: Floats, steps: Floats) -> Ints:
    """Cut `steps` where blocks run out, keep the peak, and decide which lanes must count blocks exactly until the next
    leap. `after` is the context after the steps. Both [L].

    Returns the lanes that were cut. Where an upper bound of the blocks held is below the peak so far, and that of one
    step more below the memory, neither can be touched, and nothing is counted.
    """
    p, s = engine.params, engine.state
    # Every decoding request may have just begun its last block; `free` also allows each a further one in the next step.
    bound = after * p.blocks_per_token + s.decoding * p.blocks_in_doubt
    if engine.budgets:
        bound += s.prefill_blocks
    s.free = p.num_blocks - bound - s.decoding
    s.tight = (bound > s.peak) | (s.free < ZERO)
    lanes = s.tight.nonzero()[0]
    if not lanes.size:
        return lanes
    taken, begin = steps[lanes], s.tick[lanes]
    used = held(engine, lanes, after[lanes], (begin + taken).astype(np.int64))
    in_prefill = s.prefill_blocks[lanes]
    space = p.num_blocks[lanes] - in_prefill
    over = (used > space).nonzero()[0]
    cut = lanes[over]
    if cut.size:
        tick = begin[over].astype(np.int64)
        now_used = held(engine, cut, s.context[cut], tick)
        fit, grown = steps_until_full(engine, cut, tick, space[over] - now_used)
        used[over] = now_used + grown
        steps[cut] = fit
    s.used[lanes] = used
    s.free[lanes] = space - used
    s.peak[lanes] = np.maximum(s.peak[lanes], used + in_prefill)
    return cut


def _count_recomputed_pieces(engine: Engine, lanes: Ints, tokens: Floats) -> None:
    """Pieces of prompts whose request had been preempted count as recomputed. All [n]."""
    s = engine.state
    again = s.stack_size[lanes] > s.stack_waiting[lanes]
    first = s.first_prefill[lanes]
    seen = ((tokens > 0) & ~again & (s.preempted_until[lanes] > first)).nonzero()[0]
    again[seen] = engine.outcome.preemptions[engine.cells(lanes[seen], first[seen])] > 0
    s.recomputed_tokens[lanes] += np.where(again, tokens, 0)
