"""The decoding requests of each lane."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np

from .arrays import ONE, Floats, Ints, Numbers
from .records import new_record
from .slots import FREE, NEVER_FINISHES, end_of, new_slots, request_of, slot_of, sort_slots, taken, widened

_FEW_SLOTS = 16


@dataclass
class Decodes:
    """What runs. A decoding request sits in a slot that knows the tick at which it finishes: the tokens that it has
    emitted are output - (end - tick), so that a decode step writes nothing per request."""

    running: Floats  # [L] requests admitted and not finished, those in prefill among them
    decoding: Floats  # [L] of those, past their prefill
    context: Floats  # [L] tokens in the cache of decoding requests, the newest counted
    next_end: Floats  # [L] smallest end of its slots, NEVER_FINISHES without any
    slots: Ints  # [L, 1 + M] decoding requests, those that finish soonest last (slots.py)
    most_running: InitVar[int]  # of any lane

    def __post_init__(self, most_running: int) -> None:
        self._most_running = most_running
        self.slot_columns = np.array(self.slots.shape[1])  # of a row; an array for the reason of arrays.ONE

    def admit(self, count: Numbers) -> None:
        """So many more run. [L]"""
        self.running += count

    def admit_one(self, lanes: Ints) -> None:
        """One more runs in each of `lanes`, [n] different ones."""
        self.running[lanes] += 1

    def leave(self, count: Numbers) -> None:
        """So many are done without having decoded. [L]"""
        self.running -= count

    def put(self, lanes: Ints, order: Ints, requests: Ints, ends: Floats) -> None:
        """Requests of `lanes` take slots behind those that decode; `order` is 0 for a lane's first one, 1 for its
        second, ... When all are there, `start` them and `sort` the lanes. All [n]."""
        place = self.decoding[lanes].astype(np.int64) + (order + 1)
        self._make_room(place)
        self.slots.ravel()[lanes * self.slot_columns + place] = slot_of(ends, requests)
        np.minimum.at(self.next_end, lanes, ends)

    def start(self, count: Floats, context: Numbers) -> None:
        """The requests just put into slots decode, and hold so many tokens. Both [L]."""
        self.decoding += count
        self.context += context

    def start_some(self, lanes: Ints, context: Floats) -> None:
        """The same, one request an entry of `lanes`. Both [n]."""
        np.add.at(self.decoding, lanes, 1.0)
        np.add.at(self.context, lanes, context)

    def sort(self, lanes: Ints) -> None:
        """Put the slots of `lanes` [n] in order."""
        sort_slots(self.slots, lanes, self.decoding)

    def emit(self, tokens: Floats) -> None:
        """Decoding requests emit so many tokens together. [L]"""
        self.context += tokens

    def leap(self, context: Floats) -> None:
        """Decoding requests emit until they hold `context`. [L]"""
        self.context = context

    def finish(self, lanes: Ints, number: Numbers, context: Numbers) -> None:
        """The `number` requests of each of `lanes` [n] that finish next are done, `context` [L] less is held. Their
        slots are freed by `vacate`."""
        decoding = self.decoding[lanes] - number
        self.decoding[lanes] = decoding
        self.running[lanes] -= number
        self.next_end[lanes] = self.end_before(lanes, decoding)
        self.context -= context

    def leap_to(self, lanes: Ints, number: Numbers, context: Floats) -> None:
        """The `number` requests of each lane that finish next are done, and the others hold `context`. All [n]."""
        decoding = self.decoding[lanes] - number
        self.context[lanes] = context
        self.decoding[lanes] = decoding
        self.running[lanes] -= number
        self.next_end[lanes] = self.end_before(lanes, decoding)

    def vacate(self, index: Ints) -> None:
        """Free slots, at `index` [n] of the flattened ones."""
        self.slots.ravel()[index] = FREE

    def preempt(self, lanes: Ints, index: Ints, tokens: Floats) -> None:
        """The request in slot `index`, which holds `tokens`, stops. All [n], different lanes."""
        self.slots.ravel()[index] = FREE
        self.sort(lanes)
        decoding = self.decoding[lanes] - ONE
        self.next_end[lanes] = self.end_before(lanes, decoding)
        self.decoding[lanes] = decoding
        self.running[lanes] -= ONE
        self.context[lanes] -= tokens

    def stop_prefill(self, lanes: Ints) -> None:
        """One request in prefill stops in each of `lanes`, [n] different ones."""
        self.running[lanes] -= 1

    def next_to_finish(self, lanes: Ints, earlier: Floats) -> tuple[Ints, Ints, Floats]:
        """The slots of each lane that finish after 0, 1, ... `earlier` ones [count, 1]: where they are in the
        flattened slots, what they hold, and how many decode until then, 0 or less where there are not so many and the
        others mean nothing. All [count, n]."""
        decoding = self.decoding[lanes] - earlier
        place = decoding.astype(np.int64) + lanes * self.slot_columns
        return place, self.slots.ravel().take(place, mode="clip"), decoding

    def end_before(self, lanes: Ints, decoding: Floats) -> Floats:
        """When the next of `decoding` requests finishes, NEVER_FINISHES if there are none. All [n]."""
        return end_of(self.slots.ravel()[lanes * self.slot_columns + decoding.astype(np.int64)])

    def last_end(self, lanes: Ints) -> Floats:
        """When the last of all finishes, in `lanes` that have one. [n]"""
        return end_of(self.slots[lanes, 1])

    def youngest(self, lanes: Ints) -> Ints:
        """Where in the flattened slots the youngest request of `lanes` is, each of which has one. [n]

        Running requests are a prefix of the requests in order of service: it is the one that is served last.
        """
        rows = self.slots.take(lanes, axis=0)
        place: Ints = np.where(taken(rows), request_of(rows), -1).argmax(axis=1)
        place += lanes * self.slot_columns
        return place

    def _make_room(self, places: Ints) -> None:
        """Have all of these places in every lane, from 1."""
        have = self.slots.shape[1] - 1
        if have < self._most_running and places.size:
            needed = int(places.max())
            if needed > have:
                self.slots = widened(self.slots, max(needed, 2 * have))
                self.slot_columns = np.array(self.slots.shape[1])


def new_decodes(lanes: int, most_running: int) -> Decodes:
    """Nothing runs."""
    slots = new_slots(lanes, min(most_running, _FEW_SLOTS))
    next_end = np.full(lanes, NEVER_FINISHES)
    return new_record(Decodes, lanes, slots=slots, next_end=next_end, most_running=most_running)
