"""Who waits in lanes that do not serve in order of arrival, and who of them is next.

A lane's row of requests is then in order of first admission: requests are placed in it as they are about to be
admitted, so that the queue is a pointer into it as ever. Those that were placed and not admitted are *tentative*: they
go back into the pool when somebody might come before them.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np

from .arrays import Bools, Floats, Ints, Words
from .bitset import Levels
from .ranges import largest, spread
from .records import new_record

_AHEAD = np.arange(8)[:, None]  # requests of a lane that are looked at together


@dataclass
class Source:
    """Requests in order of arrival, and their ranks: flat rows of queues, Q of N + 3 places, inf behind the last.

    The rank of a request is its place in the order in which it would be served if all waited.
    """

    arrivals: Floats  # [Q (N+3)] in seconds, before Pool.speed
    prompts: Floats  # [Q (N+3)]
    totals: Floats  # [Q (N+3)] prompt + output tokens
    by_rank: Ints  # [R N] the requests of a queue by rank, for each queue and order that occur together
    rank_of: Ints  # [R N] the rank of each request
    level_of: Ints  # [R N] its place among ranks where equals in (priority, arrival) have one


@dataclass
class Pool:
    """A request is known by its place in its lane's row of `Source`; the rows of routed lanes are those of their group.

    Requests before admitted_end were admitted at least once and keep their places; those from there, or from head where
    that is behind, to placed_end are tentative.
    """

    placed_end: Ints  # [L] behind the last request that was placed in the lane's row of RequestRows
    admitted_end: Ints  # [L] behind the last one ever admitted
    waiting: Ints  # [L] requests in the pool: arrived, neither admitted nor tentative
    arrived: Ints  # [L] requests of the source that have been let in; nothing with a router, which sends them
    aged: Ints  # [L] requests of the source that have waited max_wait_s, or would have
    next_arrival: Floats  # [L] of the first that has not been let in, inf without one, or with a router
    next_aged: Floats  # [L] when the next one will have waited so long, inf where nobody ages
    out_of_date: Bools  # [L] whether somebody might come before the tentative ones
    last_rank: Ints  # [L] rank of the last request that was placed: whoever has a larger one comes behind the tentative
    source_row: Ints  # [L] offset in Source.arrivals, ...
    rank_row: Ints  # [L] offset in Source.by_rank, ...
    length: Ints  # [L] requests of the source
    speed: Floats  # [L] a request arrives at Source.arrivals / speed
    max_wait_s: Floats  # [L] who has waited so long goes first; inf: nobody does
    waiting_ranks: Words  # [L, *] the pool by rank, sets as in bitset.py
    waiting_places: Words  # [L, *] the pool by arrival; [L, 0] where nobody ages
    of_source: InitVar[Source]
    of_levels: InitVar[Levels]
    by_router: InitVar[bool]

    def __post_init__(self, of_source: Source, of_levels: Levels, by_router: bool) -> None:
        self.source, self._levels, self._routed = of_source, of_levels, by_router
        self.ages = self.waiting_places.shape[1] > 0

    def let_in(self, lanes: Ints, now: Floats, one: Bools) -> None:
        """Requests that have arrived by `now` wait from now on; only the first in lanes that take `one`. All [n]; the
        next of each lane has arrived."""
        arrivals, row, speed, begin = (
            self.source.arrivals,
            self.source_row[lanes],
            self.speed[lanes],
            self.arrived[lanes],
        )
        count = np.ones(lanes.size, np.int64)
        several = (~one & (arrivals[row + begin + 1] / speed <= now)).nonzero()[0]
        if several.size:
            at, rate, until = (row + begin - 1)[several], speed[several], now[several]
            count[several] = largest(
                count[several],
                (self.length[lanes] - begin + 1)[several],
                lambda rows, number: arrivals[at[rows] + number] / rate[rows] <= until[rows],
            )
        rows, place, _ = spread(begin, count)
        self._put(lanes[rows], place)
        self.waiting[lanes] += count
        self.arrived[lanes] = begin + count
        self.next_arrival[lanes] = arrivals[row + begin + count] / speed

    def send(self, lanes: Ints, places: Ints) -> None:
        """A router has sent a request to each of `lanes`. Both [n], different lanes."""
        self._put(lanes, places)
        self.waiting[lanes] += 1

    def note_arrival(self, places: Ints) -> None:
        """Requests at `places` of the source [n] arrive, whose arrival was not known before: lanes in which nobody else
        was to age next wait for them."""
        at = self.source_row + self.aged
        here = np.isin(at, places)
        self.next_aged = np.where(here, self.source.arrivals[at] / self.speed + self.max_wait_s, self.next_aged)

    def age(self, lanes: Ints, now: Floats) -> None:
        """Note who has waited `max_wait_s` by `now`, in lanes where the next one has. Both [n]."""
        arrivals, row, speed, aged = self.source.arrivals, self.source_row[lanes], self.speed[lanes], self.aged[lanes]
        wait, at = self.max_wait_s[lanes], row + aged - 1
        count = largest(
            np.ones(lanes.size, np.int64),
            self.length[lanes] - aged + 1,
            lambda rows, number: arrivals[at[rows] + number] / speed[rows] + wait[rows] <= now[rows],
        )
        self.aged[lanes] = aged + count
        self.next_aged[lanes] = arrivals[row + aged + count] / speed + wait
        self.out_of_date[lanes] = True

    def keep_places(self, head: Ints) -> None:
        """Requests before `head` have been admitted, and keep their places if they are preempted. [L]"""
        self.admitted_end = np.maximum(self.admitted_end, head)

    def tentative(self, lanes: Ints, head: Ints) -> tuple[Ints, Ints, Ints]:
        """Tentative requests of `lanes`, as `spread` gives them: (row of lanes, place in RequestRows, number)."""
        first = np.maximum(self.admitted_end[lanes], head)
        return spread(first, self.placed_end[lanes] - first)

    def put_back(self, lanes: Ints, rows: Ints, places: Ints) -> None:
        """Tentative requests go back: those at `places` of the source [m], of lanes[rows]. They were all of `lanes`, of
        which nobody is out of date any more."""
        self._put(lanes[rows], places)
        count = np.bincount(rows, minlength=lanes.size)
        self.waiting[lanes] += count
        self.placed_end[lanes] -= count
        self.out_of_date[lanes] = False

    def place_next(self, lanes: Ints) -> Ints:
        """Who is next in each of `lanes` is placed behind the others; its place in the source. [n]"""
        rank, row = self._levels.smallest(self.waiting_ranks, lanes), self.rank_row[lanes]
        place: Ints = self.source.by_rank[row + rank]
        if self.ages:
            oldest = self._levels.smallest(self.waiting_places, lanes)
            place = np.where(oldest < self.aged[lanes], oldest, place)
            rank = self.source.rank_of[row + place]
            self._levels.take(self.waiting_places, lanes, place)
        self._levels.take(self.waiting_ranks, lanes, rank)
        self.last_rank[lanes] = rank
        self.waiting[lanes] -= 1
        self.placed_end[lanes] += 1
        return place

    def next_better(self, lanes: Ints, places: Ints) -> Floats:
        """When somebody arrives who goes before the request at `places`, by rank; some arrivals are looked at. All
        [n]."""
        if self._routed:
            return self.next_arrival[lanes]
        begin, end, row = self.arrived[lanes], self.length[lanes], self.rank_row[lanes]
        at = np.minimum(begin + _AHEAD, end)
        rank_of = self.source.rank_of
        better = (rank_of[row + np.minimum(at, end - 1)] < rank_of[row + places]) | (at == end)
        better[-1] = True
        change: Floats = self.source.arrivals[self.source_row[lanes] + at[better.argmax(axis=0), _rows(lanes)]]
        return change / self.speed[lanes]

    def soon_aged(self, lanes: Ints) -> Ints:
        """Those of the source that age next in each of `lanes`, some of them; the last again at its end. [*, n]"""
        places: Ints = np.minimum(self.aged[lanes] + _AHEAD, self.length[lanes] - 1)
        return places

    def next_change(self, lanes: Ints, places: Ints, change: Floats, waits: Bools) -> Floats:
        """When the request at `places` may have to let somebody go first who comes at `change`, or ages: of
        `soon_aged`, those that may still have to wait. All [n] but `waits` [*, n]"""
        at = self.soon_aged(lanes)
        waits[-1] = True
        first = at[waits.argmax(axis=0), _rows(lanes)]
        ages_at = self.source.arrivals[self.source_row[lanes] + first] / self.speed[lanes] + self.max_wait_s[lanes]
        return np.where(places < self.aged[lanes], np.inf, np.minimum(change, ages_at))

    def changed_by(self, now: Floats) -> Bools:
        """Whether somebody has arrived or aged by `now` who is not known yet. [L]"""
        changed: Bools = np.minimum(self.next_arrival, self.next_aged) <= now
        return changed

    def served(self, lane: int, places: Ints, now: float) -> Ints:
        """Those of `places` of the source that wait, in the order in which they would be served at `now`. Both [n]."""
        source, row = self.source, int(self.source_row[lane])
        arrival = source.arrivals[row + places] / self.speed[lane]
        aged = arrival + self.max_wait_s[lane] <= now
        rank = np.where(aged, places, source.rank_of[int(self.rank_row[lane]) + places])
        return places[np.lexsort((rank, ~aged))]

    def _put(self, lanes: Ints, places: Ints) -> None:
        """Put requests into the pool, several of a lane too. Both [n]."""
        rank = self.source.rank_of[self.rank_row[lanes] + places]
        self._levels.put(self.waiting_ranks, lanes, rank)
        before = (rank < self.last_rank[lanes]).nonzero()[0]
        self.out_of_date[lanes[before]] = True
        if self.ages:
            self._levels.put(self.waiting_places, lanes, places)


def _rows(lanes: Ints) -> Ints:
    return np.arange(lanes.size)


def new_pool(
    source: Source,
    *,
    source_row: Ints,
    rank_row: Ints,
    length: Ints,
    speed: Floats,
    max_wait_s: Floats,
    width: int,
    routed: bool,
) -> Pool:
    """Nobody has arrived. All [L]; `width` are the requests of the longest queue, `routed`: a router sends them."""
    lanes, levels = source_row.size, Levels(width)
    first = source.arrivals[source_row] / speed
    ages = bool(np.isfinite(max_wait_s).any())
    return new_record(
        Pool,
        lanes,
        next_arrival=np.full(lanes, np.inf) if routed else first,
        next_aged=first + max_wait_s,
        source_row=source_row,
        rank_row=rank_row,
        length=length,
        speed=speed,
        max_wait_s=max_wait_s,
        waiting_ranks=levels.empty(lanes),
        waiting_places=levels.empty(lanes if ages else 0).reshape(lanes, -1),
        of_source=source,
        of_levels=levels,
        by_router=routed,
    )
