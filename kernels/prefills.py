"""The requests in prefill of each lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Bools, Floats, Ints
from .records import new_record

NO_PREFILL = np.array(np.inf)
"""Prompt tokens left of a prefill that does not exist: more than any budget. An array for the reason of arrays.ONE."""


@dataclass
class Prefills:
    """Running requests in order of admission are decoding ones, then requests in prefill, of which only the oldest can
    be part-way. Requests in prefill are first preempted ones that were admitted again (waiting_queue.py), then fresh
    ones, first_prefill <= request < head."""

    first_prefill: Ints  # [L] oldest fresh request in prefill; head without any
    prompts_at_first: Floats  # [L] RequestRows.prompts_before at first_prefill, looked up
    pairs_at_first: Floats  # [L] the same of pairs_before
    prefill_done: Floats  # [L] tokens processed of the oldest prefill
    prefill_left: Floats  # [L] tokens left of it, NO_PREFILL without one

    def begin(self, lanes: Ints, tokens: Floats) -> None:
        """A request of `tokens` is now the oldest. [n]"""
        self.prefill_left[lanes] = tokens

    def begin_where(self, begins: Bools, tokens: Floats) -> None:
        """The same in the lanes `begins`. [L]"""
        self.prefill_left = np.where(begins, tokens, self.prefill_left)

    def process(self, lanes: Ints, tokens: Floats) -> None:
        """Pieces of `tokens` of the oldest are processed, not to its end. [n]"""
        self.prefill_done[lanes] += tokens
        self.prefill_left[lanes] -= tokens

    def lose(self, lanes: Ints) -> Floats:
        """The oldest is preempted, there is no other; returns what was processed of it. [n]"""
        lost = self.prefill_done[lanes]
        self.prefill_done[lanes] = 0
        self.prefill_left[lanes] = NO_PREFILL
        return lost

    def continue_at(self, lanes: Ints, done: Floats, left: Floats) -> None:
        """Another request is the oldest: what is done and left of it. All [n]."""
        self.prefill_done[lanes], self.prefill_left[lanes] = done, left

    def end_where(self, ended: Bools, done: Floats) -> None:
        """The oldest, of which `done` tokens were processed, has ended, in the lanes `ended`. [L]"""
        self.prefill_done = self.prefill_done - done
        np.putmask(self.prefill_left, ended, NO_PREFILL)

    def move(self, first: Ints, prompts_at_first: Floats, pairs_at_first: Floats) -> None:
        """Fresh requests before `first` have ended; what is looked up there. All [L]."""
        self.first_prefill = first
        self.prompts_at_first, self.pairs_at_first = prompts_at_first, pairs_at_first

    def skip(self, first: Ints) -> None:
        """Requests before `first` need no prefill. [L]"""
        self.first_prefill = first.copy()


def new_prefills(lanes: int) -> Prefills:
    """Nothing is in prefill."""
    return new_record(Prefills, lanes, prefill_left=np.full(lanes, NO_PREFILL))
