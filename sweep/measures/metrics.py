"""Measures of a run: SLO attainment, goodput, throughput, latency percentiles, memory and batch figures.

`measures` works on many lanes at once; `attainment` and `percentile` are the same code on one result.
Letters: L lanes, N requests of the longest workload, R lanes of one chunk.
Every definition is in docs/measures.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..kernels.gaps import BINS, middles_s
from .balance import BALANCE, balance, prefills_only
from .window import BoolArray, FloatArray, IntArray, Window, ratio, row_means, row_percentiles

if TYPE_CHECKING:
    from ..serving.run import InstanceFacts
    from .result import Result

LATENCIES = ("ttft", "tpot", "e2e", "queue_delay", "kv_transfer", "itl_max")
PERCENTILES = (50, 90, 95, 99)
SLOS = ("ttft", "tpot", "e2e", "itl_max")  # latencies that can have a limit, in the order of their columns
MEASURES = (
    "attainment",
    "attainment_requests",
    *(f"{name}_attainment" for name in SLOS),
    "request_goodput_rps",
    "request_throughput_rps",
    "output_throughput_tps",
    "total_throughput_tps",
    "request_throughput_per_gpu_rps",
    "output_throughput_per_gpu_tps",
    "duration_s",
    *(f"{name}_{which}_s" for name in LATENCIES for which in ("mean", *(f"p{q}" for q in PERCENTILES))),
    *(f"itl_{which}_s" for which in ("mean", *(f"p{q}" for q in PERCENTILES))),
    "preemptions",
    "recomputed_tokens",
    "prefill_tokens",
    "kv_utilization_mean",
    "kv_utilization_peak",
    "peak_blocks",
    "batch_size_mean",
    "steps",
    "utilization",
    *BALANCE,
    "finished",
    "rejected",
)

_CHUNK_ELEMENTS = 1 << 17  # lanes x requests looked at in one go: temporaries of 1 MB stay in the cache


class LaneArrays(Protocol):
    """The outcome of many lanes. A row holds a lane's requests in the order of its workload, then padding.

    Times are NaN in padding, and where a request never got that far; arrivals are known for every request.
    """

    n_requests: IntArray  # [L]
    arrival_s: FloatArray  # [L, N]
    first_token_s: FloatArray  # [L, N]
    finish_s: FloatArray  # [L, N]
    admitted_s: FloatArray  # [L, N]
    kv_ready_s: FloatArray  # [L, N]
    prompt_tokens: IntArray  # [L, N], 0 in padding
    output_tokens: IntArray  # [L, N], 0 in padding
    preemptions: NDArray[Any]  # [L, N] of integers of any width, 0 in padding
    rejected: BoolArray  # [L, N], False in padding
    steps: IntArray  # [L]
    batch_steps: IntArray  # [L] those that running_steps and block_steps are sums over
    prefill_tokens: IntArray  # [L]
    recomputed_tokens: IntArray  # [L]
    peak_blocks: IntArray  # [L]
    num_blocks: FloatArray  # [L], NaN: unlimited memory
    running_steps: FloatArray  # [L]
    block_steps: FloatArray  # [L]
    busy_s: FloatArray  # [L]

    @property
    def instances(self) -> InstanceFacts | None:
        """The instances of all lanes; None where nothing is known of them."""

    @property
    def itl_max_s(self) -> FloatArray | None:
        """The longest time between two tokens of each request [L, N]; None where gaps were not kept."""

    @property
    def itl_counts(self) -> FloatArray | None:
        """Times between tokens by length [L, BINS]; None where gaps were not kept."""


_ROWS = tuple(LaneArrays.__annotations__)
_GAPS = ("itl_max_s", "itl_counts")


def one_lane(result: Result) -> LaneArrays:
    """A result seen as a batch of one lane; the arrays are views."""
    columns = {name: np.asarray(getattr(result, name))[None] for name in _ROWS if name != "n_requests"}
    gaps = {name: None if getattr(result, name) is None else getattr(result, name)[None] for name in _GAPS}
    others = {"n_requests": np.array([len(result)]), "instances": result.instances, **gaps}
    return cast(LaneArrays, SimpleNamespace(**others, **columns))


def _lanes_of(results: LaneArrays, rows: slice) -> LaneArrays:
    gaps = {name: None if getattr(results, name) is None else getattr(results, name)[rows] for name in _GAPS}
    return cast(LaneArrays, SimpleNamespace(**{name: getattr(results, name)[rows] for name in _ROWS}, **gaps))


# ---------------------------------------------------------------------------------------------------- public measures


def attainment(
    result: Result,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    warmup: float = 0.2,
    cooldown: float = 0.2,
) -> float:
    """The share of the window's requests that meet every SLO given: TTFT <= ttft_slo and TPOT <= tpot_slo.

    Args:
        result: a run.
        ttft_slo, tpot_slo: seconds; None is not checked. A missing time does not meet an SLO, and a rejected request
            meets nothing, even when nothing is checked.
        warmup, cooldown: shares of the n requests, in arrival order, that are dropped at the start, int(n * warmup),
            and at the end, int(n * cooldown). What is left is the window.

    Returns:
        A share in [0, 1]; NaN when the window is empty.

    Raises:
        ValueError: no Result, a negative SLO, or a share outside [0, 1].
    """
    _check_result(result)
    for name, limit in (("ttft_slo", ttft_slo), ("tpot_slo", tpot_slo)):
        if limit is not None and not (_is_number(limit) and limit >= 0):
            raise ValueError(f"{name} is {limit!r}, but must be seconds, at least 0, or None for no check")
    ttft_limit, tpot_limit = _slo("ttft_slo", ttft_slo, 1), _slo("tpot_slo", tpot_slo, 1)
    _check_shares(warmup, cooldown)
    lanes = one_lane(result)
    window = Window(lanes.arrival_s, lanes.n_requests, warmup, cooldown)
    met = _meets(lanes, {"ttft": ttft_limit, "tpot": tpot_limit})[1]
    return float(ratio(window.count(met), window.size)[0])


def percentile(result: Result, name: str, q: float, warmup: float = 0.2, cooldown: float = 0.2) -> float:
    """The q-th percentile, in seconds, of a latency over the window's requests that have it.

    NumPy's linear interpolation, to the last bit. The window is that of `attainment`.

    Args:
        result: a run.
        name: "ttft", "tpot", "e2e", "queue_delay", "kv_transfer" or "itl_max" (where gaps were kept).
        q: 0 to 100.

    Returns:
        Seconds; NaN when no request of the window has the value.

    Raises:
        ValueError: no Result, an unknown name, q that is not one number from 0 to 100, or a share outside [0, 1].
    """
    _check_result(result)
    if name not in LATENCIES:
        raise ValueError(f"name is {name!r}, but must be one of {', '.join(LATENCIES)}")
    if not (_is_number(q) and 0 <= q <= 100):
        raise ValueError(f"q is {q!r}, but must be one percentage from 0 to 100")
    _check_shares(warmup, cooldown)
    lanes = one_lane(result)
    values, count = Window(lanes.arrival_s, lanes.n_requests, warmup, cooldown).sorted(_LATENCY[name](lanes))
    return float(row_percentiles(values, count, np.array([q], dtype=np.float64))[0, 0])


def max_rate(
    run: Callable[[float], float], target: float = 0.9, lo: float = 0.05, hi: float = 64.0, iters: int = 14
) -> float:
    """The largest request rate whose attainment is at least `target`, by bisection at the geometric mean.

    Args:
        run: the attainment at a rate (requests/s). NaN, the attainment of a window without requests, is not at least
            the target: it counts as a miss.
        target: the share asked for, in (0, 1].
        lo, hi: the rates searched between; lo may be hi.
        iters: halvings; each costs one call of `run`, after two for the ends.

    Returns:
        Requests/s: 0 when `lo` misses the target, `hi` when `hi` meets it, else the lower end of the last interval.

    Raises:
        ValueError: an argument outside its range, or a `run` that does not return a number.
    """
    if not (_is_number(target) and 0 < target <= 1):
        raise ValueError(f"target is {target!r}, but must be a share above 0 and at most 1")
    for name, rate in (("lo", lo), ("hi", hi)):
        if not (_is_number(rate) and 0 < rate < math.inf):
            raise ValueError(f"{name} is {rate!r}, but must be a positive finite rate")
    if lo > hi:
        raise ValueError(f"lo is {lo!r}, but must be at most hi, which is {hi!r}")
    if isinstance(iters, bool) or not isinstance(iters, (int, np.integer)) or iters < 0:
        raise ValueError(f"iters is {iters!r}, but must be a whole number of halvings, at least 0")

    def is_met(rate: float) -> bool:
        attained = run(rate)
        if not _is_number(attained):
            raise ValueError(f"run({rate!r}) is {attained!r}, but must be an attainment: a share of requests")
        return bool(attained >= target)

    if not is_met(lo):
        return 0.0
    if is_met(hi):
        return float(hi)
    for _ in range(iters):
        middle = math.sqrt(lo * hi)
        if is_met(middle):
            lo = middle
        else:
            hi = middle
    return float(lo)


def measures(
    results: LaneArrays,
    *,
    ttft_slo_s: float | FloatArray | None,
    tpot_slo_s: float | FloatArray | None,
    e2e_slo_s: float | FloatArray | None = None,
    itl_max_slo_s: float | FloatArray | None = None,
    warmup: float,
    cooldown: float,
    n_gpus: int | IntArray,
) -> dict[str, NDArray[Any]]:
    """Every measure of every lane: name -> array [L], in the order of `MEASURES`.

    A lane's numbers do not depend on the other lanes of the batch, on the padding or on the chunking.

    Args:
        results: the outcome of L lanes.
        ttft_slo_s, tpot_slo_s, e2e_slo_s, itl_max_slo_s: seconds, one for all or one a lane; None or NaN: not checked.
        warmup, cooldown: see `attainment`.
        n_gpus: GPUs of the system, one number for all or one a lane.

    Returns:
        float64 arrays with NaN where a measure does not exist; int64 for counts.

    Raises:
        ValueError: a negative SLO, a share outside [0, 1], fewer than one GPU.
    """
    lanes = len(results.n_requests)
    given = {"ttft": ttft_slo_s, "tpot": tpot_slo_s, "e2e": e2e_slo_s, "itl_max": itl_max_slo_s}
    limits = {name: _slo(f"{name}_slo_s", limit, lanes) for name, limit in given.items()}
    _check_shares(warmup, cooldown)
    gpus = np.broadcast_to(np.asarray(n_gpus), (lanes,))
    if np.any(gpus < 1):
        raise ValueError(f"n_gpus is {gpus.min()!s}, but a system has at least 1 GPU")

    prefilled = prefills_only(results.instances, lanes)
    parts = [
        _measures(
            _lanes_of(results, rows),
            {name: limit[rows] for name, limit in limits.items()},
            warmup,
            cooldown,
            gpus[rows],
            prefilled[rows],
        )
        for rows in _chunks(*results.arrival_s.shape)
    ]
    columns: dict[str, NDArray[Any]] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns |= balance(results.instances, columns["duration_s"])
    if results.instances is None:
        columns["utilization"] = results.busy_s / columns["duration_s"]
    return {name: columns[name] for name in MEASURES}


# ------------------------------------------------------------------------------------------------------- one chunk


def _measures(
    lanes: LaneArrays,
    slos: Mapping[str, FloatArray],
    warmup: float,
    cooldown: float,
    gpus: IntArray,
    prefilled: BoolArray,  # requests are done with their first token
) -> dict[str, NDArray[Any]]:
    window = Window(lanes.arrival_s, lanes.n_requests, warmup, cooldown)
    met_alone, met = _meets(lanes, slos)
    done_s = lanes.finish_s
    if prefilled.any():
        done_s = np.where(prefilled[:, None], lanes.first_token_s, done_s)
    finished = ~np.isnan(done_s)
    finished_count = np.count_nonzero(finished, axis=1)
    output_tokens = np.where(prefilled, finished_count, np.sum(lanes.output_tokens * finished, axis=1))
    total_tokens = np.sum(lanes.prompt_tokens * finished, axis=1) + output_tokens
    duration = _last(done_s) - window.first_arrival_s
    duration[~(duration > 0)] = np.nan
    columns: dict[str, NDArray[Any]] = {
        "attainment": ratio(window.count(met), window.size),
        "attainment_requests": window.size,
        **{
            f"{name}_attainment": np.where(np.isnan(limit), np.nan, ratio(window.count(met_alone[name]), window.size))
            for name, limit in slos.items()
        },
        "request_goodput_rps": np.count_nonzero(met, axis=1) / duration,
        "request_throughput_rps": finished_count / duration,
        "output_throughput_tps": output_tokens / duration,
        "total_throughput_tps": total_tokens / duration,
        "request_throughput_per_gpu_rps": finished_count / duration / gpus,
        "output_throughput_per_gpu_tps": output_tokens / duration / gpus,
        "duration_s": duration,
        "preemptions": np.sum(lanes.preemptions, axis=1),
        "recomputed_tokens": lanes.recomputed_tokens,
        "prefill_tokens": lanes.prefill_tokens,
        "kv_utilization_mean": ratio(lanes.block_steps, lanes.batch_steps * lanes.num_blocks),
        "kv_utilization_peak": ratio(lanes.peak_blocks, lanes.num_blocks),
        "peak_blocks": lanes.peak_blocks,
        "batch_size_mean": ratio(lanes.running_steps, lanes.batch_steps),
        "steps": lanes.steps,
        "finished": finished_count,
        "rejected": np.count_nonzero(lanes.rejected, axis=1),
    }
    columns |= _itl(lanes, finished & ~prefilled[:, None])
    for name in LATENCIES:
        if name == "itl_max" and lanes.itl_max_s is None:
            missing = ("mean", *(f"p{q}" for q in PERCENTILES))
            columns |= {f"itl_max_{which}_s": np.full(len(gpus), np.nan) for which in missing}
            continue
        values, count = window.sorted(_LATENCY[name](lanes))
        columns[f"{name}_mean_s"] = row_means(values, count)
        points = row_percentiles(values, count, np.array(PERCENTILES, dtype=np.float64))
        for q, column in zip(PERCENTILES, points.T, strict=True):
            columns[f"{name}_p{q}_s"] = column
    return columns


# --------------------------------------------------------------------------------------------------- one request


def _ttft(lanes: LaneArrays) -> FloatArray:
    return lanes.first_token_s - lanes.arrival_s


def _tpot(lanes: LaneArrays) -> FloatArray:
    gaps = lanes.output_tokens - 1
    values: FloatArray = lanes.finish_s - lanes.first_token_s
    values /= np.maximum(gaps, 1)
    values *= gaps > 0  # a one-token output has no gap
    return values


def _e2e(lanes: LaneArrays) -> FloatArray:
    return lanes.finish_s - lanes.arrival_s


def _queue_delay(lanes: LaneArrays) -> FloatArray:
    return lanes.admitted_s - lanes.arrival_s


def _kv_transfer(lanes: LaneArrays) -> FloatArray:
    return lanes.kv_ready_s - lanes.first_token_s


def _itl_max(lanes: LaneArrays) -> FloatArray:
    # A copy, as the others are: what is measured is sorted in place.
    return np.full(lanes.finish_s.shape, np.nan) if lanes.itl_max_s is None else lanes.itl_max_s.copy()


def _itl(lanes: LaneArrays, finished: BoolArray) -> dict[str, FloatArray]:
    """Mean and percentiles of the times between tokens of the finished requests, pooled. [R]"""
    gaps = np.where(finished, lanes.output_tokens - 1, 0)
    spans = np.where(gaps > 0, lanes.finish_s - lanes.first_token_s, 0.0)
    # In order: other sums depend on the padding, by a rounding.
    total_s = np.cumsum(np.nan_to_num(spans, nan=0.0), axis=1)[:, -1:].sum(axis=1)
    columns = {"itl_mean_s": ratio(total_s, gaps.sum(axis=1))}
    for q in PERCENTILES:
        if lanes.itl_counts is None:
            columns[f"itl_p{q}_s"] = np.full(len(gaps), np.nan)
            continue
        total = lanes.itl_counts.sum(axis=1)
        # The smallest bin below which, itself included, q percent of the times lie.
        place = (lanes.itl_counts.cumsum(axis=1) < np.ceil(total * q / 100)[:, None]).sum(axis=1)
        columns[f"itl_p{q}_s"] = np.where(total > 0, middles_s()[np.minimum(place, BINS - 1)], np.nan)
    return columns


_LATENCY: dict[str, Callable[[LaneArrays], FloatArray]] = {
    "ttft": _ttft,
    "tpot": _tpot,
    "e2e": _e2e,
    "queue_delay": _queue_delay,
    "kv_transfer": _kv_transfer,
    "itl_max": _itl_max,
}


def _meets(lanes: LaneArrays, slos: Mapping[str, FloatArray]) -> tuple[dict[str, BoolArray], BoolArray]:
    """Which requests [R, N] meet each SLO, and all of them; a NaN limit is met by all that were served."""
    served = np.arange(lanes.arrival_s.shape[1]) < lanes.n_requests[:, None]
    served &= ~lanes.rejected
    met_alone, met = {}, served
    for name, limit in slos.items():
        unset = np.isnan(limit)
        met_alone[name] = served
        if not unset.all():
            met_alone[name] = served & ((_LATENCY[name](lanes) <= limit[:, None]) | unset[:, None])
            met = met & met_alone[name]
    return met_alone, met


def _last(times: FloatArray) -> FloatArray:
    """The latest time of each row [R, N], NaN for a row without one."""
    latest: FloatArray = np.fmax.reduce(times, axis=1, initial=np.nan)
    return latest


# ------------------------------------------------------------------------------------------------------- small helpers


def _chunks(lanes: int, width: int) -> Iterator[slice]:
    rows = max(1, _CHUNK_ELEMENTS // max(width, 1))
    for start in range(0, max(lanes, 1), rows):
        yield slice(start, min(start + rows, lanes))


def _slo(name: str, value: float | FloatArray | None, lanes: int) -> FloatArray:
    """One limit a lane, float64 [lanes], NaN where nothing is checked."""
    try:
        limit = np.asarray(np.nan if value is None else value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, but must be seconds, at least 0, or None for no check") from None
    if np.any(limit < 0):
        raise ValueError(f"{name} is {np.nanmin(limit):g}, but must be seconds, at least 0, or None for no check")
    return np.broadcast_to(limit, (lanes,))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_result(result: object) -> None:
    from .result import Result

    if not isinstance(result, Result):
        raise ValueError(f"result is of type {type(result).__name__}, but must be a Result, as run_scheduler returns")


def _check_shares(warmup: float, cooldown: float) -> None:
    for name, share in (("warmup", warmup), ("cooldown", cooldown)):
        if not (_is_number(share) and 0 <= share <= 1):
            raise ValueError(f"{name} is {share!r}, but must be a share of the requests in [0, 1]")
