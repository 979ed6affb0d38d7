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

from ..experiment.outlines import Outline
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
_TRIED = 16  # groups that are tried with a batch more
_MANY_GROUPS = 300  # of so many the workers end together anyway
_MANY_BATCHES = 1000

_Stages = tuple[tuple[Rules, bool], ...]  # by role: the kind of engine, and whether requests are routed in the run
_Cost = tuple[float, int]  # seconds of a batch, and how many such batches there are


class _Kind(NamedTuple):
    """What cells must have in common to share a batch: the engine runs them together then."""

    requests: int  # of the workload
    stages: _Stages

    @property
    def routed(self) -> bool:
        """Whether instances are tied together at each arrival."""
        return any(routed for _, routed in self.stages)


@dataclass(frozen=True)
class _Group:
    """Cells that can share a batch.

    size    how many
    rows    of all cells: instances, or the pp streams of decode instances
    fewest  instances of a cell that share its requests, of the cell with the fewest
    """

    kind: _Kind
    size: int
    rows: int
    fewest: int

    @property
    def busiest(self) -> float:
        """Requests of the busiest row, about."""
        return self.kind.requests / (1 if self.kind.routed else self.fewest)


@dataclass(frozen=True)
class Estimate:
    """What a run should cost: CPU seconds in all, seconds by the clock, bytes of memory in all processes."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


def default_workers(plan: Plan, cells: Sequence[int], cores: int) -> int:
    """Workers that are worth starting, up to one for each core: more only if they end the run clearly sooner."""
    return _workers(_groups(plan, cells), cores)


def outline_workers(outline: Outline, cores: int) -> int:
    """`default_workers` of an experiment whose cells have not been built."""
    return _workers(_outline_groups(outline), cores)


def _workers(groups: Sequence[_Group], cores: int) -> int:
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
    members = _members(plan, cells)
    groups = [_group(plan, kind, held) for kind, held in members.items()]
    batches = []
    for held, count in zip(members.values(), _split(groups, workers, max_batch_cells), strict=True):
        by_rate = sorted(held, key=lambda at: -plan.cells[at].request_rate_rps)
        if count >= 2 * workers:
            ends = [len(by_rate) * place // count for place in range(count + 1)]
            batches += [sorted(by_rate[begin:end]) for begin, end in itertools.pairwise(ends)]
        else:
            batches += [sorted(by_rate[start::count]) for start in range(count)]
    return sorted(batches, key=lambda batch: -expected_cpu_s(plan, batch))


def expected_cpu_s(plan: Plan, batch: Sequence[int]) -> float:
    """CPU seconds that a batch should take."""
    (group,) = _groups(plan, batch)
    return _cpu_s(group, 1)


def estimate(plan: Plan, batches: Sequence[Sequence[int]], workers: int) -> Estimate:
    """The cost of a run, by the figures at the top of this file."""
    groups = [group for batch in batches for group in _groups(plan, batch)]
    return _estimate([(_cpu_s(group, 1), 1) for group in groups], max(map(_bytes, groups), default=0), workers)


def estimate_outline(outline: Outline, workers: int, max_batch_cells: int = MAX_BATCH_CELLS) -> Estimate:
    """`estimate` of an experiment whose cells have not been built."""
    groups = _outline_groups(outline)
    counts = _split(groups, workers, max_batch_cells)
    costs = [(_cpu_s(group, count), count) for group, count in zip(groups, counts, strict=True)]
    largest = max((-(-_bytes(group) // count) for group, count in zip(groups, counts, strict=True)), default=0)
    return _estimate(costs, largest, workers)


def _estimate(costs: Sequence[_Cost], largest: int, workers: int) -> Estimate:
    processes = 1 if workers == 1 else 1 + workers  # this one, and the workers
    return Estimate(
        cpu_s=sum(seconds * count for seconds, count in costs) + _PROCESS_START_S * processes,
        wall_s=_makespan(costs, workers) + _start_s(workers),
        memory_bytes=workers * largest + processes * _PROCESS_BYTES,
    )


def _members(plan: Plan, cells: Sequence[int]) -> dict[_Kind, list[int]]:
    """Positions of cells by what they must have in common to share a batch."""
    members: dict[_Kind, list[int]] = {}
    known: dict[tuple[int, int], list[int]] = {}  # members alike, by traffic and system: there are far more cells
    for at in cells:
        cell = plan.cells[at]
        alike = id(cell.traffic), id(cell.spec)
        if alike not in known:
            kind = _Kind(cell.traffic.columns["n_requests"], _stages(cell.spec))
            known[alike] = members.setdefault(kind, [])
        known[alike].append(at)
    return members


def _groups(plan: Plan, cells: Sequence[int]) -> list[_Group]:
    return [_group(plan, kind, held) for kind, held in _members(plan, cells).items()]


def _group(plan: Plan, kind: _Kind, cells: Sequence[int]) -> _Group:
    specs = [plan.cells[at].spec for at in cells]
    return _Group(kind, len(cells), sum(map(_rows, specs)), min(spec.n_instances for spec in specs))


def _outline_groups(outline: Outline) -> list[_Group]:
    by_stages: dict[_Stages, tuple[int, int, int]] = {}  # cells under each workload, their rows, fewest instances
    for one in outline.runs:
        stages = _stages(one.spec)
        size, rows, fewest = by_stages.get(stages, (0, 0, one.spec.n_instances))
        more = size + one.cells, rows + one.cells * _rows(one.spec), min(fewest, one.spec.n_instances)
        by_stages[stages] = more
    return [
        _Group(_Kind(requests, stages), size * workloads, rows * workloads, fewest)
        for requests, workloads in outline.lengths.items()
        for stages, (size, rows, fewest) in by_stages.items()
    ]


def _stages(spec: SystemSpec) -> _Stages:
    return tuple((stage.kind, stage.routed) for stage in spec.stages)


def _rows(spec: SystemSpec) -> int:
    """Rows of the engine: a decode instance has one for each of its pipeline stages."""
    return sum(stage.instances * stage.lanes for stage in spec.stages)


def _split(groups: Sequence[_Group], workers: int, max_batch_cells: int) -> list[int]:
    """The number of batches of each group: those that memory asks for, and more while that ends the run sooner."""
    counts = []
    for group in groups:
        cells = max(1, min(max_batch_cells, BATCH_BYTES * group.size // _bytes(group)))
        counts.append(-(-group.size // cells))
    best = _expected_s(groups, counts, workers)
    while workers > 1 and len(groups) <= _MANY_GROUPS:
        # Which group ends last is up to the heaviest batches; of many groups the others need not be tried.
        order = sorted(range(len(groups)), key=lambda place: -_cpu_s(groups[place], counts[place]))[:_TRIED]
        finer = [
            [*counts[:place], counts[place] + 1, *counts[place + 1 :]]
            for place in sorted(order)
            if counts[place] < groups[place].size
        ]
        seconds = [_expected_s(groups, other, workers) for other in finer]
        if not seconds or min(seconds) > _WORTH * best:
            break
        best, counts = min(seconds), finer[seconds.index(min(seconds))]
    return counts


def _bytes(group: _Group) -> int:
    """Memory of all cells of a group at once."""
    further = group.rows - group.size
    return group.size * group.kind.requests * BYTES_PER_REQUEST + further * BYTES_PER_ROW


def _expected_s(groups: Sequence[_Group], counts: Sequence[int], workers: int) -> float:
    return _makespan([(_cpu_s(group, count), count) for group, count in zip(groups, counts, strict=True)], workers)


def _makespan(costs: Sequence[_Cost], workers: int) -> float:
    """When the last worker ends, if each takes the heaviest batch that is left. Batches: seconds, and how many."""
    ends = [0.0] * workers
    for seconds, count in sorted(costs, reverse=True):
        each = max(0, count // workers - 1) if count > _MANY_BATCHES else 0  # of very many each takes its share
        ends = [end + each * seconds for end in ends]
        for _ in range(count - each * workers):
            ends[ends.index(min(ends))] += seconds
    return max(ends)


def _cpu_s(group: _Group, batches: int) -> float:
    """CPU seconds of one of so many equal batches of a group."""
    # Tied by the router, the rows of a system share its events. Fitted to 2 to 100 instances, within a factor of 1.5.
    rows = math.sqrt(group.rows * group.size) if group.kind.routed else group.rows
    rows *= -(-group.size // batches) / group.size  # in whole cells, as the largest batch is
    return float(_REQUEST_S * group.busiest * rows**_GROWTH)


def _start_s(workers: int) -> float:
    return _PROCESS_START_S * (1 if workers == 1 else 2)  # workers start together, after this process
