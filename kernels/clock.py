"""The clock of each lane: time, and steps counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Bools, Floats, Ints
from .records import new_record


@dataclass
class Clock:
    """Where lanes are in time. Between two phases a lane stands between two steps."""

    now: Floats  # [L] seconds since the start
    tick: Floats  # [L] steps in which decoding requests emit; under mixed and chunked that is every step
    prefill_steps: Floats  # [L] the other steps: those of prefill_first that prefill
    idle_s: Floats  # [L] seconds without a step
    # Under reserved memory (docs/systems.md):
    wakes_now: Bools  # [L] idle until this very moment: starts on one request, whoever else has arrived
    idle_settled: Bools  # [L] idle, with all that happened until now handled: another arrival at this moment wakes it

    def wake(self, asleep: Bools, arrival: Floats) -> None:
        """Idle lanes that are `asleep` go to the `arrival` that wakes them. Both [L]."""
        now = np.where(asleep, arrival, self.now)
        self.idle_s += now - self.now
        self.now = now

    def note_woken(self, asleep: Bools, again: Bools) -> None:
        """Note who starts on one request: who was `asleep`, and of idle lanes with work, `again`, those settled. [L]"""
        self.wakes_now = asleep | (again & self.idle_settled)
        self.idle_settled &= ~self.wakes_now

    def settle(self, idle: Bools) -> None:
        """Lanes that woke and are still `idle` have handled what happened at this moment. [L]"""
        self.idle_settled |= self.wakes_now & idle
        self.wakes_now &= ~self.idle_settled

    def start_step(self, lanes: Bools) -> None:
        """Lanes that woke have begun a step. [L]"""
        self.wakes_now &= ~lanes

    def start_step_at(self, lanes: Ints, tick: Floats) -> None:
        """The same where `tick` is another than theirs. Both [n]."""
        self.wakes_now[lanes] &= tick == self.tick[lanes]

    def start_steps(self) -> None:
        """All of them have."""
        self.wakes_now[:] = False

    def prefill(self, now: Floats, step: Floats) -> None:
        """One step that ends at `now` where `step` is 1, none where it is 0. [L]"""
        self.now = now
        self.tick += step

    def prefill_exclusively(self, now: Floats, step: Floats, exclusive: Floats) -> None:
        """The same, of which those steps do not decode where `exclusive` is 1. [L]"""
        self.now = now
        self.prefill_steps += exclusive
        self.tick += step - exclusive

    def leap(self, end: Floats, steps: Floats) -> None:
        """`steps` steps, the last of which ends at `end`. [L]"""
        self.now = end
        self.tick = self.tick + steps

    def leap_to(self, lanes: Ints, now: Floats, tick: Floats) -> None:
        """Some lanes go to a later end of a step. All [n]."""
        self.now[lanes] = now
        self.tick[lanes] = tick


def new_clock(lanes: int) -> Clock:
    """Clocks that have not begun."""
    return new_record(Clock, lanes, idle_settled=np.ones(lanes, np.bool_))
