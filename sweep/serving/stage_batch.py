"""Stages that advance together: their lanes of the engine, and whose result is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Int32s, Ints
from ..hardware.steps import Step
from ..kernels.batch import Batch
from ..kernels.chains import Chains
from ..kernels.clients import Clients
from ..kernels.engine import Engine
from ..kernels.params import NO_LIMIT, Params
from ..kernels.pool import Pool, Source, new_pool
from ..kernels.prefix_cache import PrefixCache, new_prefix_cache
from ..kernels.request_rows import RequestRows, pairs_of, prefix_sums
from ..kernels.request_times import RequestTimes, new_request_times
from ..kernels.router import Groups, Router
from ..kernels.rules import LISTED
from ..kernels.step_tables import NO_TABLES, JoinedTables, StepTables
from ..kernels.steplog import StepLog
from ..kernels.steptime import StepCoefficients
from .orders import by_rank, levels
from .queue import Queue
from .routers import ROUTERS
from .stages import UNLIMITED_TOKENS, Stage, StageResults

_WIDTH = 32  # requests that a lane with a row of its own has room for at first


class StageBatch:
    """Stages that advance together: their lanes, in order of stage, instance, lane."""

    def __init__(self, stages: list[Stage], routed: bool) -> None:
        self.stages, self.routed = stages, routed
        self.rules = stages[0].kind
        self.listed = self.rules.kind == LISTED
        self.counts = np.array([stage.instances * stage.lanes for stage in stages], np.int64)
        self.stage_of_lane = np.repeat(np.arange(len(stages)), self.counts)
        self.queues: list[Queue] = []  # the distinct ones
        self.queue_of: Ints = np.zeros(0, np.int64)  # of each lane, or routed: of each stage
        known: dict[Any, int] = {}
        queue_of = []
        for number, stage in enumerate(stages):
            key: tuple[Any, ...] = (id(stage.queue),)
            if stage.clients:  # its requests arrive at times of their own
                key += (number,)
            whole = routed or stage.instances == 1
            if not whole:
                seed = stage.router_seed if ROUTERS[stage.router].seeded else None
                key += (stage.router, seed, stage.draw_stage, stage.instances)
            if key not in known:
                known[key] = len(self.queues)
                self.queues += [stage.queue] if whole else _split(stage)
            queue_of += [known[key] + i for i in range(1 if whole else stage.instances)]
        self.queue_of = np.array(queue_of, np.int64)
        self.width = max((len(queue) for queue in self.queues), default=0)

    def engine(self, log: StepLog | None, itl: bool = False) -> Engine:
        """The engine of all lanes, before its first step."""
        per_lane = [self.stages[i] for i in self.stage_of_lane]
        lanes = len(per_lane)
        arrival, prompt, total = self._requests()
        longest = np.maximum(total.max(axis=1, initial=1), 1).astype(np.int64)
        owner = self.queue_of[self.stage_of_lane] if self.routed else self.queue_of  # queue of each lane
        # A block that holds the longest request is as good as any larger one, and the engine's rows are as wide as one.
        size = np.minimum(longest[owner], [min(stage.block_size or 1, UNLIMITED_TOKENS) for stage in per_lane])
        n = np.array([len(queue) for queue in self.queues], np.int64)
        coefficients, columns, tables = self._step_times(total)
        params = Params(
            lane=np.arange(lanes),
            row=owner * (self.width + 3),
            block_row=np.zeros(lanes, np.int64),
            out=np.arange(lanes) * self.width,
            n=n[owner],
            rate=np.array([stage.rate for stage in per_lane]),
            block_size=size,
            block_size_f=size.astype(np.float64),
            blocks_per_token=1 / size,
            blocks_in_doubt=1 - 2 / size,
            num_blocks=_limits([stage.num_blocks for stage in per_lane]),
            max_running=_limits([stage.max_running for stage in per_lane]),
            budget=_limits([stage.token_budget for stage in per_lane]),
            max_tokens=_limits([stage.max_tokens for stage in per_lane]),
            mixes_prefill=np.array([stage.rules.decode_beside_prefill for stage in per_lane], np.float64),
            takes_chunks=np.array([stage.rules.takes_chunks for stage in per_lane], np.bool_),
            chunk_fits=np.array([stage.chunk_fits for stage in per_lane], np.bool_),
            unsplit=np.array([stage.unsplit for stage in per_lane], np.bool_),
            spare=np.array([stage.spare_blocks for stage in per_lane], np.float64),
            most_share=np.array([stage.most_share or np.inf for stage in per_lane], np.float64),
            by_priority=np.array([stage.by_priority for stage in per_lane], np.bool_),
            caches=np.array([stage.caches for stage in per_lane], np.bool_),
            is_async=np.array([stage.is_async for stage in per_lane], np.bool_),
            stages=np.array([stage.pipeline for stage in per_lane], np.float64),
            coefficients=coefficients,
            tables=columns,
        )
        block_sizes = sorted(set(size.tolist())) or [1]
        cache = self._cache(owner, params)
        kept: dict[str, Any]
        if not self.routed and not self.rules.ordered:
            pairs, pair_of_lane = np.unique(np.stack([owner, size]), axis=1, return_inverse=True)
            params.block_row = pair_of_lane.ravel() * (self.width + 3)
            rows = self._rows(arrival, prompt, total, pairs)
            times = new_request_times(lanes * self.width, itl=itl, caches=cache is not None)
            self._first_tokens(times, owner, params.rate)
            kept = {"itl": itl, "log": log, "tables": tables, "cache": cache}
            return Engine(Batch(rows, params, times, block_sizes, self.rules, **kept))
        pool = self._pool(owner, params.rate, arrival, prompt, total) if self.rules.ordered else None
        router, count = None, lanes
        if self.routed:
            router, count = self._router(arrival, prompt, total), len(self.stages)
            params.out = self.stage_of_lane * self.width
        width = min(_WIDTH, self.width + 4) if self.routed else self.width + 4
        params.row = params.block_row = np.arange(lanes) * width
        params.rate = np.ones(lanes)
        by_priority = bool(params.by_priority.any())
        times = new_request_times(
            count * self.width, routed=self.routed, itl=itl, by_priority=by_priority, caches=cache is not None
        )
        self._first_tokens(times, self.queue_of, np.array([stage.rate for stage in self.stages]))
        rows = self._own_rows(lanes, width)
        kept = {"itl": itl, "log": log, "tables": tables, "cache": cache}
        return Engine(Batch(rows, params, times, block_sizes, self.rules, router=router, pool=pool, **kept))

    def _cache(self, owner: Ints, params: Params) -> PrefixCache | None:
        """The prefix caches of all lanes, None without any; `owner` [L] is the queue of each."""
        if not params.caches.any():
            return None
        known: dict[tuple[int, int], int] = {}
        chains: list[Chains] = []
        which = np.zeros(owner.size, np.int64)
        for lane in params.caches.nonzero()[0]:
            key = int(owner[lane]), int(params.block_size[lane])
            if key not in known:
                known[key] = len(chains)
                chains.append(self.queues[key[0]].chains(key[1]))
            which[lane] = known[key]
        return new_prefix_cache(owner.size, chains, which, params.num_blocks)

    def _step_times(self, total: Floats) -> tuple[Floats, Floats, Floats | None]:
        """Params.coefficients and Params.tables, and all tables joined, None without any."""
        known: dict[Step, int] = {}
        coefficients: list[Sequence[float]] = []
        columns: list[Sequence[float]] = []
        joined = JoinedTables()
        # A step holds no more than all there is to do: tables need not be longer.
        most = int(min(total.sum(axis=1).max(initial=1), UNLIMITED_TOKENS)) + 1
        for stage in self.stages:
            if stage.step in known:
                continue
            known[stage.step] = len(known)
            c = stage.step.coefficients()
            coefficients.append(
                (0.0,) * len(StepCoefficients._fields) if isinstance(c, StepTables) else tuple(map(float, c))
            )
            columns.append(joined.add(c, most, self.width + 1) if isinstance(c, StepTables) else NO_TABLES)
        of_stage = np.array([known[stage.step] for stage in self.stages], np.int64)
        rows, tables = of_stage[self.stage_of_lane], joined.join()
        of_lanes = np.zeros((rows.size, 0)) if tables is None else np.array(columns)[rows]
        return np.array(coefficients, np.float64)[rows], of_lanes, tables

    def _first_tokens(self, times: RequestTimes, queue_of: Ints, rate: Floats) -> None:
        """Note the first tokens of requests that come with them, for each row of `times` of a queue and rate."""
        if self.rules.prefills:
            return
        rows = times.first_token_s.reshape(queue_of.size, self.width)
        for row, which, stretch in zip(rows, queue_of.tolist(), rate.tolist(), strict=True):
            queue = self.queues[which]
            first = queue.arrival_s / stretch if queue.first_token_s is None else queue.first_token_s
            row[: len(queue)] = first

    def _requests(self) -> tuple[Floats, Floats, Floats]:
        """Arrival, prompt and prompt + output of the requests of every queue, three places more. [Q, width + 3]"""
        arrival = np.full((len(self.queues), self.width + 3), np.inf)
        prompt, total = np.zeros(arrival.shape), np.zeros(arrival.shape)
        for row, queue in enumerate(self.queues):
            arrival[row, : len(queue)] = queue.arrival_s
            prompt[row, : len(queue)] = queue.prompt_tokens
            np.add(queue.prompt_tokens, queue.output_tokens, out=total[row, : len(queue)])
        for row, stage in zip(self.queue_of, self.stages, strict=False):
            if stage.clients:
                arrival[row, stage.clients :] = np.inf
        return arrival, prompt, total

    def _rows(self, arrival: Floats, prompt: Floats, total: Floats, pairs: Ints) -> RequestRows:
        """Requests of independent lanes; `pairs` [2, *] are the queues and block sizes that occur together."""
        nothing, rules = np.zeros(0), self.rules
        prompts, totals = prompt[:, :-1], total[:, :-1]
        held = prompts if rules.prefills else prompts + 1
        return RequestRows(
            arrival.ravel(),
            prompt.ravel(),
            total.ravel(),
            prefix_sums(prompts).ravel() if rules.prefills else nothing,
            prefix_sums(pairs_of(prompts)).ravel() if rules.prefills else nothing,
            nothing if rules.reserve else prefix_sums(np.ceil(held[pairs[0]] / pairs[1][:, None])).ravel(),
            prefix_sums(totals).ravel() if rules.reserve else nothing,
            np.zeros(0, np.int64),
            self.width + 3,
        )

    def _own_rows(self, lanes: int, width: int) -> RequestRows:
        """Room for the requests that will be sent to each lane, or placed in its order of service."""
        rules, nothing = self.rules, np.zeros(0)

        def zeros(there: bool = True) -> Floats:
            return np.zeros(lanes * width) if there else nothing

        return RequestRows(
            np.full(lanes * width, np.inf),
            zeros(),
            zeros(),
            zeros(rules.prefills),
            zeros(rules.prefills),
            zeros(not rules.reserve),
            zeros(rules.reserve),
            np.zeros(lanes * width, np.int64),
            width,
        )

    def _pool(self, owner: Ints, rate: Floats, arrival: Floats, prompt: Floats, total: Floats) -> Pool:
        """Who waits in lanes that do not serve in order of arrival; `owner` [L] is the queue of each."""
        stages = [self.stages[i] for i in self.stage_of_lane]
        known: dict[tuple[int, str], int] = {}
        rows = [known.setdefault((queue, stage.order), len(known)) for queue, stage in zip(owner, stages, strict=True)]
        ranked, rank_of, level_of = np.zeros((3, len(known), self.width), np.int64)
        for (queue, order), row in known.items():
            served = by_rank(self.queues[queue], order)
            ranked[row, : served.size] = served
            rank_of[row, served] = np.arange(served.size)
            level_of[row, served] = levels(self.queues[queue], order)[served]
        return new_pool(
            Source(arrival.ravel(), prompt.ravel(), total.ravel(), ranked.ravel(), rank_of.ravel(), level_of.ravel()),
            source_row=owner * (self.width + 3),
            rank_row=np.array(rows, np.int64) * self.width,
            length=np.array([len(self.queues[queue]) for queue in owner], np.int64),
            speed=rate,
            max_wait_s=np.array([np.inf if stage.max_wait_s is None else stage.max_wait_s for stage in stages]),
            width=self.width,
            routed=self.routed,
        )

    def _router(self, arrival: Floats, prompt: Floats, total: Floats) -> Router:
        stages = self.stages
        instances = max(stage.instances for stage in stages)
        lanes = np.full((len(stages), instances, max(stage.lanes for stage in stages)), -1, np.int64)
        drawn: list[Int32s] = [np.zeros((0, 2), np.int32)]
        drawn_row, known, end = [], {}, 0
        begin = 0
        for row, stage in zip(lanes, stages, strict=True):
            count = stage.instances * stage.lanes
            row[: stage.instances, : stage.lanes] = np.arange(begin, begin + count).reshape(-1, stage.lanes)
            begin += count
            key = (id(stage.queue), stage.router, stage.router_seed, stage.draw_stage, stage.instances)
            if ROUTERS[stage.router].draw is not None and key not in known:
                known[key] = end
                drawn.append(_draws(stage))
                end += len(stage.queue)
            drawn_row.append(known.get(key, 0))
        which = self.queue_of
        routers = [ROUTERS[stage.router] for stage in stages]
        loads = tuple(dict.fromkeys(row.load for row in routers))
        groups = Groups(
            members=lanes,
            rule=np.array([row.rule for row in routers], np.int64),
            load=np.array([loads.index(row.load) for row in routers], np.int64),
            count=np.array([len(stage.queue) for stage in stages], np.int64),
            next=np.zeros(len(stages), np.int64),
            stream=which * arrival.shape[1],
            drawn_row=np.array(drawn_row, np.int64),
            cells=np.arange(len(stages)) * self.width,
            speed=np.array([stage.rate for stage in stages]),
        )
        clients = None
        if stages[0].clients:
            numbers = np.array([stage.clients for stage in stages], np.int64)
            think_s = np.array([stage.think_s for stage in stages], np.float64)
            clients = Clients(np.minimum(numbers, self.width), think_s, groups.cells, self.width)
        return Router(groups, arrival.ravel(), prompt.ravel(), total.ravel(), np.concatenate(drawn), loads, clients)

    def hand_back(self, engine: Engine, chosen: Ints, lanes: Ints, results: StageResults) -> None:
        """Write outcomes into the rows `chosen` of `results`, and facts of lanes into its `lanes`."""
        times = engine.batch.times
        names = ["first_token_s", "finish_s", "admitted_s", "preemptions"]
        if engine.batch.keeps_itl:
            names.append("itl_max_s")
        if engine.batch.cache is not None:
            names.append("cached_tokens")
        whole = self.routed or all(stage.instances == 1 for stage in self.stages)
        rows = len(self.stages) if self.routed else len(self.stage_of_lane)
        values = {name: getattr(times, name).reshape(rows, self.width) for name in names}
        router = engine.batch.router
        if router is not None and router.clients is not None:
            arrival = router.arrivals.reshape(len(self.queues), -1)
            for stage, row in zip(chosen.tolist(), self.queue_of.tolist(), strict=True):
                results.arrivals[stage] = arrival[row, : len(self.queues[row])]
        if whole and values["finish_s"].shape == results.finish_s.shape:
            for name in names:  # as they are: a copy would double the memory of a large batch
                setattr(results, name, values[name])
        else:
            for name in (*names, "instance"):
                if not getattr(results, name).flags.writeable:
                    setattr(results, name, getattr(results, name).copy())
            if whole:
                for name in names:
                    getattr(results, name)[chosen, : self.width] = values[name]
            else:
                self._gather(values, chosen, results)
        sizes = np.array([len(queue) for queue in self.queues], np.int64)
        if not self.routed:
            results.lane_requests[lanes] = sizes[self.queue_of]
            return
        if not results.instance.flags.writeable:
            results.instance = results.instance.copy()
        served = times.served_by.reshape(rows, self.width)
        there = (np.arange(self.width) < sizes[self.queue_of][:, None]) & (served >= 0)  # -1: never routed, as stopped
        results.lane_requests[lanes] = np.bincount(served[there], minlength=lanes.size)
        begins = np.cumsum(self.counts) - self.counts
        per_instance = np.array([stage.lanes for stage in self.stages], np.int64)
        served -= begins[:, None].astype(np.int32)
        served //= per_instance[:, None].astype(np.int32)
        results.instance[chosen, : self.width] = np.where(there, served, 0)

    def _gather(self, values: dict[str, npt.NDArray[Any]], chosen: Ints, results: StageResults) -> None:
        """Put the requests of each instance back to their places in the stage's queue, for each distinct queue."""
        begins = np.cumsum(self.counts) - self.counts
        instance = np.arange(self.stage_of_lane.size) - begins[self.stage_of_lane]
        split = self.counts[self.stage_of_lane] > 1
        for which, queue in enumerate(self.queues):
            here = (self.queue_of == which).nonzero()[0]
            if not here.size:
                continue
            places = queue.positions if split[here[0]] else np.arange(len(queue))
            at = (chosen[self.stage_of_lane[here]][:, None], places)
            for name, rows in values.items():
                getattr(results, name)[at] = rows[here, : len(queue)]
            results.instance[at] = instance[here][:, None]


def _split(stage: Stage) -> list[Queue]:
    """The queue of each instance."""
    instance = _draws(stage)[:, 0]
    return [stage.queue.part((instance == i).nonzero()[0]) for i in range(stage.instances)]


def _draws(stage: Stage) -> Int32s:
    return ROUTERS[stage.router].drawn([stage.router_seed, stage.draw_stage], len(stage.queue), stage.instances)


def _limits(values: list[int | None]) -> Floats:
    """Limits as the engine takes them: far beyond what any run holds, one is as good as another."""
    return np.array([NO_LIMIT if value is None else min(value, UNLIMITED_TOKENS) for value in values], np.float64)
