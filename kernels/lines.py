"""Times of steps that only decode, or take pieces of prompts, as straight lines.

While the decoding requests of a lane stay the same, its context grows by one token a request and step, so compute and
memory time of step j are straight lines in j. Step time is the larger line, and k steps of one line take k (a + s (k -
1) / 2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import HALF, ONE, ZERO, Floats, Ints
from .batch import Batch
from .request_rows import pairs_of
from .steptime import StepCoefficients

_NEARLY = np.array(1 - 1e-12)  # a time within its rounding of another is looked at more closely


class Pieces(NamedTuple):
    """Pieces of prompts that steps take: the lanes that are in the middle of one, and its tokens a step. Both [m]."""

    lanes: Ints
    tokens: Floats

    def of_all(self, lanes: int) -> Floats:
        """Tokens of a piece, 0 in other lanes. [L]"""
        piece = np.zeros(lanes)
        piece[self.lanes] = self.tokens
        return piece


def step_time_lines(
    batch: Batch, lanes: Ints | slice, decoding: Floats, context: Floats, pieces: Pieces | None = None
) -> tuple[Floats, Floats, Floats | None]:
    """first_step_s, half_slope_s, steps_to_crossover: time of the first step, half of what each further step takes
    more, and the steps until the roofline changes sides, None where it never does. [n], without pieces also [*, n]"""
    lookup = batch.step_times.lookup
    if lookup is None:
        return _roofline_lines(batch, lanes, decoding, context, pieces)
    c, done = lookup.of(lanes), batch.prefills.prefill_done
    first, half = lookup.decode_line(c, decoding, context)
    if pieces is not None and pieces.lanes.size:
        rows = pieces.lanes
        of_rows = lookup.of(rows)
        first[rows], half[rows] = lookup.piece_line(of_rows, decoding[rows], context[rows], pieces.tokens, done[rows])
    if lookup.everywhere:
        return first, half, None
    there = lookup.there[lanes]
    drawn = _roofline_lines(batch, lanes, decoding, context, pieces)
    most = None if drawn[2] is None else np.where(there, np.inf, drawn[2])
    return np.where(there, first, drawn[0]), np.where(there, half, drawn[1]), most


def _roofline_lines(
    batch: Batch, lanes: Ints | slice, decoding: Floats, context: Floats, pieces: Pieces | None
) -> tuple[Floats, Floats, Floats | None]:
    """The same of rooflines."""
    times, done = batch.step_times, batch.prefills.prefill_done
    c = times.of(lanes)
    if not times.memory_bound:
        if pieces is None:
            return _roofline(c, decoding, context, 0.0, 0.0, times.communicates)
        return _roofline(c, decoding, context, pieces.of_all(decoding.size), done, times.communicates)
    # Without a prefill nothing but the memory matters, and the other line need not be drawn.
    first = c.memory_fixed_s + c.memory_per_token_s * context + c.overhead_s
    half = c.memory_per_token_s * decoding * HALF
    if pieces is None or not pieces.lanes.size:
        return first, half, None
    rows, most = pieces.lanes, np.full(decoding.size, np.inf)
    drawn = _roofline(times.of(rows), decoding[rows], context[rows], pieces.tokens, done[rows], False)
    first[rows], half[rows], most[rows] = drawn
    return first, half, most


def _roofline(
    c: StepCoefficients,
    decoding: Floats,
    context: Floats,
    piece: Floats | float,
    done: Floats | float,
    communicates: bool,
) -> tuple[Floats, Floats, Floats]:
    """The same of both lines. All of one shape."""
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
    if communicates:
        first += c.communication_s(tokens)
    return first, growth * HALF, most


def end_after(now: Floats, first_step_s: Floats, half_slope_s: Floats, steps: Floats) -> Floats:
    """Time after `steps` steps: the first takes `first_step_s`, each further one 2 `half_slope_s` more."""
    end: Floats = now + steps * (first_step_s + half_slope_s * (steps - ONE))
    return end


def until_arrival(
    now: Floats, arrival: Floats, first_step_s: Floats, half_slope_s: Floats, most: Floats
) -> tuple[Floats, Floats]:
    """The first step that ends at or after `arrival`, at most `most`, and its end: a quadratic root, put right by one
    step. [n]"""
    first, half = first_step_s, half_slope_s
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
        enough = end_after(now, first, half, less) >= arrival
        tried = np.where(enough, less, np.where(reached < arrival, np.minimum(less + 2, most), tried))
        steps[rows] = tried
        end[rows] = end_after(now, first, half, tried)
    return steps, end
