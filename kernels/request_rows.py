"""The requests that lanes serve, in order of service, and prefix sums over them."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import HALF, ONE, Floats, Ints
from .rules import Rules


def pairs_of(tokens: Any) -> Any:
    """Attention work of prefilling the first `tokens` tokens of a prompt, in pairs: token i attends to i tokens."""
    return tokens * (tokens + ONE) * HALF


def blocks_for(tokens: Floats, block_size: Floats) -> Floats:
    """ceil(tokens / block_size); exact, because a quotient of such integers never rounds across one."""
    return np.ceil(tokens / block_size)


def prefix_sums(values: npt.NDArray[np.float64]) -> Floats:
    """Exclusive sums along rows [W, N]: place i holds the sum before i; one place more than values, [W, N + 1]."""
    out = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=out[:, 1:])
    return out


@dataclass
class RequestRows:
    """Requests in order of service, and prefix sums over them. Rows of W workloads (or of W x block sizes) are shared
    by lanes and only read; rows that requests are appended to as a router sends them belong to one lane each.

    Rows have N + 3 places, flattened: lanes carry the offset of their row. Three places behind the last request, so
    that the head of an empty queue, and what two requests more would hold, can be looked up.
    """

    arrival: Floats  # [W (N+3)] in seconds, before Params.rate; inf behind the last request
    prompt: Floats  # [W (N+3)] prompt tokens
    total: Floats  # [W (N+3)] prompt + output tokens
    prompts_before: Floats  # [W (N+3)] sum of the prompt tokens of earlier requests
    pairs_before: Floats  # [W (N+3)] sum of L (L + 1) / 2 over them: attention work of their prefills, in token pairs
    blocks_before: Floats  # [W x block sizes (N+3)] sum of the blocks of their prompts
    totals_before: Floats  # [W (N+3)] sum of prompt + output tokens; empty but under reserved memory
    cell: Ints  # [W (N+3)] row of RequestTimes of each request; empty where requests are never appended
    width: InitVar[int]  # N + 3

    def __post_init__(self, width: int) -> None:
        self.row_width = width

    def append(
        self, rules: Rules, at: Ints, arrival: Floats, prompt: Floats, total: Floats, block_size: Floats, cell: Ints
    ) -> None:
        """Put requests at the places `at`, the first empty ones of their rows. All [n]."""
        self.arrival[at] = arrival
        self.prompt[at], self.total[at] = prompt, total
        if rules.prefills:
            self.prompts_before[at + 1] = self.prompts_before[at] + prompt
            self.pairs_before[at + 1] = self.pairs_before[at] + pairs_of(prompt)
        if rules.reserve:
            self.totals_before[at + 1] = self.totals_before[at] + total
        if self.blocks_before.size:
            held = prompt if rules.prefills else prompt + 1
            self.blocks_before[at + 1] = self.blocks_before[at] + blocks_for(held, block_size)
            # The head of an empty queue needs no blocks, as long as nobody is there.
            self.blocks_before[at + 2] = self.blocks_before[at + 1]
        self.cell[at] = cell

    def close(self, at: Ints, arrival: Floats) -> None:
        """What is found at `at`, the first empty places of rows: nothing but when somebody comes. Both [n]."""
        self.arrival[at], self.total[at] = arrival, 0
        if self.blocks_before.size:
            self.blocks_before[at + 1] = self.blocks_before[at]

    def arrive(self, at: Ints, arrival: Floats) -> None:
        """Somebody comes who will have a place at `at` or behind it. Both [n]."""
        self.arrival[at] = np.minimum(self.arrival[at], arrival)

    def make_room(self, number: int) -> int:
        """Rows need room for so many requests; a quarter more places if there is none. How wide rows were, 0 if there
        was."""
        old = self.row_width
        if number + 2 < old:
            return 0
        self.row_width = old + max(old // 4, 32)
        self._widen(old, self.row_width)
        return old

    def _widen(self, old: int, new: int) -> None:
        """Give rows of `old` places `new` ones."""
        for field in fields(self):
            before = getattr(self, field.name)
            if not before.size:
                continue
            rows = before.reshape(-1, old)
            wider = np.zeros((rows.shape[0], new), before.dtype)
            wider[:, :old] = rows
            if field.name == "arrival":
                wider[:, old:] = np.inf
            setattr(self, field.name, wider.ravel())
