"""Routing: each request of a group of lanes goes, when it arrives, to the lane that the group's router picks.

Between two arrivals of a group its lanes do not look at each other. So every lane runs up to the first end of a step
at or after the group's next arrival, `State.horizon`, and stops there with that end still to be handled; when all
lanes of the group are there, or idle, the request is routed by what they hold (docs/routers.md), and they go on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import blocks_for
from .prefill import pairs_of
from .queue import set_head
from .state import Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

LEAST_LOADED, LEAST_OUTSTANDING, LEAST_TOKENS, POWER_OF_TWO, DRAWN = range(5)
"""How a group picks an instance. DRAWN: `Groups.drawn` says which; the lane in it is still the least loaded one."""


@dataclass
class Groups:
    """Groups of lanes that share a stream of requests: G groups of at most I instances of at most P lanes."""

    lanes: Ints  # [G, I, P] place of each lane in the batch, -1 where there is none
    rule: Ints  # [G] LEAST_LOADED, ...
    n: Ints  # [G] requests
    next: Ints  # [G] the request that arrives next
    row: Ints  # [G] offset of the group's requests in `Router.arrival`, ...
    drawn_row: Ints  # [G] offset in `Router.drawn`
    out: Ints  # [G] offset of its rows in Outcome
    rate: Floats  # [G] a request arrives at Router.arrival / rate


class Router:
    """The groups of a batch, their requests (flat rows in order of arrival), and where each request went."""

    def __init__(
        self,
        groups: Groups,
        arrival: Floats,
        prompt: Floats,
        total: Floats,
        drawn: npt.NDArray[np.int32],
        width: int,
    ) -> None:
        self.groups = groups
        self.arrival, self.prompt, self.total = arrival, prompt, total
        self.drawn = drawn  # [*, 2] instances drawn for a request: both of POWER_OF_TWO, the first of DRAWN
        lanes = int(groups.lanes.max(initial=-1)) + 1
        self._width = width
        self.cell = np.zeros(lanes * width, np.int64)  # row of Outcome of each request that a lane knows
        self._group_of = np.zeros(lanes, np.int64)
        self._number_lanes()

    def _number_lanes(self) -> None:
        group, _, _ = there = (self.groups.lanes >= 0).nonzero()
        self._group_of[self.groups.lanes[there]] = group

    def route(self, engine: Engine) -> None:
        """Route one request in every group that has nothing else to do before it arrives."""
        g, s = self.groups, engine.state
        blocked = (s.now < s.horizon) & ((s.running > 0) | (s.head < s.known))
        holds = np.bincount(self._group_of, blocked, g.n.size)
        groups = ((holds == 0) & (g.next < g.n)).nonzero()[0]
        if not groups.size:
            return
        place = g.row[groups] + g.next[groups]
        arrival = self.arrival[place] / g.rate[groups]
        lanes = self._pick(engine, groups, arrival)
        self._send(engine, groups, lanes, place, arrival)
        g.next[groups] += 1
        following = np.where(g.next[groups] < g.n[groups], self.arrival[place + 1] / g.rate[groups], np.inf)
        lane = g.lanes[groups]
        there = (lane >= 0).nonzero()
        s.horizon[lane[there]] = following[there[0]]
        set_head(engine)

    def start(self, engine: Engine) -> None:
        """Before the first loop: nothing may happen from the first arrival on."""
        g = self.groups
        first = np.where(g.n > 0, self.arrival[g.row] / g.rate, np.inf)
        engine.state.horizon = first[self._group_of]

    def done(self, engine: Engine, idle: Bools) -> Bools:
        """All lanes of groups whose every lane is among the `idle`, and whose requests have all been routed. [L]"""
        g = self.groups
        over = (np.bincount(self._group_of, ~idle, g.n.size) == 0) & (g.next == g.n)
        lanes: Bools = over[self._group_of]
        return lanes

    def compact(self, keep: Bools) -> None:
        """Forget the groups of lanes that left the batch; `keep` has whole groups. [L]"""
        g = self.groups
        number = np.cumsum(keep) - 1
        groups = np.unique(self._group_of[keep])
        for field in fields(Groups):
            setattr(g, field.name, getattr(g, field.name)[groups])
        g.lanes = np.where(g.lanes >= 0, number[g.lanes], -1)
        self._group_of = np.zeros(int(np.count_nonzero(keep)), np.int64)
        self._number_lanes()

    def _pick(self, engine: Engine, groups: Ints, arrival: Floats) -> Ints:
        """The lane for the next request of each of `groups`. All [g]."""
        g = self.groups
        lanes = g.lanes[groups]
        there = lanes >= 0
        rule = g.rule[groups]
        requests, outstanding = _loads(engine, lanes, arrival[:, None, None])
        value = np.where((rule == LEAST_LOADED)[:, None, None], requests, outstanding)
        tokens = (rule == LEAST_TOKENS).nonzero()[0]
        if tokens.size:
            value[tokens] = _tokens(engine, lanes[tokens], arrival[tokens, None, None])
        value *= there  # lanes that are not there add nothing to their instance
        of_instance = np.where(there[:, :, 0], value.sum(axis=2), np.inf)
        instance = of_instance.argmin(axis=1)
        rows = (rule >= POWER_OF_TWO).nonzero()[0]
        if rows.size:
            first, second = self.drawn[g.drawn_row[groups[rows]] + g.next[groups[rows]]].T
            better = (rule[rows] == POWER_OF_TWO) & (of_instance[rows, second] < of_instance[rows, first])
            instance[rows] = np.where(better, second, first)
        rows = np.arange(groups.size)
        if lanes.shape[2] == 1:
            picked: Ints = lanes[rows, instance, 0]
            return picked
        of_lane = np.where(there[rows, instance], requests[rows, instance], np.inf)
        least: Ints = lanes[rows, instance, of_lane.argmin(axis=1)]
        return least

    def _send(self, engine: Engine, groups: Ints, lanes: Ints, place: Ints, arrival: Floats) -> None:
        """Append the request at `place` to the requests of its lane. All [g]."""
        p, s, t, g = engine.params, engine.state, engine.traffic, self.groups
        known = s.known[lanes]
        if int(known.max()) + 3 >= self._width:
            self._widen(engine)
        prompt, total = self.prompt[place], self.total[place]
        at = p.row[lanes] + known
        t.arrival[at] = arrival
        t.prompt[at], t.total[at] = prompt, total
        if engine.rules.prefills:
            t.prompts_before[at + 1] = t.prompts_before[at] + prompt
            t.pairs_before[at + 1] = t.pairs_before[at] + pairs_of(prompt)
        if engine.reserve:
            t.totals_before[at + 1] = t.totals_before[at] + total
        if engine.paged:
            held = prompt if engine.rules.prefills else prompt + 1
            t.blocks_before[at + 1] = t.blocks_before[at] + blocks_for(held, p.size[lanes])
            # The head of an empty queue needs no blocks, as long as nobody is there.
            t.blocks_before[at + 2] = t.blocks_before[at + 1]
        cell = g.out[groups] + g.next[groups]
        self.cell[at] = cell
        engine.outcome.lane[cell] = p.lane[lanes]
        s.known[lanes] = known + 1
        s.outstanding_tokens[lanes] += total

    def _widen(self, engine: Engine) -> None:
        """Give every lane room for a quarter more requests."""
        old, new = self._width, self._width + max(self._width // 4, 32)
        for name in (*(field.name for field in fields(engine.traffic)), "cell"):
            owner = self if name == "cell" else engine.traffic
            before = getattr(owner, name)
            if not before.size:
                continue
            rows = before.reshape(-1, old)
            wider = np.full((rows.shape[0], new), np.inf if name == "arrival" else 0, before.dtype)
            wider[:, :old] = rows
            setattr(owner, name, wider.ravel())
        p = engine.params
        p.row = p.row // old * new
        p.block_row = p.block_row // old * new
        self._width = new


def _loads(engine: Engine, lanes: Ints, arrival: Floats) -> tuple[Floats, Floats]:
    """Load of `least_loaded`, and requests that are not done, of `lanes`, shapes alike (-1: of no meaning)."""
    s, p, t = engine.state, engine.params, engine.traffic
    known, head = s.known[lanes], s.head[lanes]
    load: Floats
    if not engine.reserve:
        load = s.running[lanes] + (known - head) + s.stack_waiting[lanes]
        return load, load
    if not engine.rules.decodes:
        load = t.prompts_before[p.row[lanes] + known] - s.prompts_at_head[lanes]
        in_batch: Floats = np.where(s.now[lanes] >= arrival, s.batch[lanes], 0)
        return load, in_batch + (known - head)
    outstanding: Floats = (known - s.lane_head[lanes]) + s.decoding[lanes]
    if not engine.rules.prefills:
        return outstanding, outstanding
    # Not those taken up whose prefill has not ended, or ends with a step that is not over.
    load = outstanding - (head - s.joined[lanes])
    return load, outstanding


def _tokens(engine: Engine, lanes: Ints, arrival: Floats) -> Floats:
    """Tokens of requests that are not done: prompt + output, on prefill instances prompts. Shapes alike."""
    s, p, t = engine.state, engine.params, engine.traffic
    if engine.rules.decodes:
        tokens: Floats = s.outstanding_tokens[lanes]
        return tokens
    queued = t.prompts_before[p.row[lanes] + s.known[lanes]] - s.prompts_at_head[lanes]
    waiting: Floats = queued + np.where(s.now[lanes] >= arrival, s.batch_tokens[lanes], 0)
    return waiting
