"""Serving systems: colocated, disaggregated, prefill-only and decode-only instances. Their rules: docs/systems.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import checks
from ..hardware.parts import IB_NDR, Link
from ..hardware.step_times import ConstantStepTime, StepModel, kv_transfer_time
from ..kernels.rules import Rules
from ..workloads.workload import Workload
from .orders import DEFAULT_ORDER, check_order
from .policies import DEFAULTS, policy_of
from .queue import Queue
from .routers import DEFAULT_ROUTER
from .scheduler import DEFAULT_MAX_TOKENS, Lane
from .stages import UNLIMITED_TOKENS, Stage
from .system import RoutedSystem, Step, capacity_of, default_num_blocks, streams_of

DEFAULT_CHUNK_BUDGET = DEFAULTS["chunk_budget"]
MAX_INSTANCES = 2**20


@dataclass(frozen=True)
class Colocated(RoutedSystem):
    """Instances that each prefill and decode.

    memory        reserve: prompt + output tokens are set aside, policies prefill_first and chunked; paged or unlimited:
                  each instance is a scheduler (see `Lane`), with its policies and options
    chunk_budget  tokens of a step, `chunked` under reserved memory only; None: 512
    max_tokens    prompt tokens of a prefill batch, `prefill_first` only; None: 4096
    max_running, block_size, num_blocks, token_budget    of a scheduler, per instance
    router, router_seed    which instance a request goes to
    rate          arrival = workload.arrival_s / rate
    order, max_wait_s      who is admitted next (docs/scheduler.md); who has waited so long goes first

    With `ConstantStepTime`, which knows no KV capacity, reserved memory has no limit. ValueError names the argument,
    the value and what is allowed; an option without effect is an error.
    """

    roles: ClassVar[tuple[str, ...]] = ("colocated",)
    memories: ClassVar[tuple[str, ...]] = ("reserve", "paged", "unlimited")

    workload: Workload
    step: Step
    n_instances: int = 1
    policy: str = "prefill_first"
    chunk_budget: int | None = None
    max_tokens: int | None = None
    router: str = DEFAULT_ROUTER
    router_seed: int = 0
    memory: str = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    rate: float = 1.0
    order: str = DEFAULT_ORDER
    max_wait_s: float | None = None

    def __post_init__(self) -> None:
        self._check_memory(self.memory)
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        self._whole("n_instances", MAX_INSTANCES)
        if self.memory != "reserve":
            self._refuse("without reserved memory", "chunk_budget")
            if self.memory == "paged" and self.block_size is None:
                raise ValueError("block_size=None: paged memory needs a block size")
            if self.memory == "unlimited":
                self._refuse("under unlimited memory", "block_size", "num_blocks")
            if self.max_running is None:
                raise ValueError(f"max_running=None: must be given under {self.memory} memory")
            for name in ("num_blocks", "token_budget", "max_tokens", "max_running"):
                self._keep(name, getattr(self._scheduler(), name))
            return
        self._refuse("under reserved memory", "max_running", "block_size", "num_blocks", "token_budget")
        used = policy_of(self.policy, self.memory).options[self.memory]
        for name in ("chunk_budget", "max_tokens"):
            if name not in used:
                self._refuse(f"under policy {self.policy!r}", name)
                continue
            if getattr(self, name) is None:
                self._keep(name, DEFAULTS[name])
            self._whole(name)
        self._check_steps(self.chunk_budget)

    def _scheduler(self) -> Lane:
        assert self.max_running is not None  # checked on construction
        options = (self.block_size, self.num_blocks, self.token_budget, self.max_tokens)
        return Lane(
            self.workload,
            self.step,
            self.policy,
            self.max_running,
            *options,
            rate=self.rate,
            order=self.order,
            max_wait_s=self.max_wait_s,
        )

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of an instance; inf where no request is refused."""
        return np.inf if self.memory == "reserve" else self._scheduler().capacity_tokens

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        if self.memory != "reserve":
            return replace(self._scheduler().stage(role, queue), instances=self.n_instances, **self._routing())
        return Stage(
            queue,
            self.step,
            policy_of(self.policy).rules(self.memory),
            instances=self.n_instances,
            num_blocks=capacity_of(self.step, 1),
            token_budget=self.chunk_budget,
            max_tokens=self.max_tokens,
            order=self.order,
            max_wait_s=self.max_wait_s,
            **self._routing(),
        )


@dataclass(frozen=True)
class PrefillOnly(RoutedSystem):
    """Instances that only prefill: requests are done with their first token.

    max_tokens  prompt tokens of a prefill batch
    order, max_wait_s    who is taken next (docs/scheduler.md); who has waited so long goes first

    ValueError names the argument, the value and what is allowed.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill",)
    memories: ClassVar[tuple[str, ...]] = ()

    workload: Workload
    step: Step
    n_instances: int = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    router: str = DEFAULT_ROUTER
    router_seed: int = 0
    rate: float = 1.0
    order: str = DEFAULT_ORDER
    max_wait_s: float | None = None

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        self._whole("n_instances", MAX_INSTANCES)
        self._whole("max_tokens")
        self._check_steps(None)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return _prefill_stage(self, queue, self.step, self.n_instances)


@dataclass(frozen=True)
class DecodeOnly(RoutedSystem):
    """Instances that only decode: requests arrive with their KV and their first token.

    memory       reserve: prompt + output tokens are set aside; paged: blocks, preemption, see docs/systems.md
    max_running, block_size, num_blocks    with paged memory; the first of a lane, of which an instance has pp, the last
                 of an instance; num_blocks None: all that its KV capacity holds

    ValueError names the argument, the value and what is allowed.
    """

    roles: ClassVar[tuple[str, ...]] = ("decode",)
    memories: ClassVar[tuple[str, ...]] = ("reserve", "paged")

    workload: Workload
    step: Step
    n_instances: int = 1
    router: str = DEFAULT_ROUTER
    router_seed: int = 0
    memory: str = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        self._whole("n_instances", MAX_INSTANCES)
        self._check_steps(None)
        self._keep("num_blocks", _check_decode_memory(self, self.step))

    @property
    def skips_one_token(self) -> bool:
        """Whether requests of one token join no instance."""
        return self.memory == "paged"

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of a lane; inf where no request is refused."""
        return _decode_capacity(self, self.step)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return _decode_stage(self, queue, self.step, self.n_instances, self._routing())


@dataclass(frozen=True)
class Disaggregated(RoutedSystem):
    """Instances that only prefill, a link that the KV crosses, and instances that only decode.

    max_tokens  prompt tokens of a prefill batch
    memory, max_running, block_size, num_blocks    of the decode instances, see `DecodeOnly`
    router      at both kinds of instances
    order, max_wait_s    of the prefill instances, see `PrefillOnly`; decode instances serve who is ready first

    A prefill step of `ConstantStepTime` knows no KV: transfers take the latency of the link alone. ValueError names the
    argument, the value and what is allowed.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode")
    memories: ClassVar[tuple[str, ...]] = ("reserve", "paged")

    workload: Workload
    prefill_step: Step
    decode_step: Step
    n_prefill: int = 1
    n_decode: int = 1
    link: Link = IB_NDR
    max_tokens: int = DEFAULT_MAX_TOKENS
    router: str = DEFAULT_ROUTER
    router_seed: int = 0
    memory: str = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    rate: float = 1.0
    order: str = DEFAULT_ORDER
    max_wait_s: float | None = None

    def __post_init__(self) -> None:
        self._check_step("prefill_step")
        self._check_step("decode_step")
        models = [step.model for step in (self.prefill_step, self.decode_step) if isinstance(step, StepModel)]
        if len(models) == 2 and models[0] != models[1]:
            raise ValueError(
                f"decode_step: serves {models[1].name}, must serve the model of prefill_step, {models[0].name}"
            )
        if not isinstance(self.link, Link):
            raise ValueError(f"link={self.link!r}: must be a Link, for example servesweep.link(...)")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        for name in ("n_prefill", "n_decode"):
            self._whole(name, MAX_INSTANCES)
        self._whole("max_tokens")
        self._check_steps(None)
        self._keep("num_blocks", _check_decode_memory(self, self.decode_step))

    @property
    def skips_one_token(self) -> bool:
        """Whether requests of one token join no decode instance."""
        return self.memory == "paged"

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of a lane of a decode instance; inf where no request is refused."""
        return _decode_capacity(self, self.decode_step)

    def stage(self, role: str, queue: Queue) -> Stage:
        """The instances of a role, with what they shall serve."""
        if role == "prefill":
            return _prefill_stage(self, queue, self.prefill_step, self.n_prefill)
        routing = {**self._routing(), "rate": 1.0, "draw_stage": 1}
        return _decode_stage(self, queue, self.decode_step, self.n_decode, routing)

    def transfer_s(self, prompt_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds in which the KV of prompts crosses the link."""
        step = self.prefill_step
        if isinstance(step, ConstantStepTime):
            return np.full(prompt_tokens.size, self.link.alpha_s)
        return kv_transfer_time(step.model, prompt_tokens, self.link, step.kv_bytes)


def _prefill_stage(system: PrefillOnly | Disaggregated, queue: Queue, step: Step, instances: int) -> Stage:
    return Stage(
        queue,
        step,
        Rules(decode_beside_prefill=False, reserve=True, decodes=False),
        instances=instances,
        max_tokens=system.max_tokens,
        pipeline=streams_of("decode", step),
        order=system.order,
        max_wait_s=system.max_wait_s,
        **system._routing(),
    )


def _check_decode_memory(system: Any, step: Step) -> int | None:
    """KV blocks of a decode instance, None under reserved memory."""
    system._check_memory(system.memory)
    if system.memory == "reserve":
        system._refuse("under reserved memory", "max_running", "block_size", "num_blocks")
        return None
    for name in ("block_size", "max_running"):
        if getattr(system, name) is None:
            raise ValueError(f"{name}=None: must be given under paged memory")
        system._whole(name)
    lanes = streams_of("decode", step)
    if system.num_blocks is None:
        blocks = default_num_blocks(step, system.block_size, lanes)
        if not blocks:
            capacity = capacity_of(step, lanes)
            raise ValueError(
                f"block_size={system.block_size}: a lane's KV capacity of {capacity} tokens holds no block"
            )
        return blocks
    return checks.whole("num_blocks", system.num_blocks, lanes)


def _decode_capacity(system: Any, step: Step) -> float:
    if system.memory == "reserve":
        return np.inf
    return float(min(system.block_size * (system.num_blocks // streams_of("decode", step)), UNLIMITED_TOKENS))


def _decode_stage(system: Any, queue: Queue, step: Step, instances: int, routing: dict[str, Any]) -> Stage:
    lanes = streams_of("decode", step)
    paged = system.memory == "paged"
    return Stage(
        queue,
        step,
        Rules(reserve=not paged, prefills=False),
        instances=instances,
        lanes=lanes,
        max_running=system.max_running,
        block_size=system.block_size,
        num_blocks=system.num_blocks // lanes if paged else capacity_of(step, lanes),
        **routing,
    )
