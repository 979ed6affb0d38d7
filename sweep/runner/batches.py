"""Cells grouped into batches, whose rows the engine advances together, and what they will cost.

Most of what a batch costs is a time per event of its busiest row (where the router ties instances together, of its
busiest system): one of twice the rows takes a third longer, not twice as long. So few large batches are fast, and only
memory and the number of workers are reasons to split one. Nothing here changes an answer: rows of a batch do not touch
each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..experiment.plan import Plan
from ..experiment.specs import SystemSpec
from ..kernels.rules import Rules

MAX_BATCH_CELLS = 1000  # cells; beyond this a batch gains little
BYTES_PER_REQUEST = 100  # of a cell, in a batch
BYTES_PER_ROW = 3000  # of each row of a cell but its first
BATCH_BYTES = 400_000_000

# CPU seconds for each request of the longest workload, times rows ** _GROWTH. Fitted to batches of 1 to 1000 rows of
# the quickstart's kind, and of the Azure trace; load, memory and machine each move them by a factor of up to two.
_REQUEST_S = 0.27e-3
_GROWTH = 0.44
_PROCESS_START_S = 1.0  # of a process: Python and its packages
_PROCESS_BYTES = 150_000_000
_WORTH = 0.9  # a further worker or batch that leaves more than this share of the time is not worth its CPU


class _Kind(NamedTuple):
    """What cells must have in common to share a batch: the engine runs them together then."""

    requests: int  # of the workload
    stages: tuple[tuple[Rules, bool], ...]  # by role: the kind of engine, and whether requests are routed in the run

    @property
    def routed(self) -> bool:
        """Whether instances are tied together at each arrival."""
        return any(routed for _, routed in self.stages)


@dataclass(frozen=True)
class _Group:
    """Cells that can share a batch.

    rows    of all cells: instances, or the pp streams of decode instances
    busiest  requests of the busiest row, about
    """

    kind: _Kind
    cells: list[int]  # positions
    rows: int
    busiest: float


_Counts = dict[_Kind, int]  # number of batches


@dataclass(frozen=True)
class Estimate:
    """What a run should cost: CPU seconds in all, seconds by the clock, bytes of memory in all processes."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


def default_workers(plan: Plan, cells: Sequence[int], cores: int) -> int:
    """Workers that are worth starting, up to one for each core: more only if they end the run clearly sooner."""
    groups = _groups(plan, cells)
    best, workers = math.inf, 1
    for count in range(1, cores + 1):
        seconds = _expected_s(groups, _split(groups, count, MAX_BATCH_CELLS), count) + _start_s(count)
        if seconds < _WORTH * best:
            best, workers = seconds, count
    return workers


def make_batches(
    plan: Plan, cells: Sequence[int], workers: int, max_batch_cells: int = MAX_BATCH_CELLS
) -> list[list[int]]:
    """Positions of cells in batches, the heaviest first, so many of them that the workers should end soonest.

    Cells share a batch when the engine advances them together (kind of system and memory, the policy under reserved
    memory, whether the router ties instances together) and their workloads have the same length. The batches of such a
    group have the same size. Of many, each has neighbouring request rates, which costs less CPU (10 to 20 %, measured):
    rows that are alike end together. Of few, each has its share of every rate, so that workers end together: a loaded
    row takes longer than an idle one.
    """
    groups = _groups(plan, cells)
    batches = []
    for kind, count in _split(groups, workers, max_batch_cells).items():
        by_rate = sorted(groups[kind].cells, key=lambda at: -plan.cells[at].request_rate_rps)
        if count >= 2 * workers:
            ends = [len(by_rate) * place // count for place in range(count + 1)]
            batches += [sorted(by_rate[begin:end]) for begin, end in itertools.pairwise(ends)]
        else:
            batches += [sorted(by_rate[start::count]) for start in range(count)]
    return sorted(batches, key=lambda batch: -expected_cpu_s(plan, batch))


def expected_cpu_s(plan: Plan, batch: Sequence[int]) -> float:
    """CPU seconds that a batch should take."""
    (group,) = _groups(plan, batch).values()
    return _cpu_s(group, 1)


def estimate(plan: Plan, batches: Sequence[Sequence[int]], workers: int) -> Estimate:
    """The cost of a run, by the figures at the top of this file."""
    groups = [group for batch in batches for group in _groups(plan, batch).values()]
    seconds = [_cpu_s(group, 1) for group in groups]
    processes = 1 if workers == 1 else 1 + workers  # this one, and the workers
    largest = max(map(_bytes, groups), default=0)
    return Estimate(
        cpu_s=sum(seconds) + _PROCESS_START_S * processes,
        wall_s=_makespan(seconds, workers) + _start_s(workers),
        memory_bytes=workers * largest + processes * _PROCESS_BYTES,
    )


def _groups(plan: Plan, cells: Sequence[int]) -> dict[_Kind, _Group]:
    members: dict[_Kind, list[int]] = {}
    known: dict[tuple[int, int], list[int]] = {}  # members alike, by traffic and system: there are far more cells
    for at in cells:
        cell = plan.cells[at]
        alike = id(cell.traffic), id(cell.spec)
        if alike not in known:
            known[alike] = members.setdefault(_kind_of(plan, at), [])
        known[alike].append(at)
    groups = {}
    for kind, group in members.items():
        specs = [plan.cells[at].spec for at in group]
        fewest = 1 if kind.routed else min(spec.n_instances for spec in specs)
        groups[kind] = _Group(kind, group, sum(map(_rows, specs)), kind.requests / fewest)
    return groups


def _kind_of(plan: Plan, at: int) -> _Kind:
    cell = plan.cells[at]
    return _Kind(len(cell.traffic.workload), tuple((stage.kind, stage.routed) for stage in cell.spec.stages))


def _rows(spec: SystemSpec) -> int:
    """Rows of the engine: a decode instance has one for each of its pipeline stages."""
    return sum(stage.instances * stage.lanes for stage in spec.stages)


def _split(groups: dict[_Kind, _Group], workers: int, max_batch_cells: int) -> _Counts:
    """The number of batches of each group: those that memory asks for, and more while that ends the run sooner."""
    counts = {}
    for kind, group in groups.items():
        cells = max(1, min(max_batch_cells, BATCH_BYTES * len(group.cells) // _bytes(group)))
        counts[kind] = -(-len(group.cells) // cells)
    best = _expected_s(groups, counts, workers)
    while workers > 1:
        finer = [{**counts, kind: count + 1} for kind, count in counts.items() if count < len(groups[kind].cells)]
        seconds = [_expected_s(groups, other, workers) for other in finer]
        if not seconds or min(seconds) > _WORTH * best:
            break
        best, counts = min(seconds), finer[seconds.index(min(seconds))]
    return counts


def _bytes(group: _Group) -> int:
    """Memory of all cells of a group at once."""
    further = group.rows - len(group.cells)
    return len(group.cells) * group.kind.requests * BYTES_PER_REQUEST + further * BYTES_PER_ROW


def _expected_s(groups: dict[_Kind, _Group], counts: _Counts, workers: int) -> float:
    return _makespan([_cpu_s(groups[kind], count) for kind, count in counts.items() for _ in range(count)], workers)


def _makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last worker ends, if each takes the heaviest batch that is left."""
    ends = [0.0] * workers
    for cost in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += cost
    return max(ends)


def _cpu_s(group: _Group, batches: int) -> float:
    """CPU seconds of one of so many equal batches of a group."""
    # Tied by the router, the rows of a system share its events. Fitted to 2 to 100 instances, within a factor of 1.5.
    rows = math.sqrt(group.rows * len(group.cells)) if group.kind.routed else group.rows
    rows *= -(-len(group.cells) // batches) / len(group.cells)  # in whole cells, as the largest batch is
    return float(_REQUEST_S * group.busiest * rows**_GROWTH)


def _start_s(workers: int) -> float:
    return _PROCESS_START_S * (1 if workers == 1 else 2)  # workers start together, after this process
