"""Traffic that needs no file: requests like those of the Azure LLM inference trace 2023, conversation.

The statistics are in configs/conversation_statistics.toml; docs/conversation.md says how good they are. S is
the number of segments of the trace with a rate of their own, P that of its periods with lengths of their own, B that of
the bins of each length, in equal shares of the requests.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from .. import checks
from ..arrays import Floats
from .workload import MAX_REQUESTS, Workload, arrivals_at


@dataclass(frozen=True, eq=False)
class Statistics:
    """What is known of a trace; arrays are read-only."""

    relative_gap: Floats  # [S] mean gap between requests in each segment of the trace, by number of requests
    gap_cv: float  # coefficient of variation of the gaps inside a segment
    levels: Floats  # [Q] from 0 to 1
    prompt_tokens: Floats  # [Q] quantiles
    output_tokens: Floats  # [Q]
    cells: Floats  # [P, B, B] requests of each period by the bins of their prompt and output lengths


@cache
def conversation_statistics() -> Statistics:
    """The embedded statistics of the conversation trace."""
    import tomllib
    from importlib.resources import files

    text = files("servesweep.configs").joinpath("conversation_statistics.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    arrivals, lengths = table["arrivals"], table["lengths"]
    arrays = {
        "relative_gap": arrivals["relative_gap"],
        "levels": lengths["levels"],
        "prompt_tokens": lengths["prompt_tokens"],
        "output_tokens": lengths["output_tokens"],
        "cells": lengths["cells"],
    }
    frozen = {key: np.array(values, np.float64) for key, values in arrays.items()}
    for array in frozen.values():
        array.flags.writeable = False
    return Statistics(gap_cv=arrivals["gap_cv"], **frozen)


@checks.spelt_out
def conversation_workload(n: int, *, rate: float = 1.0, seed: int = 0) -> Workload:
    """Requests with lengths and arrivals like the Azure conversation trace; it needs no file.

    The trace is an hour in which the rate drifts, and outputs get shorter where it is high; `n` requests go through
    that hour once, whatever `n` is. One `numpy.random.default_rng(seed)` draws the n gaps, then three numbers for each
    request: its cell of the joint distribution of lengths, and its place in the prompt's and the output's bin. The
    rate scales the gaps and touches nothing else.

    Parameters
    ----------
    n
        Requests.
    rate
        Mean requests/s.
    seed
        Of the random numbers.

    Raises
    ------
    ValueError
        For any argument out of range.
    """
    n = checks.whole("n", n, 0, MAX_REQUESTS)
    rate = checks.positive("rate", rate)
    rng = np.random.default_rng(checks.whole("seed", seed, 0))
    known = conversation_statistics()
    position = np.arange(n)

    k = 1.0 / known.gap_cv**2
    relative = known.relative_gap[position * len(known.relative_gap) // max(n, 1)]
    gaps = rng.gamma(k, 1.0 / k, n) * (relative / relative.mean() if n else 1.0)

    in_cells, in_prompt, in_output = rng.random((n, 3)).T
    periods, bins, _ = known.cells.shape
    period = position * periods // max(n, 1)
    cumulative = known.cells.reshape(periods, -1).cumsum(axis=1)
    # All periods in one search: those of period p end at p + 1. Rounding may reach p + 1 itself, hence the minimum.
    ends = (cumulative / cumulative[:, -1:] + np.arange(periods)[:, None]).ravel()
    cell = np.searchsorted(ends, period + in_cells, side="right") - period * bins * bins
    prompt_bin, output_bin = np.divmod(np.minimum(cell, bins * bins - 1), bins)
    prompt = np.interp((prompt_bin + in_prompt) / bins, known.levels, known.prompt_tokens)
    output = np.interp((output_bin + in_output) / bins, known.levels, known.output_tokens)
    return Workload(arrivals_at(rate, gaps), np.rint(prompt), np.rint(output), name="conversation", rate_rps=rate)
