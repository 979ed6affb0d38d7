"""Whether enough requests of a system meet their SLOs, told as soon as nothing that follows can change it.

A verdict falls with the first D requests of the window, in order of arrival, of which so many meet the SLOs, or miss
them, that whatever the others do, the attainment is beyond chance above the target, or below it (`wilson_interval`). A
request is counted when what becomes of it is certain: when it has finished, or when it has missed, which a late first
token, or none by now, shows before. D, and the share of the D requests that meet the SLOs, follow from the simulated
times alone: how often the engine is looked at, and with whom a system shares a batch, do not matter.

C systems, R rows of a batch's requests, Q queues, S conditions: one for all SLOs together, or one for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..kernels.batch import Batch
from ..measures.intervals import wilson_interval
from ..measures.latencies import from_outside, tpot_s
from ..measures.system_results import EarlyStopOutcome
from ..workloads.workload import Workload
from .queue import Queue
from .queues import Queues
from .stage_batch import StageBatch
from .system import System

_AT_A_TIME = 64  # requests of a system that are looked at together


@dataclass(frozen=True)
class EarlyStopCriterion:
    """What a system is measured by.

    Parameters
    ----------
    target
        Share of the window's requests that must meet the SLOs.
    warmup, cooldown
        Shares of the requests, the first and the last to arrive, that are not in the window.
    joint
        A request must meet all SLOs; otherwise each SLO must be met by the share on its own.
    """

    target: float
    warmup: float
    cooldown: float
    joint: bool


@dataclass(frozen=True)
class EarlyStopRequest:
    """Which of C systems to stop, and by what.

    Parameters
    ----------
    criterion
        What all are measured by.
    limits
        Seconds by latency ("ttft", "tpot", "e2e", "itl_max"), each float64 [C]; NaN: not checked.
    on_pass, on_fail
        bool [C], whether to stop a system that is certain to pass, or to fail.
    """

    criterion: EarlyStopCriterion
    limits: Mapping[str, Floats]
    on_pass: Bools
    on_fail: Bools


def limited(limits: Mapping[str, Floats]) -> list[str]:
    """The SLOs that are set for some system."""
    return [name for name, limit in limits.items() if not np.isnan(limit).all()]


class QueueWindow:
    """The requests of a queue that count: places begin ... end - 1. Those of the window that are not in the queue never
    fit: they have missed.

    stretch   by which the workload's arrivals were divided before they were put in order
    left_out  [n] of each place of the queue: requests of the window that come before it and are not in the queue
    enough    requests that must meet the SLOs for a pass beyond chance; more than there are where none can
    too_few   no more than so many meet them when it fails beyond chance; -1 where it cannot
    """

    def __init__(self, queue: Queue, workload: Workload, stretch: float, criterion: EarlyStopCriterion) -> None:
        n = len(workload)
        first = int(n * criterion.warmup)
        end = n - int(n * criterion.cooldown)
        self.size = max(end - first, 0)
        rank = np.empty(n, np.int64)
        rank[np.argsort(workload.arrival_s / stretch, kind="stable")] = np.arange(n)
        rank = rank[queue.positions]
        self.begin, self.end = np.searchsorted(rank, [first, max(first, end)]).tolist()
        self.left_out = (rank - first) - (np.arange(rank.size) - self.begin)
        share = np.arange(self.size + 1) / max(self.size, 1)
        low, high = wilson_interval(share, np.full(share.size, self.size))
        self.enough = int(np.count_nonzero(~((share >= criterion.target) & (low >= criterion.target))))
        self.too_few = int(np.count_nonzero((share < criterion.target) & (high < criterion.target))) - 1


class EarlyStopMonitor:
    """Follows systems of an engine, each of which has one row of its outcome: those of one instance, and those whose
    router looks at the instances.

    names        of the SLOs that are set for some system
    outcome      the verdicts by row
    row_of_lane  by Params.lane
    windows      of each queue; None where nobody follows it
    """

    def __init__(
        self, joint: bool, names: Sequence[str], batch: StageBatch, rows: int, windows: Sequence[QueueWindow | None]
    ) -> None:
        self.outcome = EarlyStopOutcome.none_stopped(rows)
        self.joint, self.routed, self.width = joint, batch.routed, batch.width
        self.row_of_lane = batch.stage_of_lane if batch.routed else np.arange(rows)
        self.limits = {name: np.full(rows, np.nan) for name in names}
        self.missed = np.zeros((1 if self.joint else max(len(names), 1), rows), np.int64)
        self.followed, self.on_pass, self.on_fail = (np.zeros(rows, np.bool_) for _ in range(3))
        self.rate, self.outside_s = np.ones(rows), np.zeros(rows)
        # Place in the queue of the request that is counted next, and behind the window's last.
        self.queue, self.next, self.end = (np.zeros(rows, np.int64) for _ in range(3))
        shape = (len(windows), batch.width)
        self.arrival, self.gaps, self.left_out = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
        self.facts = np.zeros((5, len(windows)), np.int64)
        for row, (window, queue) in enumerate(zip(windows, batch.queues, strict=True)):
            if window is not None:
                here = row, slice(len(queue))
                self.arrival[here], self.gaps[here] = queue.arrival_s, queue.output_tokens - 1
                self.left_out[here] = window.left_out
                self.facts[:, row] = window.begin, window.end, window.size, window.enough, window.too_few

    def follow(
        self,
        rows: Ints,
        queue: Ints,
        rate: Floats,
        outside_s: Floats,
        limits: Mapping[str, Floats],
        on_pass: Bools,
        on_fail: Bools,
    ) -> None:
        """Begin anew with `rows`, which serve `queue` at `rate`, `outside_s` as of SystemResults; the others as in
        EarlyStopRequest. All [n]."""
        for name, limit in self.limits.items():
            limit[rows] = limits[name]
        self.queue[rows], self.rate[rows], self.outside_s[rows] = queue, rate, outside_s
        self.on_pass[rows], self.on_fail[rows] = on_pass, on_fail
        self.next[rows], self.end[rows], size, _, _ = self.facts[:, queue]
        self.missed[:, rows] = 0
        self.followed[rows] = (size > 0) & (self.on_pass[rows] | self.on_fail[rows])
        self.outcome.stopped[rows] = False

    def __call__(self, batch: Batch) -> Bools:
        """Look at what has happened; the lanes of systems whose verdict has fallen. [lanes of the batch]"""
        lane = batch.params.lane
        now = np.full(self.followed.size, np.nan)
        if not self.routed:  # an idle instance is behind the others
            now[lane] = batch.clock.now
        rows = (self.followed & (self.next < self.end)).nonzero()[0]
        while rows.size:
            rows = self._count(batch, rows, now[rows, None])
        lanes: Bools = self.outcome.stopped[self.row_of_lane[lane]]
        return lanes

    def _count(self, batch: Batch, rows: Ints, now: Floats) -> Ints:
        """Count on from `next`, as many requests of each of `rows` as are certain; the rows that may go on."""
        place = self.next[rows, None] + np.arange(_AT_A_TIME)
        end = self.end[rows, None]
        there = place < end
        place = np.minimum(place, end - 1)
        certain, misses = self._look(batch, rows, place, now)
        counted = np.logical_and.accumulate(certain & there, axis=1)
        count = counted.sum(axis=1)
        queue = self.queue[rows]
        begin, _, size, enough, too_few = self.facts[:, queue, None]
        left_out = self.left_out[queue[:, None], place]
        asked = place - begin + 1 + left_out
        missed = np.cumsum(misses & counted, axis=2) + self.missed[:, rows, None]
        all_missed = missed + left_out
        fails = (size - all_missed <= too_few).any(axis=0) & self.on_fail[rows, None]
        passes = (asked - all_missed >= enough).all(axis=0) & self.on_pass[rows, None]
        falls = counted & (fails | passes)
        hit = falls.any(axis=1)
        fallen = hit.nonzero()[0]
        if fallen.size:
            first = falls[fallen].argmax(axis=1)
            requests, row, all_of = asked[fallen, first], rows[fallen], size[fallen, 0]
            most = all_missed[:, fallen, first].max(axis=0)
            self.followed[row] = False
            self.outcome.stopped[row] = True
            self.outcome.requests[row] = requests
            self.outcome.attainment[row] = (requests - most) / requests
            self.outcome.low[row], self.outcome.high[row] = (requests - most) / all_of, (all_of - most) / all_of
        self.missed[:, rows] = missed[:, :, -1]
        self.next[rows] += count
        on: Ints = rows[(count == _AT_A_TIME) & (self.next[rows] < self.end[rows]) & ~hit]
        return on

    def _look(self, batch: Batch, rows: Ints, place: Ints, now: Floats) -> tuple[Bools, Bools]:
        """Which requests are certain [n, K], and which have missed [S, n, K]; `place` [n, K], `now` [n, 1].

        What has not happened yet cannot happen before now, and later than that is worse: a request that misses if it
        happened now misses (NaN: now is not known). The times are computed as in
        latencies.py, so that roundings agree.
        """
        cell = rows[:, None] * self.width + place
        queue = self.queue[rows, None]
        times = batch.times
        arrival, gaps = self.arrival[queue, place] / self.rate[rows, None], self.gaps[queue, place]
        first, finish = times.first_token_s[cell], times.finish_s[cell]
        began, ended = ~np.isnan(first), ~np.isnan(finish)
        earliest = np.where(began, first, now)
        # A request of one token is done with its first, though a lane with reserved memory may only see it later.
        last = np.where(ended, finish, np.where(began & (gaps == 0), first, now))
        outside = self.outside_s[rows, None]
        seconds = {"ttft": from_outside(earliest - arrival, outside), "e2e": from_outside(last - arrival, outside)}
        if "tpot" in self.limits:
            seconds["tpot"] = tpot_s(earliest, last, gaps)  # 0 or NaN before the first token
        if "itl_max" in self.limits:
            seconds["itl_max"] = np.where(ended & (gaps > 0), times.itl_max_s[cell], 0.0)
        misses = [seconds[name] > limit[rows, None] for name, limit in self.limits.items()]
        missed: Bools = np.array(misses) if misses else np.zeros((1, *place.shape), np.bool_)
        if self.joint:
            missed = np.logical_or.reduce(missed, axis=0)[None]
        certain: Bools = ended | missed.all(axis=0)
        return certain, missed


class EarlyStopMonitors:
    """What follows the systems of each engine: those that it serves from the first token to the last."""

    def __init__(self, request: EarlyStopRequest, systems: Sequence[System], queues: Queues) -> None:
        self.request, self.queues = request, queues
        self.outside_s = np.array([system.outside_s for system in systems], np.float64)
        self.followed = np.array(
            [
                len(system.roles) == 1 and system.roles[0] != "prefill" and not system.skips_one_token
                for system in systems
            ],
            np.bool_,
        )
        self.monitors: list[tuple[EarlyStopMonitor, Ints, Ints]] = []  # rows of a monitor, and which systems they are

    def __call__(self, batch: StageBatch, places: Ints) -> EarlyStopMonitor:
        rows = np.arange(len(batch.stages)) if batch.routed else np.cumsum(batch.counts) - batch.counts
        alone = self.followed[places] & ((batch.counts == 1) | batch.routed)
        rows, systems = rows[alone], places[alone]
        windows: list[QueueWindow | None] = [None] * len(batch.queues)
        for row, which in dict(zip(batch.queue_of[rows].tolist(), self.queues.of_system[systems], strict=True)).items():
            windows[row] = self._window(which)
        asked = self.request
        all_rows = len(batch.stages) if batch.routed else batch.stage_of_lane.size
        monitor = EarlyStopMonitor(asked.criterion.joint, limited(asked.limits), batch, all_rows, windows)
        rate = np.array([stage.rate for stage in batch.stages])[alone]
        limits = {name: limit[systems] for name, limit in asked.limits.items()}
        outside, stops = self.outside_s[systems], (asked.on_pass[systems], asked.on_fail[systems])
        monitor.follow(rows, batch.queue_of[rows], rate, outside, limits, *stops)
        self.monitors.append((monitor, rows, systems))
        return monitor

    def _window(self, which: int) -> QueueWindow:
        queues = self.queues
        return QueueWindow(
            queues.queues[which], queues.workloads[which], queues.stretches[which], self.request.criterion
        )

    def outcome(self) -> EarlyStopOutcome:
        """The verdicts by system, when all has run."""
        found = EarlyStopOutcome.none_stopped(self.followed.size)
        for monitor, rows, systems in self.monitors:
            for name in vars(found):
                getattr(found, name)[systems] = getattr(monitor.outcome, name)[rows]
        return found
