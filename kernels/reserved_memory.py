"""Memory that is set aside in full at admission (docs/systems.md), and the one answer to whether a request fits.

A request's prompt + output tokens are set aside when the lane admits it, so nothing grows and nobody is preempted.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np

from .arrays import Bools, Floats, Ints, Numbers
from .decodes import Decodes
from .params import Params
from .ranges import spread
from .records import new_record
from .request_rows import RequestRows

_WINDOW = 4


@dataclass
class ReservedMemory:
    """Requests decode_queue_head <= request < prefilled_end wait in the lane; those from there to first_prefill got
    their first token in the step that ends now, and have not joined it yet."""

    decode_queue_head: Ints  # [L] first request not admitted to the lane
    prefilled_end: Ints  # [L] behind the last request that has joined the lane
    reserved: Floats  # [L] tokens set aside for decoding requests
    peak_reserved: Floats  # [L] most tokens set aside so far
    params: InitVar[Params]
    requests: InitVar[RequestRows]
    decodes: InitVar[Decodes]

    def __post_init__(self, params: Params, requests: RequestRows, decodes: Decodes) -> None:
        self._params, self._requests, self._decodes = params, requests, decodes
        self.any_waits = False  # whether a prefilled request waits for room in its lane, in any lane

    def fits(self, lanes: Ints, total: Floats) -> Bools:
        """Whether a request of `total` tokens fits into each of `lanes`. All [n]."""
        return total <= self._room(lanes)

    def fitting(self, lanes: Ints, place: Ints, most: Ints) -> Ints:
        """How many of the requests at `place`, place + 1, ... of RequestRows fit, each by itself, before the first that
        does not; at most `most`. All [n]."""
        count = most.copy()
        rows, request, order = spread(place, most)
        misfit = (self._requests.total[request] > self._room(lanes)[rows]).nonzero()[0]
        np.minimum.at(count, rows[misfit], order[misfit])
        return count

    def _room(self, lanes: Ints) -> Floats:
        """Tokens that a request may take: not set aside, nor waited for in the lane; all it likes in an empty lane.
        [n]"""
        p = self._params
        room = p.num_blocks[lanes] - self.reserved[lanes]
        empty = self._decodes.decoding[lanes] == 0
        if self.any_waits:
            totals_before, row = self._requests.totals_before, p.row[lanes]
            end, head = self.prefilled_end[lanes], self.decode_queue_head[lanes]
            room -= totals_before[row + end] - totals_before[row + head]
            empty &= head == end
        room[empty] = np.inf
        return room

    def join(self, lanes: Bools, end: Ints) -> None:
        """Requests before `end` wait in the lane now, in `lanes`. [L]"""
        self.prefilled_end = np.where(lanes, end, self.prefilled_end)

    def join_at(self, lanes: Ints, end: Ints) -> None:
        """The same. All [n]."""
        self.prefilled_end[lanes] = end

    def admit(self, lanes: Ints) -> tuple[Ints, Ints]:
        """Admit those that wait in `lanes`, in order, until one does not fit: the first of them, and how many. What
        they take is set aside by `reserve`. All [n]."""
        p, totals_before = self._params, self._requests.totals_before
        first, end, row = self.decode_queue_head[lanes], self.prefilled_end[lanes], p.row[lanes]
        all_fit = self.reserved[lanes] + (totals_before[row + end] - totals_before[row + first]) <= p.num_blocks[lanes]
        count = np.where(all_fit, end - first, 0)
        short = (~all_fit).nonzero()[0]
        if short.size:
            count[short] = self._count_fitting(lanes[short])
        self.decode_queue_head[lanes] = first + count
        return first, count

    def _count_fitting(self, lanes: Ints) -> Ints:
        """How many of those that wait in `lanes` fit, some at a time. [n]"""
        p, r = self._params, self._requests
        count = np.zeros(lanes.size, np.int64)
        reserved, running = self.reserved[lanes].copy(), self._decodes.decoding[lanes].copy()
        rows = np.arange(lanes.size)
        while rows.size:
            lane = lanes[rows]
            index = (self.decode_queue_head[lane] + count[rows])[:, None] + np.arange(_WINDOW)
            there = index < self.prefilled_end[lane][:, None]
            place = p.row[lane][:, None] + np.where(there, index, 0)
            total = r.total[place]
            kept = total - r.prompt[place] > 1  # requests of one token take the test, but no room
            tokens = np.where(kept, total, 0)
            before = tokens.cumsum(axis=1) - tokens
            alone = (running[rows][:, None] == 0) & (kept.cumsum(axis=1) - kept == 0)
            ok = there & (alone | (reserved[rows][:, None] + before + total <= p.num_blocks[lane][:, None]))
            ok = np.logical_and.accumulate(ok, axis=1)
            count[rows] += ok.sum(axis=1)
            reserved[rows] += (tokens * ok).sum(axis=1)
            running[rows] += (kept & ok).sum(axis=1)
            rows = rows[ok[:, -1]]
        return count

    def reserve(self, tokens: Numbers) -> None:
        """Set tokens aside. [L]"""
        self.reserved += tokens

    def release(self, tokens: Numbers) -> None:
        """Tokens are no longer set aside. [L]"""
        self.reserved -= tokens

    def note(self, prefills: bool) -> None:
        """Keep the peak, and whether anyone is left waiting; on decode instances those wait in the queue."""
        self.peak_reserved = np.maximum(self.peak_reserved, self.reserved)
        self.any_waits = bool(np.count_nonzero(self.decode_queue_head < self.prefilled_end)) if prefills else False


def new_reserved_memory(params: Params, requests: RequestRows, decodes: Decodes) -> ReservedMemory:
    """Nothing is set aside."""
    return new_record(ReservedMemory, params.n.size, params=params, requests=requests, decodes=decodes)
