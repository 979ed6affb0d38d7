"""What requests are like before they are drawn: the lengths that their distributions lead to expect."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from .workload import LognormalLen

_LEVELS = (0.5, 0.9, 0.99)
_NORMAL = NormalDist()


class ExpectedLength(NamedTuple):
    """Mean and quantiles of a length in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float

    def __str__(self) -> str:
        if self.p50 == self.p99 == self.mean:
            return f"{self.mean:,.0f} each"
        return f"mean {self.mean:,.1f}, p50 {self.p50:,.0f}, p90 {self.p90:,.0f}, p99 {self.p99:,.0f}"


def expected_length(length: int | LognormalLen) -> ExpectedLength:
    """Of a length of `make_workload`, its rounding to whole tokens left out.

    >>> print(expected_length(LognormalLen(300, 0.8, 16, 2000)))
    mean 298.3, p50 218, p90 607, p99 1,401
    >>> print(expected_length(1000))
    1,000 each
    """
    if not isinstance(length, LognormalLen):
        return ExpectedLength(*[float(length)] * 4)
    lo, hi, mu, sigma = max(length.lo, 1), length.hi, length.mu, length.sigma
    quantiles = (_clipped(mu + sigma * _NORMAL.inv_cdf(level), lo, hi) for level in _LEVELS)
    if not sigma:
        return ExpectedLength(_clipped(mu, lo, hi), *quantiles)
    below, above = (math.log(end) - mu for end in (lo, hi))
    inside = _NORMAL.cdf(above / sigma - sigma) - _NORMAL.cdf(below / sigma - sigma)
    mean = lo * _NORMAL.cdf(below / sigma) + length.mean * inside + hi * _NORMAL.cdf(-above / sigma)
    return ExpectedLength(mean, *quantiles)


def expected_conversation() -> tuple[ExpectedLength, ExpectedLength]:
    """Prompts and outputs of `conversation_workload`."""
    from .conversation import conversation_statistics

    known = conversation_statistics()
    prompt, output = (
        ExpectedLength(
            float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(known.levels))),
            *map(float, np.interp(_LEVELS, known.levels, values)),
        )
        for values in (known.prompt_tokens, known.output_tokens)
    )
    return prompt, output


def _clipped(log: float, lo: int, hi: int) -> float:
    """exp(log) in [lo, hi]."""
    return float(min(max(math.exp(min(log, math.log(hi))), lo), hi))
