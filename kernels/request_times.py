"""What became of each request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Floats, Int32s, Ints


@dataclass
class RequestTimes:
    """Per request, rows of all lanes flattened: it stays in place when lanes leave the batch. NaN: has not happened.

    In the verbs `cells` are places of requests, [n].
    """

    first_token_s: Floats  # [L N] end of the step that emitted its first token
    finish_s: Floats  # [L N] end of the step that emitted its last one
    admitted_s: Floats  # [L N] beginning of the step that first admitted it
    preemptions: Int32s  # [L N] how often it was preempted
    cached_tokens: Int32s  # [L N] that its first admission found in the prefix cache; empty without one
    sent: Int32s  # [L N] tokens sent before its last preemption; empty but where the preempted wait among the others
    served_by: Int32s  # [L N] the lane that serves it, as given, -1 until it is routed; empty without a router
    # Empty unless times between tokens are kept:
    itl_max_s: Floats  # [L N] the longest time between two of its tokens so far
    last_token_s: Floats  # [L N] when it emitted its last token, of requests that have begun to decode

    def admit(self, cells: Ints, now: Floats) -> None:
        """Requests are admitted for the first time, or were preempted before their first token."""
        self.admitted_s[cells] = now

    def first_token(self, cells: Ints, now: Floats) -> None:
        """Requests emit their first token."""
        self.first_token_s[cells] = now

    def finish(self, cells: Ints, now: Floats) -> None:
        """Requests have emitted all their tokens."""
        self.finish_s[cells] = now

    def preempt(self, cells: Ints) -> None:
        """Requests are preempted, each once."""
        self.preemptions[cells] += 1

    def find(self, cells: Ints, tokens: Floats) -> None:
        """Requests are admitted for the first time, and find so many tokens in the prefix cache."""
        self.cached_tokens[cells] = tokens

    def keep_sent(self, cells: Ints, tokens: Floats) -> None:
        """Requests have sent so many tokens when they are preempted."""
        self.sent[cells] = tokens

    def serve(self, cells: Ints, lane: Ints) -> None:
        """Requests are sent to a lane."""
        self.served_by[cells] = lane

    def emit(self, cells: Ints, now: Floats) -> None:
        """Requests emit a token."""
        self.last_token_s[cells] = now

    def come_with_first_token(self, cells: Ints) -> None:
        """Requests begin to decode that got their first token elsewhere, at `first_token_s`."""
        self.itl_max_s[cells], self.last_token_s[cells] = 0, self.first_token_s[cells]

    def wait(self, cells: Ints, itl_s: Floats | float) -> None:
        """Requests have waited for a token; NaN of what was before counts as 0."""
        self.itl_max_s[cells] = np.fmax(self.itl_max_s[cells], itl_s)


def new_request_times(
    cells: int, *, routed: bool = False, itl: bool = False, by_priority: bool = False, caches: bool = False
) -> RequestTimes:
    """Times of `cells` requests, to none of which anything has happened."""
    first, finish, admitted = (np.full(cells, np.nan) for _ in range(3))
    longest, last = (np.full(cells * itl, np.nan) for _ in range(2))
    lane = np.full(cells * routed, -1, np.int32)
    sent = np.zeros(cells * by_priority, np.int32)
    found = np.zeros(cells * caches, np.int32)
    return RequestTimes(first, finish, admitted, np.zeros(cells, np.int32), found, sent, lane, longest, last)
