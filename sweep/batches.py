"""Cells grouped into batches of lanes that the engine advances together, and what they will cost.

Most of what a batch costs is a time per event of its busiest lane: one of twice the lanes takes a third longer, not
twice as long. So few large batches are fast, and only memory and the number of workers are reasons to split one.
Nothing here changes an answer: lanes of a batch do not touch each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Plan

MAX_LANES = 1000  # beyond this a batch gains little
BYTES_PER_REQUEST = 100  # of a lane, in a batch
BATCH_BYTES = 400_000_000

# CPU seconds for each request of the longest workload, times lanes ** _GROWTH. Fitted to batches of 1 to 1000 lanes of
# the quickstart's kind, and of the Azure trace; load, memory and machine each move them by a factor of up to two.
_REQUEST_S = {False: 0.29e-3, True: 0.21e-3}  # by prefill_first
_GROWTH = 0.42
_PROCESS_START_S = 1.0  # of a process: Python and its packages
_PROCESS_BYTES = 150_000_000
_WORTH = 0.9  # a further worker or batch that leaves more than this share of the time is not worth its CPU

_Group = tuple[int, bool]  # requests of a workload, prefill_first
_Groups = dict[_Group, list[int]]  # positions of cells
_Counts = dict[_Group, int]  # number of batches


@dataclass(frozen=True)
class Estimate:
    """What a run should cost: CPU seconds in all, seconds by the clock, bytes of memory in all processes."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


def default_workers(plan: Plan, cores: int) -> int:
    """Workers that are worth starting, up to one for each core: more only if they end the run clearly sooner."""
    groups = _groups(plan, plan.feasible)
    best, workers = math.inf, 1
    for count in range(1, cores + 1):
        seconds = _expected_s(groups, _split(groups, count, MAX_LANES), count) + _start_s(count)
        if seconds < _WORTH * best:
            best, workers = seconds, count
    return workers


def make_batches(plan: Plan, cells: Sequence[int], workers: int, max_lanes: int = MAX_LANES) -> list[list[int]]:
    """Positions of cells in batches, the heaviest first, so many of them that the workers should end soonest.

    Cells share a batch when their policies have the same phases and their workloads the same length. The batches of
    such a group have the same size, and their share of every request rate: a loaded lane takes longer than an idle one.
    """
    groups = _groups(plan, cells)
    batches = []
    for key, count in _split(groups, workers, max_lanes).items():
        by_rate = sorted(groups[key], key=lambda at: plan.cells[at].request_rate_rps)
        batches += [sorted(by_rate[start::count]) for start in range(count)]
    return sorted(batches, key=lambda batch: -expected_cpu_s(plan, batch))


def expected_cpu_s(plan: Plan, batch: Sequence[int]) -> float:
    """CPU seconds that a batch should take."""
    return _cpu_s(_group_of(plan, batch[0]), len(batch))


def estimate(plan: Plan, batches: Sequence[Sequence[int]], workers: int) -> Estimate:
    """The cost of a run, by the figures at the top of this file."""
    seconds = [expected_cpu_s(plan, batch) for batch in batches]
    processes = 1 if workers == 1 else 1 + workers  # this one, and the workers
    largest = max(
        (len(batch) * len(plan.cells[batch[0]].traffic.workload) * BYTES_PER_REQUEST for batch in batches), default=0
    )
    return Estimate(
        cpu_s=sum(seconds) + _PROCESS_START_S * processes,
        wall_s=_makespan(seconds, workers) + _start_s(workers),
        memory_bytes=workers * largest + processes * _PROCESS_BYTES,
    )


def _groups(plan: Plan, cells: Sequence[int]) -> _Groups:
    groups: _Groups = {}
    for at in cells:
        groups.setdefault(_group_of(plan, at), []).append(at)
    return groups


def _group_of(plan: Plan, at: int) -> _Group:
    cell = plan.cells[at]
    return len(cell.traffic.workload), cell.setup.options["policy"] == "prefill_first"


def _split(groups: _Groups, workers: int, max_lanes: int) -> _Counts:
    """The number of batches of each group: those that memory asks for, and more while that ends the run sooner."""
    counts = {}
    for key, group in groups.items():
        lanes = max(1, min(max_lanes, BATCH_BYTES // (BYTES_PER_REQUEST * key[0])))
        counts[key] = -(-len(group) // lanes)
    best = _expected_s(groups, counts, workers)
    while workers > 1:
        finer = [{**counts, key: count + 1} for key, count in counts.items() if count < len(groups[key])]
        seconds = [_expected_s(groups, other, workers) for other in finer]
        if not seconds or min(seconds) > _WORTH * best:
            break
        best, counts = min(seconds), finer[seconds.index(min(seconds))]
    return counts


def _expected_s(groups: _Groups, counts: _Counts, workers: int) -> float:
    batches = ((key, -(-len(groups[key]) // count)) for key, count in counts.items() for _ in range(count))
    return _makespan([_cpu_s(*batch) for batch in batches], workers)


def _makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last worker ends, if each takes the heaviest batch that is left."""
    ends = [0.0] * workers
    for cost in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += cost
    return max(ends)


def _cpu_s(group: _Group, lanes: int) -> float:
    requests, prefill_first = group
    return float(_REQUEST_S[prefill_first] * requests * lanes**_GROWTH)


def _start_s(workers: int) -> float:
    return _PROCESS_START_S * (1 if workers == 1 else 2)  # workers start together, after this process
