"""What lanes know of requests that are sent to them one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Bools, Floats, Ints, Numbers
from .records import new_record


@dataclass
class Inflow:
    """Of lanes whose requests come from a router (router.py); without one all requests are there from the beginning."""

    routed: Ints  # [L] requests sent to the lane so far; without a router all there will ever be
    horizon: Floats  # [L] when the next request is routed, anywhere in the group: nothing may happen from then on
    batch_requests: Floats  # [L] requests of the prefill batch that ends now
    batch_tokens: Floats  # [L] and their tokens
    sent_prompts: Floats  # [L] prompt tokens of the requests sent
    outstanding_tokens: Floats  # [L] prompt + output tokens of requests that are not finished

    def send(self, lanes: Ints, prompt: Floats, total: Floats) -> None:
        """A request of `total` tokens, `prompt` of them in its prompt, is sent to each of `lanes`. All [n], different
        lanes."""
        self.routed[lanes] += 1
        self.sent_prompts[lanes] += prompt
        self.outstanding_tokens[lanes] += total

    def finish(self, total: Numbers) -> None:
        """Requests that had so many tokens are done. [L]"""
        self.outstanding_tokens -= total

    def end_batch(self, lanes: Bools, requests: Floats, tokens: Floats) -> None:
        """A prefill batch ends in `lanes`. All [L]."""
        self.batch_requests = np.where(lanes, requests, self.batch_requests)
        self.batch_tokens = np.where(lanes, tokens, self.batch_tokens)

    def wait_until(self, lanes: Ints, arrival: Floats) -> None:
        """The next request is routed at `arrival`. Both [n]."""
        self.horizon[lanes] = arrival

    def wait_for_groups(self, until: Floats) -> None:
        """Nothing is routed before `until`. [L]"""
        self.horizon = until

    def wait_at_most(self, until: Floats) -> None:
        """Something may be routed at `until`. [L]"""
        self.horizon = np.minimum(self.horizon, until)


def new_inflow(routed: Ints, horizon: Floats) -> Inflow:
    """Nothing has happened yet. Both [L]."""
    return new_record(Inflow, routed.size, routed=routed, horizon=horizon)
