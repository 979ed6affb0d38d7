"""The waiting queue of each lane: a pointer into the order of service, and preempted requests in front of it."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np

from .arrays import Bools, Floats, Int32s, Ints
from .params import Params
from .records import new_record
from .request_rows import RequestRows, blocks_for
from .rules import Rules


@dataclass
class WaitingQueue:
    """The queue is preempted_request[:preempted_waiting] from the top down, then head, head + 1, ...

    Only preempted requests that had emitted tokens are kept; a fresh one is preempted by moving head back. Places from
    preempted_waiting to preempted_size are requests that were admitted again and have not come back to decoding.
    """

    head: Ints  # [L] first request never admitted (or preempted before its first token)
    head_arrival: Floats  # [L] arrival of the queue's head: -inf for a preempted one, inf for an empty queue
    head_blocks: Floats  # [L] blocks that the queue's head needs
    head_total: Floats  # [L] prompt + output tokens of the request at head; looked up under reserved memory
    prompts_at_head: Floats  # [L] RequestRows.prompts_before at head, looked up
    pairs_at_head: Floats  # [L] the same of pairs_before
    blocks_at_head: Floats  # [L] the same of blocks_before
    preempted_size: Ints  # [L] preempted requests that have not come back to decoding
    preempted_waiting: Ints  # [L] of those, not admitted again
    preempting: Bools  # [L] whether the coming step has preempted somebody, so that it admits nobody
    preempted_until: Ints  # [L] behind the last request ever preempted in its first prefill
    preempted_request: Int32s  # [L, S] who they are, the oldest last
    preempted_tokens: Int32s  # [L, S] prompt + emitted tokens: what must be processed again
    params: InitVar[Params]
    requests: InitVar[RequestRows]
    rules: InitVar[Rules]
    paged: InitVar[bool]

    def __post_init__(self, params: Params, requests: RequestRows, rules: Rules, paged: bool) -> None:
        self._params, self._requests, self._paged = params, requests, paged
        self._prefills, self._looks_at_totals = rules.prefills, rules.reserve and rules.decodes
        self.any_preempted = False  # whether a request was ever preempted, in any lane

    def look(self) -> None:
        """Look up what is known of every queue's head, after some heads changed."""
        p, r = self._params, self._requests
        head = self.head
        place = p.row + head
        self.head_arrival = r.arrival[place] / p.rate
        if self._prefills:
            self.prompts_at_head = r.prompts_before[place]
            self.pairs_at_head = r.pairs_before[place]
        if self._looks_at_totals:
            self.head_total = r.total[place]
        if self._paged:
            place = p.block_row + head
            self.blocks_at_head = r.blocks_before[place]
            self.head_blocks = r.blocks_before[place + 1] - self.blocks_at_head
            if self.any_preempted:
                self._look_at_preempted(self.preempted_waiting.nonzero()[0])

    def look_at(self, lanes: Ints) -> None:
        """The same in `lanes`, where requests have been preempted."""
        self.any_preempted = True
        p, r = self._params, self._requests
        head = self.head[lanes]
        place = p.row[lanes] + head
        self.head_arrival[lanes] = r.arrival[place] / p.rate[lanes]
        if self._prefills:
            self.prompts_at_head[lanes] = r.prompts_before[place]
            self.pairs_at_head[lanes] = r.pairs_before[place]
        place = p.block_row[lanes] + head
        before = r.blocks_before[place]
        self.blocks_at_head[lanes] = before
        self.head_blocks[lanes] = r.blocks_before[place + 1] - before
        self._look_at_preempted(lanes[self.preempted_waiting[lanes].nonzero()[0]])

    def _look_at_preempted(self, lanes: Ints) -> None:
        """A preempted request is the head in `lanes`."""
        if lanes.size:
            self.head_arrival[lanes] = -np.inf
            self.head_blocks[lanes] = self.blocks_of_preempted(lanes)

    def preempt_in_step(self, lanes: Ints) -> None:
        """The coming step of `lanes` preempts. [n]"""
        self.preempting[lanes] = True

    def end_step(self, lanes: Ints) -> None:
        """That step is over. [n]"""
        self.preempting[lanes] = False

    def blocks_of_preempted(self, lanes: Ints) -> Floats:
        """Blocks that the preempted request at the head of the queue needs, in `lanes` that have one. [n]"""
        return blocks_for(self.preempted_head_tokens(lanes).astype(np.float64), self._params.block_size_f[lanes])

    def preempted_head_tokens(self, lanes: Ints) -> Int32s:
        """Tokens of that request. [n]"""
        return self.preempted_tokens[lanes, self.preempted_waiting[lanes] - 1]

    def move(self, head: Ints) -> None:
        """Requests before `head` have left the queue; look at those there. [L]"""
        self.head = head
        self.look()

    def take_preempted(self, lanes: Ints) -> Int32s:
        """The preempted request at the head of `lanes` leaves; its tokens. The caller looks at the next. [n]"""
        place = self.preempted_waiting[lanes] - 1
        self.preempted_waiting[lanes] = place
        return self.preempted_tokens[lanes, place]

    def take_head(self, lanes: Ints, again: Bools) -> None:
        """The heads of `lanes` leave, preempted ones where it is `again` [n]: those are forgotten."""
        rows = lanes[again]
        self.preempted_waiting[rows] -= 1
        self.preempted_size[rows] -= 1
        self.head[lanes[~again]] += 1
        self.look_at(lanes)

    def forget_preempted(self, lanes: Ints, number: Ints) -> None:
        """The oldest `number` of those admitted again decode. All [n], different lanes."""
        self.preempted_size[lanes] -= number

    def put_back_fresh(self, lanes: Ints) -> Ints:
        """The youngest fresh request in prefill is the head again; which it is. The caller looks at it. [n]"""
        self.head[lanes] -= 1
        request = self.head[lanes]
        self.preempted_until[lanes] = np.maximum(self.preempted_until[lanes], request + 1)
        return request

    def put_back_preempted(self, lanes: Ints) -> tuple[Ints, Floats]:
        """The youngest request that was admitted again waits again; which it is, and its tokens. All [n]."""
        place = self.preempted_waiting[lanes]
        self.preempted_waiting[lanes] = place + 1
        return self.preempted_request[lanes, place].astype(np.int64), self.preempted_tokens[lanes, place].astype(
            np.float64
        )

    def put_in_front(self, lanes: Ints, requests: Ints, tokens: Floats) -> None:
        """Decoding requests wait again, with `tokens` to process. All [n], different lanes without any in prefill."""
        top = self.preempted_size[lanes]
        self.preempted_request[lanes, top] = requests
        self.preempted_tokens[lanes, top] = tokens
        top += 1
        self.preempted_size[lanes] = self.preempted_waiting[lanes] = top


def new_waiting_queue(params: Params, requests: RequestRows, rules: Rules, *, paged: bool, most: int) -> WaitingQueue:
    """All requests wait. `most` of a lane can wait preempted."""
    lanes = params.n.size
    return new_record(
        WaitingQueue,
        lanes,
        preempted_request=np.zeros((lanes, most), np.int32),
        preempted_tokens=np.zeros((lanes, most), np.int32),
        params=params,
        requests=requests,
        rules=rules,
        paged=paged,
    )
