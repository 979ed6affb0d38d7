"""Whole steps put together from measured kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from .columns import Columns
from .measured_steps import StepRows

Seconds = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Kernels:
    """What was measured of an instance: costs of tokens and of requests that emit one, and attention, by points.

    Points of decodes are requests and tokens in the cache of each; of prefills, prompts, tokens of each, and those of
    it processed before.
    """

    source: str
    tokens_s: Seconds
    emitting_s: Seconds
    most_tokens: int
    decode_points: Floats  # [D, 2]
    decode_s: Floats  # [D], attention of all layers
    prefill_points: Floats  # [P, 3]
    prefill_s: Floats  # [P]


def kernel_steps(kernels: Kernels) -> StepRows:
    """Steps that only decode, and steps that only prefill, as sums; those of too many tokens are left out."""
    requests, cached = kernels.decode_points.T
    prompts, each, done = kernels.prefill_points.T
    decodes = np.concatenate([requests, np.zeros(prompts.size)])
    prefill = np.concatenate([np.zeros(requests.size), prompts * each])
    before = np.concatenate([np.zeros(requests.size), prompts * done])
    pairs = np.concatenate([np.zeros(requests.size), prompts * (each * done + each * (each + 1) / 2)])
    emitting = np.concatenate([requests, prompts])
    attention = np.concatenate([kernels.decode_s, kernels.prefill_s])
    seconds = kernels.tokens_s(decodes + prefill) + kernels.emitting_s(emitting) + attention
    context = np.concatenate([requests * cached, np.zeros(prompts.size)])
    there = decodes + prefill <= kernels.most_tokens
    if not there.any():
        raise ValueError(f"{kernels.source}: has no step of at most {kernels.most_tokens:,} tokens")
    counts = np.stack([decodes, context, prefill, before, pairs, emitting])[:, there]
    decoding, cached_in_all, tokens, done_in_all, paired, emitted = np.rint(counts).astype(np.int64)
    lines = np.zeros(int(there.sum()), np.int64)
    return StepRows(
        kernels.source, decoding, cached_in_all, tokens, done_in_all, paired, emitted, seconds[there], lines
    )


def line_through(x: Sequence[float] | Floats | Ints, y: Sequence[float] | Floats) -> Seconds:
    """Straight lines between points, which may hold an x more than once: their median there. Beyond, the last line goes
    on, but never falls."""
    at, values = np.asarray(x, np.float64), np.asarray(y, np.float64)
    places = np.unique(at)
    middle = np.array([np.median(values[at == place]) for place in places])
    slope = 0.0
    if places.size > 1:
        slope = max(float((middle[-1] - middle[-2]) / (places[-1] - places[-2])), 0.0)

    def seconds(number: Floats) -> Floats:
        beyond = np.maximum(number - places[-1], 0.0)
        return np.asarray(np.interp(number, places, middle) + slope * beyond)

    return seconds


def chosen(columns: Columns, **wanted: float) -> Bools:
    """Rows in which columns have these values; ValueError, with the values that there are, where none has. [R]"""
    there = np.ones(len(columns), np.bool_)
    for name, value in wanted.items():
        found = columns.numbers(name, least=-np.inf, missing=-1.0)
        match = there & (found == value)
        if not match.any():
            values = ", ".join(f"{one:g}" for one in np.unique(found[there])[:12])
            raise ValueError(f"{columns.shown}: has no row with {name} {value:g}; it has {values}")
        there = match
    return there


def text_is(columns: Columns, name: str, *values: str) -> Bools:
    """Rows in which a column has one of these texts; all where there is no such column. [R]"""
    if name not in columns.header:
        return np.ones(len(columns), np.bool_)
    found = [text.lower() in values for text in columns.text(name)]
    if not any(found):
        raise ValueError(f"{columns.shown}: has no row with {name} {values[0]}")
    return np.array(found)


def no_seconds(number: Floats) -> Floats:
    """0."""
    return np.zeros(np.shape(number))
