"""Every measure of many systems at once: the columns of the cells table. Definitions are in docs/measures.md.

C systems, N requests of the longest workload; R systems of a chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from ..arrays import Bools, Floats, Ints
from .balance import BALANCE, balance_measures, prefills_only
from .latencies import ITL, LATENCIES, PERCENTILES, ROWS, SystemArrays, itl_columns, latency, meets
from .slo import SLOS
from .window import MeasurementWindow, check_shares, ratio, row_means, row_percentiles


class Counted(NamedTuple):
    """A measure that comes from counters: a row here is all that its column needs.

    Parameters
    ----------
    name, unit, definition
        Of the column.
    values
        Of each of some systems, [R]. `systems.counters` has every counter of the engine by name (kernels/counters.py).
    whole
        Whole numbers, int64 in the tables; otherwise float64.
    """

    name: str
    unit: str
    definition: str
    values: Callable[[SystemArrays], npt.NDArray[Any]]
    whole: bool = True


def _sums(of_requests: npt.NDArray[Any]) -> Ints:
    sums: Ints = of_requests.sum(axis=1, dtype=np.int64)
    return sums


COUNTED = (
    Counted(
        "preemptions",
        "preemptions",
        "times that a running request lost its KV blocks, summed over the run",
        lambda systems: np.sum(systems.preemptions, axis=1),
    ),
    Counted(
        "recomputed_tokens",
        "tokens",
        "prefill tokens processed by requests that had been preempted at least once",
        lambda systems: systems.recomputed_tokens,
    ),
    Counted(
        "prefill_tokens",
        "tokens",
        "all tokens processed in prefill, recomputed_tokens included",
        lambda systems: systems.prefill_tokens,
    ),
    Counted(
        "cached_tokens",
        "tokens",
        "prompt tokens that first admissions found in a prefix cache, so that prefill left them out",
        lambda systems: _sums(systems.cached_tokens),
    ),
    Counted(
        "prefix_cache_hit_rate",
        "share",
        "cached_tokens / prompt tokens of the requests that were not rejected; 0 without a prefix cache",
        lambda systems: ratio(_sums(systems.cached_tokens), _sums(systems.prompt_tokens * ~systems.rejected)),
        whole=False,
    ),
    Counted(
        "kv_utilization_mean",
        "share",
        "KV blocks held (reserved memory: tokens set aside), mean over steps of instances that decode / all of them; "
        "null when memory is unlimited",
        lambda systems: ratio(systems.block_steps, systems.batch_steps * systems.num_blocks),
        whole=False,
    ),
    Counted(
        "kv_utilization_peak",
        "share",
        "peak_blocks / blocks of an instance (of a decode instance: of a stream); null when memory is unlimited",
        lambda systems: ratio(systems.peak_blocks, systems.num_blocks),
        whole=False,
    ),
    Counted(
        "peak_blocks",
        "blocks",
        "most KV blocks held on any instance (decode: in any of its pp streams) during any step; "
        "reserved memory: tokens set aside",
        lambda systems: systems.peak_blocks,
    ),
    Counted(
        "batch_size_mean",
        "requests",
        "running requests, mean over steps: every step counts the same, however long; "
        "of a disaggregated system, over the steps of its decode instances",
        lambda systems: ratio(systems.running_steps, systems.batch_steps),
        whole=False,
    ),
    Counted("steps", "steps", "steps that were not idle, of all instances", lambda systems: systems.steps),
)

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
    *(row.name for row in COUNTED),
    "utilization",
    *BALANCE,
    "finished",
    "rejected",
)

_CHUNK_ELEMENTS = 1 << 17  # systems x requests looked at in one go: temporaries of 1 MB stay in the cache


def measures(
    results: SystemArrays,
    *,
    limits: Mapping[str, ArrayLike],
    warmup: float,
    cooldown: float,
    n_gpus: int | Ints,
) -> dict[str, npt.NDArray[Any]]:
    """Every measure of every system: name -> array [C], in the order of `MEASURES`.

    A system's numbers do not depend on the others of the batch, on the padding or on the chunking.

    Parameters
    ----------
    results
        The outcome of C systems.
    limits
        Seconds by latency of `SLOS`, one for all or one a system. NaN, or left out: not checked.
    warmup, cooldown
        See `attainment`.
    n_gpus
        GPUs of the system, one number for all or one a system.

    Returns
    -------
    dict of arrays [C]
        float64 with NaN where a measure does not exist; int64 for counts.

    Raises
    ------
    ValueError
        A negative limit, a share outside [0, 1], fewer than one GPU.
    """
    count = len(results.n_requests)
    given = {name: _limits(f"{name}_s", limits.get(name, np.nan), count) for name in SLOS}
    check_shares(warmup, cooldown)
    gpus = np.broadcast_to(np.asarray(n_gpus), (count,))
    if np.any(gpus < 1):
        raise ValueError(f"n_gpus={gpus.min()!s}: must be at least 1")

    prefilled = prefills_only(results.instances, count)
    parts = [
        _measures(
            _systems_of(results, rows),
            {name: limit[rows] for name, limit in given.items()},
            warmup,
            cooldown,
            gpus[rows],
            prefilled[rows],
        )
        for rows in _chunks(*results.arrival_s.shape)
    ]
    columns: dict[str, npt.NDArray[Any]] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns |= balance_measures(results.instances, columns["duration_s"])
    if results.instances is None:
        columns["utilization"] = results.busy_s / columns["duration_s"]
    return {name: columns[name] for name in MEASURES}


def _limits(name: str, value: ArrayLike, systems: int) -> Floats:
    """One limit a system, float64 [systems], NaN where nothing is checked."""
    limit = np.asarray(value, dtype=np.float64)
    if np.any(limit < 0):
        raise ValueError(f"{name}={np.nanmin(limit):g}: must be seconds, at least 0, or NaN for no check")
    return np.broadcast_to(limit, (systems,))


def _systems_of(results: SystemArrays, rows: slice) -> SystemArrays:
    itl = {name: None if getattr(results, name) is None else getattr(results, name)[rows] for name in ITL}
    # 0 where results were made from arrays, by somebody who counted nothing.
    counters: defaultdict[str, Floats] = defaultdict(partial(np.zeros, len(results.n_requests[rows])))
    counters |= {name: values[rows] for name, values in results.counters.items()}
    columns = {name: getattr(results, name)[rows] for name in ROWS}
    return cast(SystemArrays, SimpleNamespace(**columns, **itl, counters=counters))


def _measures(
    systems: SystemArrays,
    limits: Mapping[str, Floats],
    warmup: float,
    cooldown: float,
    gpus: Ints,
    prefilled: Bools,  # requests are done with their first token
) -> dict[str, npt.NDArray[Any]]:
    window = MeasurementWindow(systems.arrival_s, systems.n_requests, warmup, cooldown)
    met_alone, met = meets(systems, limits)
    done_s = systems.finish_s
    if prefilled.any():
        done_s = np.where(prefilled[:, None], systems.first_token_s, done_s)
    finished = ~np.isnan(done_s)
    finished_count = np.count_nonzero(finished, axis=1)
    output_tokens = np.where(prefilled, finished_count, np.sum(systems.output_tokens * finished, axis=1))
    total_tokens = np.sum(systems.prompt_tokens * finished, axis=1) + output_tokens
    duration = _last(done_s) - window.first_arrival_s
    duration[~(duration > 0)] = np.nan
    columns: dict[str, npt.NDArray[Any]] = {
        "attainment": ratio(window.count(met), window.size),
        "attainment_requests": window.size,
        **{
            f"{name}_attainment": np.where(np.isnan(limit), np.nan, ratio(window.count(met_alone[name]), window.size))
            for name, limit in limits.items()
        },
        "request_goodput_rps": np.count_nonzero(met, axis=1) / duration,
        "request_throughput_rps": finished_count / duration,
        "output_throughput_tps": output_tokens / duration,
        "total_throughput_tps": total_tokens / duration,
        "request_throughput_per_gpu_rps": finished_count / duration / gpus,
        "output_throughput_per_gpu_tps": output_tokens / duration / gpus,
        "duration_s": duration,
        **{row.name: row.values(systems).astype(np.int64 if row.whole else np.float64) for row in COUNTED},
        "finished": finished_count,
        "rejected": np.count_nonzero(systems.rejected, axis=1),
    }
    columns |= itl_columns(systems, finished & ~prefilled[:, None])
    for name in LATENCIES:
        if name == "itl_max" and systems.itl_max_s is None:
            missing = ("mean", *(f"p{q}" for q in PERCENTILES))
            columns |= {f"itl_max_{which}_s": np.full(len(gpus), np.nan) for which in missing}
            continue
        values, count = window.sorted(latency(name, systems))
        columns[f"{name}_mean_s"] = row_means(values, count)
        points = row_percentiles(values, count, np.array(PERCENTILES, dtype=np.float64))
        for q, column in zip(PERCENTILES, points.T, strict=True):
            columns[f"{name}_p{q}_s"] = column
    return columns


def _last(times: Floats) -> Floats:
    """The latest time of each row [R, N], NaN for a row without one."""
    latest: Floats = np.fmax.reduce(times, axis=1, initial=np.nan)
    return latest


def _chunks(systems: int, width: int) -> Iterator[slice]:
    rows = max(1, _CHUNK_ELEMENTS // max(width, 1))
    for start in range(0, max(systems, 1), rows):
        yield slice(start, min(start + rows, systems))
