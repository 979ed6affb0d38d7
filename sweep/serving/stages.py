"""Stages of serving systems as lanes of the engine: what runs together, and whose result is whose.

A *stage* is all instances of a system that a request meets at once: those of a colocated system, or the prefill or the
decode instances of a disaggregated one. Stages of the same kind advance in one batch. S stages, N requests of the
longest queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Int32s, Ints
from ..hardware.steps import Step
from ..kernels.counters import Totals, new_totals
from ..kernels.itl_bins import BINS
from ..kernels.params import NO_LIMIT
from ..kernels.rules import LISTED, Rules
from .orders import DEFAULT_ORDER
from .queue import Queue
from .routers import DEFAULT_ROUTER, ROUTERS

_TIMES = ("first_token_s", "finish_s", "admitted_s")
UNLIMITED_TOKENS = int(NO_LIMIT) - 1


@cache  # thousands of stages are of a few kinds
def _kind(rules: Rules, own_row: str | None, beside: bool, ordered: bool) -> Rules:
    return replace(rules, own_row=own_row, decode_beside_prefill=beside, takes_chunks=False, ordered=ordered)


@dataclass(frozen=True, eq=False)
class Stage:
    """Instances that share a queue.

    lanes        of each instance, which takes turns with its requests: pp of decode instances
    num_blocks   of a lane; under reserved memory its capacity in tokens; None: no limit
    draw_stage   of the router's random numbers
    order        who is admitted next (orders.py), before the prefill
    max_wait_s   who has waited so long goes first; None: nobody does
    chunk_fits   under rules that take chunks: who is admitted needs blocks for the first alone
    unsplit      under rules that take chunks: there is one, the whole prompt
    most_share   tokens of a request in a step while others are there; None: no limit
    caches       there is a prefix cache
    is_async     the batch of a step is fixed when the one before begins
    spare_blocks that an admission leaves free while others run
    clients      who send their next request think_s after an answer; 0: requests come at their own times
    """

    queue: Queue
    step: Step
    rules: Rules
    rate: float = 1.0
    instances: int = 1
    lanes: int = 1
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    max_tokens: int | None = None
    pipeline: int = 1
    router: str = DEFAULT_ROUTER
    router_seed: int = 0
    draw_stage: int = 0
    order: str = DEFAULT_ORDER
    max_wait_s: float | None = None
    chunk_fits: bool = False
    spare_blocks: int = 0
    unsplit: bool = False
    most_share: int | None = None
    is_async: bool = False
    caches: bool = False
    clients: int = 0
    think_s: float = 0.0

    @property
    def kind(self) -> Rules:
        """Stages of one kind can advance together."""
        beside = self.rules.decode_beside_prefill or not self.rules.reserve
        own_row = LISTED if self.listed else self.rules.own_row
        return _kind(self.rules, own_row, beside, self.order != DEFAULT_ORDER)

    @property
    def listed(self) -> bool:
        """Whether it matters who stands before whom in the running list."""
        return self.caches or self.is_async or self.by_priority or self.most_share is not None

    @property
    def plain(self) -> Stage | None:
        """The same without its prefix cache, if that makes no difference until somebody is preempted: nothing is shared
        then, and freed blocks count the same whether they are known or not. None if it may, or has none."""
        if not self.caches:
            return None
        without = replace(self, caches=False)
        if without.listed or self.queue.shares(self.block_size or 1):
            return None
        return without

    @property
    def by_priority(self) -> bool:
        """Whether the preempted wait among the others, as in vLLM."""
        return self.rules.takes_chunks and self.order == "priority"

    @property
    def routed(self) -> bool:
        """Whether requests are routed while the instances run."""
        return self.clients > 0 or self.lanes > 1 or (self.instances > 1 and not ROUTERS[self.router].splits)


@dataclass
class StageResults:
    """Outcomes by stage and place in its queue, [S, N], NaN where nothing happened; sums over its instances, [S]."""

    first_token_s: Floats
    finish_s: Floats
    admitted_s: Floats
    preemptions: Int32s
    cached_tokens: Int32s  # that its first admission found in a prefix cache
    instance: Int32s  # that served the request
    itl_max_s: Floats  # the longest time between two tokens; nothing unless these are kept
    itl_counts: Floats  # [S, kernels.itl_bins.BINS] likewise
    totals: Totals
    # Per lane, [K], by stage, then instance, then lane.
    lane_stage: Ints
    lane_instance: Ints
    lane_requests: Ints
    lane_totals: Totals
    logs: dict[int, list[tuple[int, int, dict[str, npt.NDArray[Any]]]]] = field(default_factory=dict)
    """By stage: instance, lane of the instance, columns of kernels.steplog."""
    arrivals: dict[int, Floats] = field(default_factory=dict)
    """By stage whose clients wait for answers: when its requests arrived."""

    def replace(self, stages: Ints, other: StageResults) -> None:
        """The outcomes of `stages` [n] are those of another run, in which they were alone, in this order."""
        width = other.finish_s.shape[1]
        for name in (*_TIMES, "preemptions", "cached_tokens", "instance", "itl_max_s"):
            rows = getattr(self, name)
            rows = rows if rows.flags.writeable else rows.copy()
            rows[stages, :width] = getattr(other, name)
            setattr(self, name, rows)
        self.itl_counts[stages] = other.itl_counts
        place = np.full(int(self.lane_stage.max(initial=0)) + 1, -1)
        place[stages] = np.arange(stages.size)
        lanes = (place[self.lane_stage] >= 0).nonzero()[0]
        order = lanes[np.argsort(place[self.lane_stage[lanes]], kind="stable")]
        self.lane_requests[order] = other.lane_requests
        for mine, theirs, rows in (
            (self.totals, other.totals, stages),
            (self.lane_totals, other.lane_totals, order),
        ):
            for counter, values in theirs.rows():
                getattr(mine, counter.name)[rows] = values
        for row, log in other.logs.items():
            self.logs[int(stages[row])] = log
        for row, arrival in other.arrivals.items():
            self.arrivals[int(stages[row])] = arrival


def no_results(stages: int, width: int, lanes: int, itl: bool) -> StageResults:
    """As long as nothing has happened."""

    def nan() -> Floats:
        return np.broadcast_to(np.nan, (stages, width))

    def whole(n: int) -> Ints:
        return np.zeros(n, np.int64)

    return StageResults(
        nan(),
        nan(),
        nan(),
        np.broadcast_to(np.int32(0), (stages, width)),
        np.broadcast_to(np.int32(0), (stages, width)),
        np.broadcast_to(np.int32(0), (stages, width)),
        nan(),
        np.zeros((stages, BINS * itl)),
        new_totals(0),
        whole(lanes),
        whole(lanes),
        whole(lanes),
        new_totals(lanes),
    )
