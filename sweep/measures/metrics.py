"""Measures of one result: SLO attainment, percentiles, and the rate up to which a target is attained.

Every definition is in docs/measures.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..checks import is_number
from .columns import slo_column
from .latencies import LATENCIES, latency, meets
from .result import Result, one_system
from .window import MeasurementWindow, check_shares, ratio, row_percentiles


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
        if limit is not None and not (is_number(limit) and limit >= 0):
            raise ValueError(f"{name} is {limit!r}, but must be seconds, at least 0, or None for no check")
    ttft_limit, tpot_limit = slo_column("ttft_slo", ttft_slo, 1), slo_column("tpot_slo", tpot_slo, 1)
    check_shares(warmup, cooldown)
    systems = one_system(result)
    window = MeasurementWindow(systems.arrival_s, systems.n_requests, warmup, cooldown)
    met = meets(systems, {"ttft": ttft_limit, "tpot": tpot_limit})[1]
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
    if not (is_number(q) and 0 <= q <= 100):
        raise ValueError(f"q is {q!r}, but must be one percentage from 0 to 100")
    check_shares(warmup, cooldown)
    systems = one_system(result)
    values, count = MeasurementWindow(systems.arrival_s, systems.n_requests, warmup, cooldown).sorted(
        latency(name, systems)
    )
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
    if not (is_number(target) and 0 < target <= 1):
        raise ValueError(f"target is {target!r}, but must be a share above 0 and at most 1")
    for name, rate in (("lo", lo), ("hi", hi)):
        if not (is_number(rate) and 0 < rate < math.inf):
            raise ValueError(f"{name} is {rate!r}, but must be a positive finite rate")
    if lo > hi:
        raise ValueError(f"lo is {lo!r}, but must be at most hi, which is {hi!r}")
    if isinstance(iters, bool) or not isinstance(iters, (int, np.integer)) or iters < 0:
        raise ValueError(f"iters is {iters!r}, but must be a whole number of halvings, at least 0")

    def is_met(rate: float) -> bool:
        attained = run(rate)
        if not is_number(attained):
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


def _check_result(result: object) -> None:
    if not isinstance(result, Result):
        raise ValueError(f"result is of type {type(result).__name__}, but must be a Result, as run_scheduler returns")
