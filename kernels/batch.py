"""What the phases are given: the lanes of a batch, as records, and facts about all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import ZERO, Bools, Floats, Ints
from .clock import new_clock
from .counters import new_counts
from .decodes import new_decodes
from .inflow import new_inflow
from .itl_bins import BINS
from .memory import new_memory
from .params import NO_LIMIT, Params
from .pool import Pool
from .prefills import NO_PREFILL, new_prefills
from .prefix_cache import PrefixCache
from .records import compact
from .request_rows import RequestRows, blocks_for
from .request_times import RequestTimes
from .reserved_memory import new_reserved_memory
from .router import Router
from .rules import LISTED, Rules
from .running_list import new_running_list
from .step_times import LaneStepTimes
from .steplog import StepLog
from .waiting_queue import new_waiting_queue


def has_room(batch: Batch) -> Bools:
    """Lanes in which one more may run. [L]"""
    room: Bools = batch.decodes.running < batch.params.max_running
    if batch.any_chunks:
        room &= left_of_budget(batch) > ZERO
        room &= ~batch.queue.preempting
    return room


def left_of_budget(batch: Batch) -> Floats:
    """Tokens that the coming step leaves to who is admitted, in lanes that admit nobody without; elsewhere no limit.
    [L]"""
    p, left = batch.params, batch.prefills.prefill_left
    rest = p.budget - batch.decodes.decoding - np.where(left < NO_PREFILL, left, ZERO)
    return np.where(p.takes_chunks, rest, NO_LIMIT)


def asked_of_head(batch: Batch, left: Floats) -> Floats:
    """Blocks that must be free for the head of the queue to be admitted, given what is left of the budget. [L]"""
    p, blocks = batch.params, batch.queue.head_blocks
    if batch.any_chunk_fits:
        blocks = np.where(p.chunk_fits, blocks_for(np.minimum(_tokens_of_head(batch), left), p.block_size_f), blocks)
    if batch.any_spare:
        blocks = blocks + p.spare * (batch.decodes.running > ZERO)
    return blocks


def whole_in_budget(batch: Batch, left: Floats) -> Bools:
    """Lanes whose head finds what is `left` [L] of the budget enough, where prompts are not split. [L]"""
    enough: Bools = (_tokens_of_head(batch) <= left) | ~batch.params.unsplit
    return enough


def _tokens_of_head(batch: Batch) -> Floats:
    """Tokens that the head of each queue has to compute. [L]"""
    queue = batch.queue
    tokens: Floats = batch.requests.prompt[batch.params.row + queue.head]
    again = queue.preempted_waiting.nonzero()[0]
    tokens[again] = queue.preempted_head_tokens(again)
    return tokens


class Batch:
    """Lanes that advance together.

    requests, times    what they serve, and what became of it
    params             what does not change while a lane runs
    clock, queue, prefills, decodes, memory, reserved_memory, inflow, counts
                       the records: each has one owner, the file of its class, which alone changes it
    pool               a record too, of lanes that do not serve in order of arrival; or None
    cache              the prefix cache, a record too; or None
    router, log        of routed lanes, and of lanes whose steps are written out; or None
    tables             step_tables.JoinedTables of lanes whose step times are looked up; or None

    The other attributes are facts about all lanes, so that what nobody needs is not computed: what a fact leaves out
    would change nothing.
    """

    def __init__(
        self,
        requests: RequestRows,
        params: Params,
        times: RequestTimes,
        block_sizes: list[int],
        rules: Rules,
        *,
        router: Router | None = None,
        pool: Pool | None = None,
        itl: bool = False,
        log: StepLog | None = None,
        tables: Floats | None = None,
        cache: PrefixCache | None = None,
    ) -> None:
        lanes = params.n.size
        self.requests, self.params, self.times, self.rules = requests, params, times, rules
        self.router, self.pool, self.log, self.cache = router, pool, log, cache
        self.answers = router is not None and router.clients is not None  # whether clients wait for answers
        self.appends = requests.cell.size > 0  # whether lanes have rows of their own, that requests are appended to
        self.any_mixed = bool((params.mixes_prefill > 0).any())
        self.any_exclusive = bool((params.mixes_prefill == 0).any())
        self.reserve = rules.reserve
        self.paged = not rules.reserve and bool((params.num_blocks < NO_LIMIT).any())
        self.budgets = bool((params.budget < NO_LIMIT).any())
        self.any_chunk_fits = bool(params.chunk_fits.any())
        self.any_unsplit = bool(params.unsplit.any())
        self.any_spare = bool((params.spare > 0).any())
        self.any_chunks = bool(params.takes_chunks.any())
        self.any_capped = bool(np.isfinite(params.most_share).any())
        self.any_priority = bool(params.by_priority.any())
        self.any_async = bool(params.is_async.any())
        self.keeps_itl = itl and rules.decodes
        self.step_times = LaneStepTimes(params, tables)
        most = int(np.minimum(params.max_running, params.n).max(initial=1))
        self.clock = new_clock(lanes)
        self.queue = new_waiting_queue(params, requests, rules, paged=self.paged, most=most if self.paged else 0)
        self.prefills = new_prefills(lanes)
        self.decodes = new_decodes(lanes, most)
        self.memory = new_memory(params, self.clock, self.decodes, block_sizes, most, paged=self.paged)
        self.reserved_memory = new_reserved_memory(params, requests, self.decodes)
        if router is None:
            self.inflow = new_inflow(params.n.copy(), np.full(lanes, np.inf))
        else:
            self.inflow = new_inflow(np.zeros(lanes, np.int64), router.first_arrival())
        self.counts = new_counts(lanes, BINS if self.keeps_itl else 0)
        self.listed = rules.kind == LISTED
        self.running_list = new_running_list(params, lanes * self.listed)
        self.records = (
            self.params,
            self.clock,
            self.queue,
            self.prefills,
            self.decodes,
            self.memory,
            self.reserved_memory,
            self.inflow,
            self.counts,
            *([] if pool is None else [pool]),
            *([self.running_list] if self.listed else []),
            *([] if cache is None else [cache]),
        )
        self.may_admit: Callable[[Batch], Bools] = has_room
        """Lanes [L] that may admit who has arrived and fits: as the row of phases says."""
        self.done: Bools | None = None  # [L] lanes that have no work left, as *wake* found them; None: none has
        if pool is not None:
            requests.close(params.row + pool.placed_end, pool.next_arrival)
        self.queue.look()

    def due(self, lanes: Bools) -> Bools:
        """Those of `lanes` that may go on: all without a router, else those before their group's next arrival. [L]"""
        if self.router is None:
            return lanes
        clock = self.clock
        return lanes & ((clock.now < self.inflow.horizon) | clock.wakes_now)

    def answer(self, cells: Ints, now: Floats) -> None:
        """Requests have left their instance, so that clients who wait for them go on. Both [n]."""
        router = self.router
        if router is not None and router.clients is not None:
            router.clients.answer(cells, now)
            self.inflow.wait_at_most(router.next_sent()[router.group_of])

    def cells(self, lanes: Ints, requests: Ints) -> Ints:
        """Rows of `times`. All [n]."""
        if not self.appends:
            return self.params.out[lanes] + requests
        cells: Ints = self.requests.cell[self.params.row[lanes] + requests]
        return cells

    def row_end(self, lanes: Ints) -> Ints:
        """Behind the last request in the row of `lanes`. [n]"""
        return (self.inflow.routed if self.pool is None else self.pool.placed_end)[lanes]

    def append(self, lanes: Ints, number: Ints, arrival: Floats, prompt: Floats, total: Floats, cell: Ints) -> None:
        """Put a request behind the `number` that are in the row of each of `lanes`. All [n], different lanes."""
        p, requests = self.params, self.requests
        old = requests.make_room(int(number.max()) + 1)
        if old:
            p.widen_rows(old, requests.row_width)
        requests.append(self.rules, p.row[lanes] + number, arrival, prompt, total, p.block_size_f[lanes], cell)

    def compact(self, keep: Bools) -> None:
        """Go on with the lanes `keep`. [L]"""
        kept = keep.nonzero()[0]
        for record in self.records:
            compact(record, kept)
        if self.router is not None:
            self.router.compact(keep)
        self.step_times.compact()
