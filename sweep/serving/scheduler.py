"""Many schedulers at once: one instance each, with paged or unlimited KV memory, on the seconds clock
(docs/scheduler.md).

`L` is the number of lanes, `N` the number of requests of the longest workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from .. import checks
from ..hardware.step_times import ConstantStepTime, StepModel
from ..kernels.engine import Engine
from ..kernels.slots import NEVER_FINISHES
from ..measures.result import LaneResults, Result
from ..workloads.workload import Workload
from .orders import DEFAULT_ORDER, check_order
from .policies import DEFAULTS, SCHEDULED, policy_of, used_or_none
from .queue import Queue
from .queues import Queues
from .run import run_systems
from .stages import UNLIMITED_TOKENS, Stage, StageBatch
from .system import CheckedSystem, capacity_of, default_num_blocks

DEFAULT_MAX_TOKENS = DEFAULTS["max_tokens"]


@dataclass(frozen=True)
class Lane(CheckedSystem):
    """One scheduler instance and its traffic: all that decides its outcome.

    policy        mixed: whole prompts run beside decodes; chunked: the same within `token_budget` tokens a step;
                  prefill_first: steps either prefill (at most `max_tokens` tokens, at least one request) or decode
    max_running   most requests that run at a time
    block_size    tokens of a KV block; None: unlimited memory
    num_blocks    KV blocks; None: as many as the step model's KV capacity holds
    token_budget  tokens processed a step, `chunked` only; at least max_running
    max_tokens    tokens of a prefill batch, `prefill_first` only
    rate          arrival = workload.arrival_s / rate
    order         who is admitted next: a name of orders.ORDERS (docs/scheduler.md)
    max_wait_s    who has waited so long goes first, `shortest_prompt` only

    ValueError names the argument, the value and what is allowed. An option that the policy or the memory does not use
    is an error.
    """

    roles: ClassVar[tuple[str, ...]] = ("colocated",)
    memories: ClassVar[tuple[str, ...]] = SCHEDULED

    workload: Workload
    step: StepModel | ConstantStepTime
    policy: str
    max_running: int
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    max_tokens: int | None = None
    rate: float = 1.0
    order: str = DEFAULT_ORDER
    max_wait_s: float | None = None

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        memory = "unlimited" if self.block_size is None else "paged"
        options = policy_of(self.policy, memory).options[memory]
        self._keep("max_running", checks.whole("max_running", self.max_running, 1))
        self._check_blocks()
        if "token_budget" in options:
            if self.token_budget is None:
                raise ValueError(f"token_budget=None: policy {self.policy!r} needs a token budget")
            self._keep("token_budget", checks.whole("token_budget", self.token_budget, 1))
            if self.token_budget < self.max_running:
                raise ValueError(
                    f"token_budget={self.token_budget!r}: must be at least max_running={self.max_running}, "
                    "as every decoding request takes a token of it"
                )
        elif self.token_budget is not None:
            raise ValueError(f"token_budget={self.token_budget!r}: has no effect under policy {self.policy!r}")
        if "max_tokens" in options:
            tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
            self._keep("max_tokens", checks.whole("max_tokens", tokens, 1))
        elif self.max_tokens is not None:
            raise ValueError(f"max_tokens={self.max_tokens!r}: has no effect under policy {self.policy!r}")
        if self._most_steps() >= NEVER_FINISHES:
            most = self._most_steps()
            raise ValueError(f"workload: could take {most} steps, must be fewer than {NEVER_FINISHES:.0f}")

    def _most_steps(self) -> int:
        """More steps than the lane can take without preemptions: each emits a token, or is one of a prompt's pieces."""
        # Under a budget a piece has at least what the most decoding requests leave of it.
        piece = (
            UNLIMITED_TOKENS
            if self.token_budget is None
            else min(self.token_budget - self.max_running + 1, UNLIMITED_TOKENS)
        )
        pieces = int(np.sum(-(-self.workload.prompt_tokens // piece)))
        return int(np.sum(self.workload.output_tokens)) + pieces

    def _check_blocks(self) -> None:
        if self.block_size is None:
            if self.num_blocks is not None:
                raise ValueError(
                    f"num_blocks={self.num_blocks!r}: has no effect under unlimited memory; give block_size too"
                )
            return
        size = checks.whole("block_size", self.block_size, 1)
        self._keep("block_size", size)
        if self.num_blocks is None:
            blocks = default_num_blocks(self.step, size)
            if blocks < 1:
                raise ValueError(
                    f"block_size={size}: the KV capacity of {capacity_of(self.step, 1)} tokens holds no block"
                )
            self._keep("num_blocks", blocks)
        self._keep("num_blocks", checks.whole("num_blocks", self.num_blocks, 1))

    @property
    def capacity_tokens(self) -> float:
        """KV tokens that the blocks hold; inf under unlimited memory."""
        if self.block_size is None or self.num_blocks is None:
            return np.inf
        return float(min(self.block_size * self.num_blocks, UNLIMITED_TOKENS))

    def stage(self, role: str, queue: Queue) -> Stage:
        """The instance, with what it shall serve."""
        return Stage(
            queue,
            self.step,
            policy_of(self.policy).rules("paged"),
            self.rate,
            max_running=self.max_running,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            token_budget=self.token_budget,
            max_tokens=self.max_tokens,
            order=self.order,
            max_wait_s=self.max_wait_s,
        )


def run_lanes(lanes: Sequence[Lane], *, step_log: Sequence[int] = ()) -> LaneResults:
    """`run_systems` for systems that are one scheduler each."""
    if not isinstance(lanes, Sequence | np.ndarray):
        raise ValueError(f"lanes={lanes!r}: must be a list of Lanes")
    for position, lane in enumerate(lanes):
        if not isinstance(lane, Lane):
            raise ValueError(f"lanes[{position}]={lane!r}: must be a Lane")
    return run_systems(lanes, step_log=step_log)


def run_scheduler(
    workload: Workload,
    step: StepModel | ConstantStepTime,
    *,
    policy: str,
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    memory: str | None = None,
    on_reject: str = "reject",
    order: str = DEFAULT_ORDER,
    max_wait_s: float | None = None,
) -> Result:
    """One instance with the given batching policy; see Lane for the options, which must all have an effect.

    memory     "paged" or "unlimited"; None: paged if block_size is given, else unlimited
    max_tokens of `prefill_first`; under another policy any value but the default is an error
    on_reject  what to do with requests that can never fit: "reject" leaves them with NaN times, marked `rejected`;
               "error" raises ValueError naming the first of them

    All times are in seconds, arrays [N] in the order of the workload.
    """
    if on_reject not in ("reject", "error"):
        raise ValueError(f"on_reject={on_reject!r}: must be 'reject' or 'error'")
    if memory not in (None, *SCHEDULED):
        raise ValueError(f"memory={memory!r}: must be one of {', '.join(SCHEDULED)}")
    if memory == "paged" and block_size is None:
        raise ValueError("block_size=None: paged memory needs a block size")
    if memory == "unlimited" and block_size is not None:
        raise ValueError(f"block_size={block_size!r}: has no effect under unlimited memory")
    batch_tokens = used_or_none("max_tokens", max_tokens, policy, "unlimited" if block_size is None else "paged")
    limits = (block_size, num_blocks, token_budget, batch_tokens)
    lane = Lane(workload, step, policy, max_running, *limits, order=order, max_wait_s=max_wait_s)
    if on_reject == "error":
        needed = workload.prompt_tokens + workload.output_tokens - 1
        for position in (needed > lane.capacity_tokens).nonzero()[0][:1]:
            raise ValueError(
                f"request {position} can never fit: its cache grows to {needed[position]} tokens, "
                f"num_blocks={lane.num_blocks} of block_size={lane.block_size} hold {lane.capacity_tokens:.0f}"
            )
    return run_lanes([lane]).result(0)


def new_engine(lanes: Sequence[Lane]) -> Engine:
    """The engine of lanes, before its first step; for a look at how it moves."""
    queues = Queues(lanes)
    stages = [lane.stage("colocated", queues.queues[queues.of_system[i]]) for i, lane in enumerate(lanes)]
    stages = [replace(stage, rate=rate) for stage, rate in zip(stages, queues.rate.tolist(), strict=True)]
    return StageBatch(stages, routed=False).engine(None)
