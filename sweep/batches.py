"""Cells grouped into batches of lanes that the engine advances together, and what they will cost.

A batch costs a fixed time per event of its busiest lane plus a little per lane, so few large batches are fast; memory
and the number of workers set the limits. Nothing here changes an answer: lanes of a batch do not touch each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Plan

MAX_LANES = 1000  # beyond this a batch gains little
LANES_PER_WORKER = 200  # below this a further worker costs more CPU time than it saves
BYTES_PER_REQUEST = 100  # of a lane, in a batch
BATCH_BYTES = 400_000_000

# Estimates from runs of the quickstart's kind on one core; load, memory and machine each move them by a factor of two.
_EVENTS_PER_REQUEST = 2.0  # iterations of the engine for each request of the longest workload
_SECONDS_PER_EVENT = 1.1e-3  # of all lanes of a batch together
_SECONDS_PER_LANE_EVENT = 4e-6
_START_SECONDS = 1.0  # of a process: Python and its packages
_PROCESS_BYTES = 150_000_000
_WORTH = 0.9  # a further batch that leaves more than this share of the time is not worth its CPU


@dataclass(frozen=True)
class Estimate:
    """What a run should cost: CPU seconds in all, seconds by the clock, bytes of memory in all processes."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


def default_workers(cells: int, cores: int) -> int:
    """Workers that are worth starting: one for each core, as long as their batches stay large."""
    return max(1, min(cores, cells // LANES_PER_WORKER))


def make_batches(plan: Plan, cells: Sequence[int], workers: int, max_lanes: int = MAX_LANES) -> list[list[int]]:
    """Positions of cells in batches, the heaviest first, so many of them that the workers should end soonest.

    Cells share a batch when their policies have the same phases and their workloads the same length. The batches of such
    a group have the same size and their share of every request rate, because a loaded lane takes longer than an idle one.
    """
    groups: dict[tuple[bool, int], list[int]] = {}
    for at in cells:
        requests = len(plan.cells[at].traffic.workload)
        groups.setdefault((plan.cells[at].setup.options["policy"] == "prefill_first", requests), []).append(at)
    counts = {}
    for key, group in groups.items():
        lanes = max(1, min(max_lanes, BATCH_BYTES // (BYTES_PER_REQUEST * key[1])))
        counts[key] = -(-len(group) // lanes)

    def time_of(counts: dict[tuple[bool, int], int]) -> float:
        batches = ((key[1], -(-len(groups[key]) // n)) for key, n in counts.items() for _ in range(n))
        return _makespan([_cpu_seconds(*batch) for batch in batches], workers)

    best = time_of(counts)
    while workers > 1:
        finer = [{**counts, key: n + 1} for key, n in counts.items() if n < len(groups[key])]
        times = [time_of(other) for other in finer]
        if not times or min(times) > _WORTH * best:
            break
        best, counts = min(times), finer[times.index(min(times))]
    batches = []
    for key, group in groups.items():
        by_rate = sorted(group, key=lambda at: plan.cells[at].request_rate_rps)
        batches += [sorted(by_rate[start :: counts[key]]) for start in range(counts[key])]
    return sorted(batches, key=lambda batch: -_cost(plan, batch))


def estimate(plan: Plan, batches: Sequence[Sequence[int]], workers: int) -> Estimate:
    """The cost of a run, by the figures at the top of this file."""
    seconds = [_cost(plan, batch) for batch in batches]
    processes = 1 if workers == 1 else 1 + workers  # this one, and the workers
    largest = max(
        (len(batch) * len(plan.cells[batch[0]].traffic.workload) * BYTES_PER_REQUEST for batch in batches), default=0
    )
    return Estimate(
        cpu_s=sum(seconds) + _START_SECONDS * processes,
        wall_s=_makespan(seconds, workers) + _START_SECONDS * min(processes, 2),
        memory_bytes=workers * largest + processes * _PROCESS_BYTES,
    )


def _makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last worker ends, if each takes the heaviest task that is left."""
    ends = [0.0] * workers
    for cost in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += cost
    return max(ends)


def _cost(plan: Plan, batch: Sequence[int]) -> float:
    return _cpu_seconds(len(plan.cells[batch[0]].traffic.workload), len(batch))


def _cpu_seconds(requests: int, lanes: int) -> float:
    return _EVENTS_PER_REQUEST * requests * (_SECONDS_PER_EVENT + _SECONDS_PER_LANE_EVENT * lanes)
