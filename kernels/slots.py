"""Slots: the decoding requests of each lane, those that finish soonest last.

A slot is one number: how long before NEVER_FINISHES its request finishes, in ticks, in the upper 32 bits, and the
request in the lower ones. So a sorted row has its next finishes side by side, and what they leave behind are free
slots, which sort last of all. Place 0 of a row is nobody's: whoever looks beyond the last request finds an end that
never comes.
"""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints

NEVER_FINISHES = float(np.iinfo(np.int32).max)
"""Tick at which a request that does not exist finishes: a lane takes fewer steps than that."""

_BITS = np.array(32)  # arrays for the reason of arrays.ONE
_LOWER = np.array(2**32 - 1)
_LAST = np.array(int(NEVER_FINISHES) - 1)
NOBODY = -1 << 32
FREE = int(NEVER_FINISHES) << 32
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


def slot_of(end: Floats, request: Ints) -> Ints:
    """The slot of requests that finish at tick `end`. Shapes alike."""
    slot: Ints = (_LAST - end.astype(np.int64) << _BITS) | request
    return slot


def end_of(slot: Ints) -> Floats:
    """The tick at which the request in a slot finishes, NEVER_FINISHES of nobody's. Any shape."""
    end: Floats = (_LAST - (slot >> _BITS)).astype(np.float64)
    return end


def request_of(slot: Ints) -> Ints:
    """The request in a slot. Any shape."""
    request: Ints = slot & _LOWER
    return request


def taken(slots: Ints) -> Bools:
    """Which slots hold a request. Any shape."""
    held: Bools = (slots > NOBODY) & (slots < FREE)
    return held


def sort_slots(slots: Ints, lanes: Ints, decoding: Floats) -> None:
    """Put the rows `lanes` [n] of `slots` in order; `decoding` [L] of a row are taken."""
    if lanes.size < _FEW or slots.shape[1] <= _NARROW:
        _sort(slots, lanes)
        return
    narrow = decoding[lanes] < _NARROW
    for rows, some in ((slots[:, :_NARROW], narrow), (slots, ~narrow)):
        if np.count_nonzero(some):
            _sort(rows, lanes[some.nonzero()[0]])


def _sort(slots: Ints, lanes: Ints) -> None:
    rows = slots[lanes]
    rows.sort(axis=1, kind="stable")  # rows are nearly in order
    slots[lanes] = rows
