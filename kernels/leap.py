"""Phase *leap*: steps in which nothing changes but counters, taken together.

While the decoding requests of a lane stay the same, its context grows by one token a request and step, so compute and memory time
of step j are straight lines in j. Step time is the larger line, and k steps of one line take k (a + s (k - 1) / 2). A leap ends at
the first of: a request finishing; the step before a prefill ends; an arrival that could be admitted; the blocks running out; the
lines changing places. Ending early at any step changes nothing, so a bound may be too careful, never too generous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blocks import held, steps_until_full
from .prefill import pairs_of
from .state import NOTHING_LEFT, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


def leap(engine: Engine) -> None:
    """Take as many steps as nothing happens in, possibly none, in every lane."""
    p, s = engine.params, engine.state
    decoding, context = s.decoding, s.context
    steps = s.next_end - s.tick
    busy = decoding > 0
    piece: Floats | float = 0.0
    if engine.budgets:
        share = p.budget - decoding
        prefilling = s.left < NOTHING_LEFT
        piece = np.where(prefilling, share, 0)
        pieces = np.ceil(s.left / np.maximum(share, 1)) - 1  # the step that completes a prefill is not part of a leap
        steps = np.minimum(steps, pieces)
        busy = busy | prefilling
    steps = np.where(busy, steps, 0)

    a, half, steps = _line(engine, piece, steps)
    end = _end(s.now, a, half, steps)

    lanes = ((s.head_arrival <= end) & (s.running < p.max_running) & busy).nonzero()[0]
    if engine.paged and lanes.size:
        # Blocks only become fewer in a leap: a head that does not fit now will not. Where `free` is a lower bound, it might.
        lanes = lanes[(s.head_blocks[lanes] <= s.free[lanes]) | ~s.tight[lanes]]
    if lanes.size:
        steps[lanes], end[lanes] = _until_arrival(engine, lanes, a[lanes], half[lanes], steps[lanes])

    if engine.paged:
        lanes = _fit_blocks(engine, steps)
        if lanes.size:
            end[lanes] = _end(s.now[lanes], a[lanes], half[lanes], steps[lanes])
    if engine.log is not None:
        engine.log.leap(engine, steps, a, half, piece)

    s.now = end
    s.tick += steps
    s.context = context + steps * decoding
    if engine.budgets:
        tokens = steps * piece
        s.done += tokens
        s.left -= tokens
        s.silent_steps += steps * (s.running - decoding)
        if engine.paged:
            s.silent_blocks += steps * s.prefill_blocks
        if engine.preempted:
            _count_recomputed(engine, tokens)


def _line(engine: Engine, piece: Floats | float, steps: Floats) -> tuple[Floats, Floats, Floats]:
    """Time of the first step, half of its growth a step, and `steps` cut where the roofline changes sides. All [L]."""
    s = engine.state
    per_token, per_context, fixed, per_kv, overhead, ring, ring_token, doubling, doubling_token = engine.coefficients
    tokens = s.decoding + piece
    work = s.context
    work_growth = s.decoding
    if engine.budgets:
        work = work + piece * s.done + pairs_of(np.asarray(piece))
        work_growth = work_growth + piece * piece
    compute = per_token * tokens + per_context * work
    compute_growth = per_context * work_growth
    memory = fixed + per_kv * (s.context + piece)
    memory_growth = per_kv * s.decoding
    ahead = compute - memory
    faster = compute_growth - memory_growth
    slope = np.where(ahead > 0, compute_growth, memory_growth)
    if np.count_nonzero(ahead) < ahead.size:
        slope = np.where(ahead == 0, np.maximum(compute_growth, memory_growth), slope)
    crossing = (ahead * faster < 0).nonzero()[0]
    if crossing.size:
        last = np.floor(np.abs(ahead[crossing] / faster[crossing])) + 1
        steps[crossing] = np.minimum(steps[crossing], last)
    a = np.maximum(compute, memory) + overhead
    if engine.communicates:
        a += np.minimum(ring + ring_token * tokens, doubling + doubling_token * tokens)
    return a, slope * 0.5, steps


def _end(now: Floats, a: Floats, half: Floats, steps: Floats) -> Floats:
    """Time after `steps` steps: the first takes `a`, each further one 2 `half` more."""
    return now + steps * (a + half * (steps - 1))


def _until_arrival(
    engine: Engine, lanes: Ints, a: Floats, half: Floats, most: Floats
) -> tuple[Floats, Floats]:
    """The first step that ends at or after the head's arrival, at most `most`, and its end: a quadratic root, put right by one
    step. All [n]."""
    s = engine.state
    now, arrival = s.now[lanes], s.head_arrival[lanes]
    wait = np.maximum(arrival - now, 0)
    b = a - half
    steps = np.minimum(np.ceil(2 * wait / (b + np.sqrt(b * b + 4 * half * wait))), most)
    end = _end(now, a, half, steps)
    one_less = np.maximum(steps - 1, 0)
    end_before = _end(now, a, half, one_less)
    enough = end_before >= arrival
    short = ((end < arrival) & (steps < most)).nonzero()[0]
    steps = np.where(enough, one_less, steps)
    end = np.where(enough, end_before, end)
    if short.size:
        steps[short] += 1
        end[short] = _end(now[short], a[short], half[short], steps[short])
    return steps, end


def _fit_blocks(engine: Engine, steps: Floats) -> Ints:
    """Cut `steps` where blocks run out, keep the peak, and decide which lanes must count blocks exactly until the next leap.

    Returns the lanes that were cut. Where an upper bound of the blocks held after one step more is below both the memory and the
    peak so far, neither can be touched, and nothing is counted.
    """
    p, s = engine.params, engine.state
    context = s.context + steps * s.decoding
    # Every decoding request may be at the end of a block: block_size - 1 tokens of slack each, and one more block in the next step.
    bound = (context + s.decoding * (p.size - 2.0)) / p.size + (s.prefill_blocks + s.decoding)
    s.tight = bound > np.minimum(p.num_blocks, s.peak)
    free = p.num_blocks - bound
    cut = np.zeros(0, np.int64)
    lanes = s.tight.nonzero()[0]
    if lanes.size:
        tick = (s.tick[lanes] + steps[lanes]).astype(np.int64)
        used = held(engine, lanes, context[lanes], tick)
        over = (used + s.prefill_blocks[lanes] > p.num_blocks[lanes]).nonzero()[0]
        if over.size:
            cut = lanes[over]
            begin = s.tick[cut].astype(np.int64)
            spare = p.num_blocks[cut] - s.prefill_blocks[cut] - held(engine, cut, s.context[cut], begin)
            steps[cut] = steps_until_full(engine, cut, begin, spare)
            used[over] = held(engine, cut, s.context[cut] + steps[cut] * s.decoding[cut], begin + steps[cut].astype(np.int64))
        s.used[lanes] = used
        all_used = used + s.prefill_blocks[lanes]
        s.peak[lanes] = np.maximum(s.peak[lanes], all_used)
        free[lanes] = p.num_blocks[lanes] - all_used
    s.free = free
    return cut


def _count_recomputed(engine: Engine, tokens: Floats) -> None:
    """Pieces of prompts whose request had been preempted count as recomputed."""
    p, s = engine.params, engine.state
    again = s.stack_size > s.stack_waiting
    seen = ((tokens > 0) & ~again & (s.preempted_until > s.first_prefill)).nonzero()[0]
    again[seen] = engine.outcome.preemptions[p.out[seen] + s.first_prefill[seen]] > 0
    s.recomputed_tokens += np.where(again, tokens, 0)
