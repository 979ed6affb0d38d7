"""Groups of lanes whose requests are routed while they run, and the requests that are still to come (routing.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Bools, Floats, Ints
from .clients import Clients

LEAST, FIRST_DRAWN, BETTER_OF_TWO = range(3)
"""How a group picks an instance: the one with the least load, on a tie the first; the one that was drawn for the
request; or the one with less load of two that were drawn. Of its lanes it is always the one with the fewest
requests."""


@dataclass
class Groups:
    """Groups of lanes that share a stream of requests: G groups of at most I instances of at most P lanes."""

    members: Ints  # [G, I, P] place of each lane in the batch, -1 where there is none
    rule: Ints  # [G] LEAST, ...
    load: Ints  # [G] which of `Router.loads` is compared
    count: Ints  # [G] requests
    next: Ints  # [G] the request that arrives next
    stream: Ints  # [G] offset of the group's requests in `Router.arrivals`, ...
    drawn_row: Ints  # [G] offset in `Router.drawn`
    cells: Ints  # [G] offset of its rows in RequestTimes
    speed: Floats  # [G] a request arrives at Router.arrivals / speed


class Router:
    """The groups of a batch, and their requests: flat rows in order of arrival."""

    def __init__(
        self,
        groups: Groups,
        arrival: Floats,
        prompt: Floats,
        total: Floats,
        drawn: npt.NDArray[np.int32],
        loads: tuple[Callable[[Any, Ints, Floats], Floats], ...],
        clients: Clients | None = None,
    ) -> None:
        self.groups, self.loads, self.clients = groups, loads, clients
        self.arrivals, self.prompts, self.totals = arrival, prompt, total
        self.drawn = drawn  # [*, 2] instances drawn for a request: both of BETTER_OF_TWO, the first of FIRST_DRAWN
        self.group_of = np.zeros(int(groups.members.max(initial=-1)) + 1, np.int64)  # [L]
        self._number_lanes()

    def _number_lanes(self) -> None:
        group, _, _ = there = (self.groups.members >= 0).nonzero()
        self.group_of[self.groups.members[there]] = group

    def first_arrival(self) -> Floats:
        """When the first request of each lane's group arrives, inf without any. [L]"""
        g = self.groups
        first: Floats = np.where(g.count > 0, self.arrivals[g.stream] / g.speed, np.inf)[self.group_of]
        return first

    def next_sent(self) -> Floats:
        """When a client of each group sends its next request, as far as that is known, else inf. [G]"""
        g = self.groups
        assert self.clients is not None
        sent: Floats = np.where(g.next < g.count, self.clients.soonest, np.inf)
        return sent

    def note_arrival(self, place: Ints, arrival: Floats) -> None:
        """Requests at `place` of the rows come at `arrival`, which answers have decided. Both [n]."""
        self.arrivals[place] = arrival

    def ready(self, blocked: Bools) -> Ints:
        """Groups with a request to come in which no lane is `blocked`. [g] of [L]"""
        g = self.groups
        holds = np.bincount(self.group_of, blocked, g.count.size)
        comes = g.next < g.count if self.clients is None else self.next_sent() < np.inf
        ready: Ints = ((holds == 0) & comes).nonzero()[0]
        return ready

    def advance(self, groups: Ints) -> tuple[Ints, Floats]:
        """The next request of `groups` [g] has been routed: their lanes, and when the one after it arrives, inf without
        one. Both [n]."""
        g = self.groups
        g.next[groups] += 1
        at = g.next[groups]
        following = np.where(at < g.count[groups], self.arrivals[g.stream[groups] + at] / g.speed[groups], np.inf)
        lane = g.members[groups]
        there = (lane >= 0).nonzero()
        return lane[there], following[there[0]]

    def done(self, idle: Bools) -> Bools:
        """All lanes of groups whose every lane is among the `idle`, and whose requests have all been routed. [L]"""
        g = self.groups
        over = (np.bincount(self.group_of, ~idle, g.count.size) == 0) & (g.next == g.count)
        lanes: Bools = over[self.group_of]
        return lanes

    def compact(self, keep: Bools) -> None:
        """Forget the groups of lanes that left the batch; `keep` has whole groups. [L]"""
        g = self.groups
        number = np.cumsum(keep) - 1
        groups = np.unique(self.group_of[keep])
        for field in fields(Groups):
            setattr(g, field.name, getattr(g, field.name)[groups])
        if self.clients is not None:
            self.clients.compact(groups)
        g.members = np.where(g.members >= 0, number[g.members], -1)
        self.group_of = np.zeros(int(np.count_nonzero(keep)), np.int64)
        self._number_lanes()
