"""Clients that send their next request when the last one is answered: closed loops (docs/systems.md)."""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints


class Clients:
    """The clients of each group of a router, G groups of at most C clients.

    Parameters
    ----------
    number   [G] clients of each group; all send at time 0
    think_s  [G] between an answer and the next request
    cells    [G] offset of the group's rows in RequestTimes
    width    rows of a group in RequestTimes
    """

    def __init__(self, number: Ints, think_s: Floats, cells: Ints, width: int) -> None:
        clients = int(number.max(initial=1))
        self.sends = np.where(np.arange(clients) < number[:, None], 0.0, np.inf)
        """[G, C] when a client sends its next request, inf while it waits for an answer."""
        self.think_s = think_s
        self.soonest = self.sends.min(axis=1)  # [G]
        self._width = width
        self._row_of = np.arange(number.size)  # of each group as given
        self._client_of = np.zeros(number.size * width, np.int32)  # of each row of RequestTimes

    def send(self, groups: Ints, cells: Ints) -> None:
        """The client that is free first, of several the first, sends the request of `cells`. Both [n], different
        groups."""
        client = self.sends[groups].argmin(axis=1)
        self._client_of[cells] = client
        self.sends[groups, client] = np.inf
        self.soonest[groups] = self.sends[groups].min(axis=1)

    def answer(self, cells: Ints, now: Floats) -> None:
        """The requests of `cells` are answered at `now`. Both [n]."""
        group = self._row_of[cells // self._width]
        sends = now + self.think_s[group]
        self.sends[group, self._client_of[cells]] = sends
        np.minimum.at(self.soonest, group, sends)

    def compact(self, groups: Ints) -> None:
        """Go on with `groups`."""
        self._row_of[:] = np.where(np.isin(self._row_of, groups), np.searchsorted(groups, self._row_of), -1)
        self.sends, self.think_s, self.soonest = self.sends[groups], self.think_s[groups], self.soonest[groups]


def until_others(now: Floats, busy: Bools, members: Ints, group_of: Ints, think_s: Floats) -> Floats:
    """Until when nothing that other lanes of a group have still to do can bring an arrival to a lane. [L]

    now, busy  [L] where lanes are, and whether they have work
    members    [G, *] lanes of each group, -1 where there is none
    group_of   [L]
    think_s    [G]

    A lane that is at time t answers nobody before t. Lanes at the same time let go of who ends there together, before
    any of them goes on: so without time to think they may all begin a step there, and one only.
    """
    if members.shape[1] == 1:
        return np.full(now.size, np.inf)
    at = np.where(busy, now, np.inf)
    two = np.partition(np.where(members >= 0, at[members], np.inf), 1, axis=1)[:, :2][group_of]
    others = np.where(at == two[:, 0], two[:, 1], two[:, 0])
    until = others + think_s[group_of]
    return np.where((until == others) & (now == others), np.nextafter(until, np.inf), until)
