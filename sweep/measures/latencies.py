"""Latencies of requests, and which requests meet their SLOs. Definitions are in docs/measures.md.

C systems, N requests of the longest workload; R systems of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ..arrays import AnyInts, Bools, Floats, Ints
from ..kernels.itl_bins import BINS, middles_s
from .instances import InstanceFacts
from .window import ratio

MetricName = Literal["ttft", "tpot", "e2e", "queue_delay", "kv_transfer", "itl_max"]
LATENCIES: tuple[MetricName, ...] = get_args(MetricName)
PERCENTILES = (50, 90, 95, 99)


class SystemArrays(Protocol):
    """The outcome of many systems. A row holds a system's requests in the order of its workload, then padding.

    Times are NaN in padding, and where a request never got that far; arrivals are known for every request.
    """

    n_requests: Ints  # [C]
    arrival_s: Floats  # [C, N]
    first_token_s: Floats  # [C, N]
    finish_s: Floats  # [C, N]
    admitted_s: Floats  # [C, N]
    kv_ready_s: Floats  # [C, N]
    prompt_tokens: Ints  # [C, N], 0 in padding
    output_tokens: Ints  # [C, N], 0 in padding
    preemptions: npt.NDArray[Any]  # [C, N] of integers of any width, 0 in padding
    cached_tokens: npt.NDArray[Any]  # [C, N] of integers of any width, 0 in padding
    rejected: Bools  # [C, N], False in padding
    steps: Ints  # [C]
    batch_steps: Ints  # [C] those that running_steps and block_steps are sums over
    prefill_tokens: Ints  # [C]
    recomputed_tokens: Ints  # [C]
    peak_blocks: Ints  # [C]
    num_blocks: Floats  # [C], NaN: unlimited memory
    running_steps: Floats  # [C]
    block_steps: Floats  # [C]
    busy_s: Floats  # [C]
    outside_s: Floats  # [C] of each request before its first token, outside the engine

    @property
    def instances(self) -> InstanceFacts | None:
        """The instances of all systems; None where nothing is known of them."""

    @property
    def counters(self) -> Mapping[str, Floats]:
        """Every counter of the engine by name [C] (kernels/counters.py); empty where nothing was simulated."""

    @property
    def itl_max_s(self) -> Floats | None:
        """The longest time between two tokens of each request [C, N]; None where they were not kept."""

    @property
    def itl_counts(self) -> Floats | None:
        """Times between tokens by length [C, BINS]; None where they were not kept."""


ROWS = tuple(SystemArrays.__annotations__)
ITL = ("itl_max_s", "itl_counts")  # None where times between tokens were not kept


def tpot_s(first_token_s: Floats, finish_s: Floats, gaps: AnyInts | Floats) -> Floats:
    """Time per output token, seconds: (finish - first token) / gaps, of any shape.

    Parameters
    ----------
    first_token_s, finish_s
        Seconds; NaN for what did not happen.
    gaps
        Output tokens but the first. A request without gaps has a TPOT of 0.
    """
    values: Floats = finish_s - first_token_s
    values /= np.maximum(gaps, 1)
    values *= gaps > 0
    return values


def from_outside(latency_s: Floats, outside_s: Floats) -> Floats:
    """What a client sees of a time since the arrival: with what it spent outside the engine. In place."""
    if np.any(outside_s):
        latency_s += outside_s
    return latency_s


def latency(name: str, systems: SystemArrays) -> Floats:
    """A latency of every request, seconds [C, N]; the array is the caller's to change."""
    return _LATENCY[name](systems)


def _ttft(systems: SystemArrays) -> Floats:
    return from_outside(systems.first_token_s - systems.arrival_s, systems.outside_s[:, None])


def _tpot(systems: SystemArrays) -> Floats:
    return tpot_s(systems.first_token_s, systems.finish_s, systems.output_tokens - 1)


def _e2e(systems: SystemArrays) -> Floats:
    return from_outside(systems.finish_s - systems.arrival_s, systems.outside_s[:, None])


def _queue_delay(systems: SystemArrays) -> Floats:
    return systems.admitted_s - systems.arrival_s


def _kv_transfer(systems: SystemArrays) -> Floats:
    return systems.kv_ready_s - systems.first_token_s


def _itl_max(systems: SystemArrays) -> Floats:
    # A copy, as the others are: what is measured is sorted in place.
    return np.full(systems.finish_s.shape, np.nan) if systems.itl_max_s is None else systems.itl_max_s.copy()


_LATENCY: dict[str, Callable[[SystemArrays], Floats]] = {
    "ttft": _ttft,
    "tpot": _tpot,
    "e2e": _e2e,
    "queue_delay": _queue_delay,
    "kv_transfer": _kv_transfer,
    "itl_max": _itl_max,
}


def meets(systems: SystemArrays, limits: Mapping[str, Floats]) -> tuple[dict[str, Bools], Bools]:
    """Which requests [R, N] meet each limit [R], and all of them; one of NaN is met by all that were served."""
    served = np.arange(systems.arrival_s.shape[1]) < systems.n_requests[:, None]
    served &= ~systems.rejected
    met_alone, met = {}, served
    for name, limit in limits.items():
        unset = np.isnan(limit)
        met_alone[name] = served
        if not unset.all():
            met_alone[name] = served & ((latency(name, systems) <= limit[:, None]) | unset[:, None])
            met = met & met_alone[name]
    return met_alone, met


def itl_columns(systems: SystemArrays, finished: Bools) -> dict[str, Floats]:
    """Mean and percentiles of the times between tokens of the finished requests, pooled. [R]"""
    gaps = np.where(finished, systems.output_tokens - 1, 0)
    spans = np.where(gaps > 0, systems.finish_s - systems.first_token_s, 0.0)
    # In order: other sums depend on the padding, by a rounding.
    total_s = np.cumsum(np.nan_to_num(spans, nan=0.0), axis=1)[:, -1:].sum(axis=1)
    columns = {"itl_mean_s": ratio(total_s, gaps.sum(axis=1))}
    for q in PERCENTILES:
        if systems.itl_counts is None:
            columns[f"itl_p{q}_s"] = np.full(len(gaps), np.nan)
            continue
        total = systems.itl_counts.sum(axis=1)
        # The smallest bin below which, itself included, q percent of the times lie.
        place = (systems.itl_counts.cumsum(axis=1) < np.ceil(total * q / 100)[:, None]).sum(axis=1)
        columns[f"itl_p{q}_s"] = np.where(total > 0, middles_s()[np.minimum(place, BINS - 1)], np.nan)
    return columns
