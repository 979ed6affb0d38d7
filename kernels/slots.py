"""Slots: the decoding requests of each lane, those that finish soonest last.

A slot is one number: how long before NO_END its request finishes, in ticks, in the upper 32 bits, and the request in
the lower ones. So a sorted row has its next finishes side by side, and what they leave behind are free slots, which
sort last of all. Place 0 of a row is nobody's: whoever looks beyond the last request finds an end that never comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .state import NO_END, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

_BITS = np.array(32)  # arrays for the reason of state.ONE
_LOWER = np.array(2**32 - 1)
_LAST = np.array(int(NO_END) - 1)
NOBODY = -1 << 32
FREE = int(NO_END) << 32
_NARROW = 32  # places of a row that are put in order by themselves when no more are taken: half the time of a long row
_FEW = 100  # lanes for which it is not worth the calls


def new_slots(lanes: int, places: int) -> Ints:
    """Free slots, [lanes, 1 + places]."""
    slots = np.full((lanes, 1 + places), FREE)
    slots[:, 0] = NOBODY
    return slots


def widened(slots: Ints, places: int) -> Ints:
    """The same slots and free ones behind them, [lanes, 1 + places]."""
    wider = new_slots(slots.shape[0], places)
    wider[:, : slots.shape[1]] = slots
    return wider


def end_of(slot: Ints) -> Floats:
    """The tick at which the request in a slot finishes, NO_END of nobody's. Any shape."""
    end: Floats = (_LAST - (slot >> _BITS)).astype(np.float64)
    return end


def request_of(slot: Ints) -> Ints:
    """The request in a slot. Any shape."""
    request: Ints = slot & _LOWER
    return request


def put(engine: Engine, lanes: Ints, order: Ints, requests: Ints, ends: Floats) -> None:
    """Requests of `lanes` begin to decode, behind those that do; `order` is 0 for a lane's first one, 1 for its second,
    ... Before they count in State.decoding; when all are there, the lanes want sorting. All [n]."""
    s = engine.state
    place = s.decoding[lanes].astype(np.int64) + (order + 1)
    engine.make_room(place)
    s.slots.ravel()[lanes * engine.slots + place] = (_LAST - ends.astype(np.int64) << _BITS) | requests
    np.minimum.at(s.next_end, lanes, ends)


def sort(engine: Engine, lanes: Ints) -> None:
    """Put the slots of `lanes` in order. [n]"""
    slots = engine.state.slots
    if lanes.size < _FEW or slots.shape[1] <= _NARROW:
        _sort(slots, lanes)
        return
    narrow = engine.state.decoding[lanes] < _NARROW
    for rows, some in ((slots[:, :_NARROW], narrow), (slots, ~narrow)):
        if np.count_nonzero(some):
            _sort(rows, lanes[some.nonzero()[0]])


def _sort(slots: Ints, lanes: Ints) -> None:
    rows = slots[lanes]
    rows.sort(axis=1, kind="stable")  # rows are nearly in order
    slots[lanes] = rows


def next_to_finish(engine: Engine, lanes: Ints, earlier: Floats) -> tuple[Ints, Ints, Floats]:
    """The slots of each lane that finish after 0, 1, ... `earlier` ones [count, 1]: where they are in the flattened
    State.slots, what they hold, and how many decode until then, 0 or less where there are not so many and the others
    mean nothing. All [count, n]."""
    s = engine.state
    decoding = s.decoding[lanes] - earlier
    place = decoding.astype(np.int64) + lanes * engine.slots
    return place, s.slots.ravel().take(place, mode="clip"), decoding


def next_end(engine: Engine, lanes: Ints, decoding: Floats) -> Floats:
    """When the next of `decoding` requests finishes, NO_END if there are none. All [n]."""
    return end_of(engine.state.slots.ravel()[lanes * engine.slots + decoding.astype(np.int64)])


def youngest(engine: Engine, lanes: Ints) -> Ints:
    """Where in the flattened State.slots the youngest request of `lanes` is, each of which has one. [n]

    Running requests are a prefix of the arrived ones: it is the one that is served last.
    """
    rows = engine.state.slots.take(lanes, axis=0)
    taken: npt.NDArray[np.bool_] = (rows > NOBODY) & (rows < FREE)
    place: Ints = np.where(taken, request_of(rows), -1).argmax(axis=1)
    place += lanes * engine.slots
    return place
