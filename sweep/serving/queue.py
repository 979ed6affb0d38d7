"""The requests that a stage serves, in order of service."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..arrays import AnyInts, Floats, Ints
from ..kernels.chains import Chains
from ..workloads.contents import chains_of
from ..workloads.texts import Texts


@dataclass(frozen=True, eq=False)
class Queue:
    """Requests in order of service: by arrival, then position. All [n]."""

    arrival_s: Floats  # before Stage.rate
    prompt_tokens: AnyInts
    output_tokens: AnyInts
    positions: AnyInts  # in the workload
    first_token_s: Floats | None = None  # of requests that come with it; None: their arrival
    texts: Texts | None = None  # what they have in common
    priority: AnyInts | None = None  # the smallest first; None: the workload has none

    _chains: dict[int, Chains] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def in_order(self) -> bool:
        """Whether request i of the workload is served i-th, and none is left out before the last."""
        return bool(np.array_equal(self.positions, np.arange(len(self.positions))))

    def chains(self, block_size: int) -> Chains:
        """The contents of its full blocks."""
        if block_size not in self._chains:
            prompt, output = self.prompt_tokens.astype(np.int64), self.output_tokens.astype(np.int64)
            self._chains[block_size] = chains_of(self.texts, prompt, output, block_size)
        return self._chains[block_size]

    def shares(self, block_size: int) -> bool:
        """Whether two requests have a full block in common."""
        if self.texts is None:
            return False
        chains = self.chains(block_size)
        return chains.count < chains.content.size

    def part(self, rows: Ints) -> Queue:
        """Some of its requests; `positions` are then places in this queue."""
        first = None if self.first_token_s is None else self.first_token_s[rows]
        priority = None if self.priority is None else self.priority[rows]
        texts = None if self.texts is None else self.texts.part(rows)
        columns = self.arrival_s[rows], self.prompt_tokens[rows], self.output_tokens[rows], rows
        return Queue(*columns, first, priority=priority, texts=texts)


NO_QUEUE = Queue(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
