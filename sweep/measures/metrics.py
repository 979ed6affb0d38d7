"""Measures of one result: SLO attainment, percentiles, and the rate up to which a target is attained.

Every definition is in docs/measures.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from .. import checks
from ..checks import is_number
from ..messages import shown
from .latencies import LATENCIES, MetricName, latency, meets
from .result import Result, one_system
from .slo import SLO, check_slo, doubt_of_seconds
from .window import MeasurementWindow, check_shares, ratio, row_percentiles


@checks.spelt_out
def attainment(
    result: Result,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    warmup: float = 0.2,
    cooldown: float = 0.2,
    *,
    slo: SLO | None = None,
) -> float:
    """The share of the window's requests that meet every limit set.

    A missing time does not meet a limit, and a rejected request meets nothing, even when nothing is checked.

    Parameters
    ----------
    result
        A run of N requests.
    ttft_slo, tpot_slo
        Limits on TTFT and TPOT in seconds, at least 0. None: not checked.
    warmup, cooldown
        Shares of the N requests, in order of arrival, that are dropped at the start, int(N * warmup), and at the end,
        int(N * cooldown). What is left is the window.
    slo
        The limits, in place of `ttft_slo` and `tpot_slo`. None: those two.

    Returns
    -------
    float
        A share in [0, 1]; NaN when the window is empty.

    Raises
    ------
    ValueError
        No Result, a negative limit, limits given both ways, or a share outside [0, 1].

    Warns
    -----
    UserWarning
        When no limit is set: the share is then that of the requests that were not rejected. For a limit that was
        probably meant in milliseconds, see `SLO`.
    """
    _check_result(result)
    limits = {} if slo is None else check_slo(slo).limits
    for name, given in (("ttft", ttft_slo), ("tpot", tpot_slo)):
        if given is not None:
            if slo is not None:
                raise ValueError(f"{name}_slo={given!r}: must be left out where slo={slo!r} is given")
            limits[name] = _limit(f"{name}_slo", given)
            if (doubt := doubt_of_seconds(name, f"{name}_slo", limits[name])) is not None:
                _warn(f"attainment: {doubt}")
    check_shares(warmup, cooldown)
    if not limits:
        _warn("attainment: no SLO is set, so it is the share of requests not rejected; set one, as slo=SLO(ttft_s=0.5)")
    systems = one_system(result)
    window = MeasurementWindow(systems.arrival_s, systems.n_requests, warmup, cooldown)
    met = meets(systems, {name: np.array([limit]) for name, limit in limits.items()})[1]
    return float(ratio(window.count(met), window.size)[0])


@checks.spelt_out
def percentile(result: Result, name: MetricName, q: float, *, warmup: float = 0.2, cooldown: float = 0.2) -> float:
    """The q-th percentile of a latency over the window's requests that have it.

    NumPy's linear interpolation, to the last bit. The window is that of `attainment`.

    Parameters
    ----------
    result
        A run.
    name
        "ttft", "tpot", "e2e", "queue_delay", "kv_transfer", or "itl_max" (where times between tokens were kept).
    q
        Percent, from 0 to 100: 99 for the 99th percentile.
    warmup, cooldown
        Shares of the requests that are not in the window, see `attainment`.

    Returns
    -------
    float
        Seconds; NaN when no request of the window has the value.

    Raises
    ------
    ValueError
        No Result, an unknown name, a q that is not one number from 0 to 100, or a share outside [0, 1].

    Warns
    -----
    UserWarning
        For 0 < q < 1, which was probably meant as a share.
    """
    _check_result(result)
    checks.one_of("name", name, LATENCIES)
    if not (is_number(q) and 0 <= q <= 100):
        raise ValueError(f"q={q!r}: must be one percentage from 0 to 100")
    if 0 < q < 1:
        _warn(f"q={q!r}: percentiles go from 0 to 100 (99 for the 99th), so this is the {q:g}th, almost the smallest")
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

    Parameters
    ----------
    run
        The attainment at a rate in requests/s. NaN, the attainment of a window without requests, is a miss.
    target
        The share asked for, in (0, 1].
    lo, hi
        The rates searched between, in requests/s; `lo` may be `hi`.
    iters
        Halvings; each costs one call of `run`, after two for the ends.

    Returns
    -------
    float
        Requests/s: 0 when `lo` misses the target, `hi` when `hi` meets it, else the lower end of the last interval.

    Raises
    ------
    ValueError
        An argument outside its range, or a `run` that does not return a number.
    """
    if not (is_number(target) and 0 < target <= 1):
        raise ValueError(f"target={target!r}: must be a share above 0 and at most 1")
    for name, rate in (("lo", lo), ("hi", hi)):
        if not (is_number(rate) and 0 < rate < math.inf):
            raise ValueError(f"{name}={rate!r}: must be a positive finite rate")
    if lo > hi:
        raise ValueError(f"lo={lo!r}: must be at most hi, which is {hi!r}")
    if isinstance(iters, bool) or not isinstance(iters, (int, np.integer)) or iters < 0:
        raise ValueError(f"iters={iters!r}: must be a whole number of halvings, at least 0")

    def is_met(rate: float) -> bool:
        attained = run(rate)
        if not is_number(attained):
            raise ValueError(f"run({rate!r})={attained!r}: must be an attainment, a share of requests")
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
        raise ValueError(f"result is a {type(result).__name__}: must be a Result, as run_scheduler returns")


def _limit(name: str, value: object) -> float:
    if isinstance(value, SLO | Mapping):
        raise ValueError(f"{name}={shown(value)}: must be seconds; pass it as slo=, as in slo=SLO(ttft_s=0.5)")
    if not (is_number(value) and value >= 0):
        raise ValueError(f"{name}={value!r}: must be seconds, at least 0, or None for no check")
    return float(value)


def _warn(text: str) -> None:
    """A warning that shows the line of the user who called a function of this module, through `spelt_out`."""
    warnings.warn(text, UserWarning, stacklevel=4)
