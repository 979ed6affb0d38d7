"""Many schedulers at once: one instance each, with paged or unlimited KV memory, on the seconds clock
(docs/scheduler.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np

from .. import checks
from ..hardware.steps import Step
from ..kernels.engine import Engine
from ..kernels.slots import NEVER_FINISHES
from ..measures.system_results import SystemResults
from ..workloads.workload import Workload
from .orders import DEFAULT_ORDER, OrderName, check_order
from .policies import DEFAULTS, SCHEDULED, VLLM_OPTIONS, PolicyName, policy_of
from .queue import Queue
from .queues import Queues
from .run import run_systems
from .stage_batch import StageBatch
from .stages import UNLIMITED_TOKENS, Stage
from .system import CheckedSystem, capacity_of, default_num_blocks

DEFAULT_MAX_TOKENS = DEFAULTS["max_tokens"]


@checks.spelt_out
@dataclass(frozen=True)
class Scheduler(CheckedSystem):
    """One instance with a batching policy, paged or unlimited KV memory, and its traffic: all that decides its outcome.

    The rules are in docs/scheduler.md.

    Parameters
    ----------
    workload
        The requests.
    step
        How long steps take.
    policy
        "mixed": whole prompts run beside decodes; "chunked": the same within `token_budget` tokens a step;
        "prefill_first": steps either prefill (at most `max_tokens` tokens, at least one request) or decode;
        "vllm": as vLLM's V1 scheduler, with blocks for the tokens of a step alone.
    max_running
        Most requests that run at a time.
    block_size
        Tokens of a KV block. None: unlimited memory.
    num_blocks
        KV blocks. None: as many as the step model's KV capacity holds, where memory is paged.
    token_budget
        Tokens processed in a step, at least `max_running`; of "chunked" and "vllm" only, which need it. None: for
        the others.
    max_tokens
        Tokens of a prefill batch, of "prefill_first" only. None: 4096 there.
    order
        Who is admitted next: "arrival", "shortest_prompt" or "priority".
    max_wait_s
        Who has waited so many seconds goes first; of "shortest_prompt" only. None: nobody does.
    long_prefill_token_threshold
        Most tokens of a request in a step while others run or wait; of "vllm" only, as all that follow. 0: no limit.
    enable_chunked_prefill
        Whether prompts may be split. If not, requests of more tokens than `token_budget` are refused.
    reserve_full_isl
        Whether an admission asks for the blocks of all tokens, not only for those of its first step.
    watermark
        Part of the blocks, from 0 to 1, that an admission leaves free while others run.
    max_model_len
        Requests of more tokens, prompt and output, are refused. None: no limit.
    enable_prefix_caching
        Whether blocks are found again by their content (docs/vllm.md); under paged memory only.
    async_scheduling
        Whether the batch of a step is fixed when the one before begins (docs/vllm.md).
    rate
        Arrival = workload.arrival_s / rate.

    Raises
    ------
    ValueError
        For a value out of range, and for an option that the policy, the memory or the order does not use.
    """

    roles: ClassVar[tuple[str, ...]] = ("colocated",)
    memories: ClassVar[tuple[str, ...]] = SCHEDULED

    workload: Workload
    step: Step
    _: KW_ONLY
    policy: PolicyName
    max_running: int
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    max_tokens: int | None = None
    order: OrderName = DEFAULT_ORDER
    max_wait_s: float | None = None
    rate: float = 1.0
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_full_isl: bool = True
    watermark: float = 0.0
    max_model_len: int | None = None
    async_scheduling: bool = False
    enable_prefix_caching: bool = False

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        memory = "unlimited" if self.block_size is None else "paged"
        options = policy_of(self.policy, memory).options[memory]
        self._check_vllm_options()
        clients = self.workload.concurrency
        if self.policy == "vllm" and self.order == "priority" and clients is not None:
            raise ValueError(f"order='priority': must be another under policy 'vllm' and concurrency={clients}")
        if self.async_scheduling and clients is not None:
            raise ValueError(f"async_scheduling=True: must be False under concurrency={clients}")
        self._keep("max_running", checks.whole("max_running", self.max_running, 1))
        self._check_blocks()
        if "token_budget" in options:
            if self.token_budget is None:
                raise ValueError(f"token_budget=None: must be given under policy {self.policy!r}")
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

    def _check_vllm_options(self) -> None:
        self._keep(
            "long_prefill_token_threshold",
            checks.whole("long_prefill_token_threshold", self.long_prefill_token_threshold, 0),
        )
        if checks.whether("enable_prefix_caching", self.enable_prefix_caching) and self.block_size is None:
            raise ValueError("enable_prefix_caching=True: has no effect under unlimited memory")
        for name in ("enable_chunked_prefill", "reserve_full_isl", "async_scheduling"):
            self._keep(name, checks.whether(name, getattr(self, name)))
        self._keep("watermark", checks.between("watermark", self.watermark, 0, 1))
        if self.max_model_len is not None:
            self._keep("max_model_len", checks.whole("max_model_len", self.max_model_len, 2))
        for name in VLLM_OPTIONS:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                if self.policy != "vllm":
                    raise ValueError(f"{name}={value!r}: has no effect under policy {self.policy!r}")
                if self.block_size is None and name in ("reserve_full_isl", "watermark"):
                    raise ValueError(f"{name}={value!r}: has no effect under unlimited memory")

    def _most_steps(self) -> int:
        """More steps than it can take without preemptions: each emits a token, or is one of a prompt's pieces."""
        # Under a budget a piece has at least what the most decoding requests leave of it.
        piece = (
            UNLIMITED_TOKENS
            if self.token_budget is None
            else min(self.token_budget - self.max_running + 1, UNLIMITED_TOKENS)
        )
        piece = min(piece, self.long_prefill_token_threshold or piece)
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
                    f"block_size={size}: must be at most the KV capacity, {capacity_of(self.step, 1)} tokens"
                )
            self._keep("num_blocks", blocks)
        self._keep("num_blocks", checks.whole("num_blocks", self.num_blocks, 1))

    @property
    def capacity_tokens(self) -> float:
        """KV tokens that the blocks hold; inf under unlimited memory."""
        most = np.inf if self.max_model_len is None else float(self.max_model_len - 1)  # the last token is not cached
        if not self.enable_chunked_prefill and self.token_budget is not None:
            most = min(most, float(self.token_budget - 1))
        if self.block_size is None or self.num_blocks is None:
            return most
        return min(most, float(min(self.block_size * self.num_blocks, UNLIMITED_TOKENS)))

    @property
    def _is_capped(self) -> bool:
        """Whether a request can get less of a step than the budget leaves."""
        return self.token_budget is not None and 0 < self.long_prefill_token_threshold < self.token_budget

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
            most_share=self.long_prefill_token_threshold if self._is_capped else None,
            caches=self.enable_prefix_caching,
            is_async=self.async_scheduling,
            unsplit=not self.enable_chunked_prefill,
            chunk_fits=not self.reserve_full_isl,
            # vLLM counts a block that it never hands out.
            spare_blocks=int(self.watermark * (min(self.num_blocks or 0, UNLIMITED_TOKENS) + 1)),
        )


@checks.spelt_out
def run_schedulers(
    schedulers: Sequence[Scheduler], *, step_log: Sequence[int] = (), itl: bool = False
) -> SystemResults:
    """`run_systems` for systems that are one scheduler each.

    Parameters
    ----------
    schedulers
        C of them.
    step_log, itl
        As for `run_systems`.

    Returns
    -------
    SystemResults
        What each is alone, to the last bit.

    Raises
    ------
    ValueError
        For what is no Scheduler, and options out of range.
    """
    if not isinstance(schedulers, Sequence | np.ndarray):
        raise ValueError(f"schedulers={schedulers!r}: must be a list of Schedulers")
    for position, scheduler in enumerate(schedulers):
        if not isinstance(scheduler, Scheduler):
            raise ValueError(f"schedulers[{position}]={scheduler!r}: must be a Scheduler")
    return run_systems(schedulers, step_log=step_log, itl=itl)


def new_engine(schedulers: Sequence[Scheduler]) -> Engine:
    """The engine of schedulers, before its first step; for a look at how it moves."""
    queues = Queues(schedulers)
    stages = [one.stage("colocated", queues.queues[queues.of_system[i]]) for i, one in enumerate(schedulers)]
    stages = [replace(stage, rate=rate) for stage, rate in zip(stages, queues.rate.tolist(), strict=True)]
    return StageBatch(stages, routed=False).engine(None)
