"""Serving systems: colocated, disaggregated, prefill-only and decode-only instances. Their rules: docs/systems.md."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import checks
from ..hardware.parts import IB_NDR, Link
from ..hardware.step_times import kv_transfer_time
from ..hardware.steps import KNOWS_CHIP, Step
from ..workloads.workload import Workload
from .orders import DEFAULT_ORDER, OrderName, check_order
from .policies import DEFAULTS, VLLM_OPTIONS, MemoryName, PolicyName, policy_of
from .queue import Queue
from .roles import check_decode_memory, decode_capacity, decode_stage, prefill_stage
from .routers import DEFAULT_ROUTER, RouterName
from .scheduler import DEFAULT_MAX_TOKENS, Scheduler
from .stages import Stage
from .system import RoutedSystem, capacity_of

DEFAULT_CHUNK_BUDGET = DEFAULTS["chunk_budget"]
MAX_INSTANCES = 2**20
DecodeMemoryName = Literal["reserve", "paged"]


@checks.spelt_out
@dataclass(frozen=True)
class Colocated(RoutedSystem):
    """Instances that each prefill and decode, and a router in front of them.

    The rules are in docs/systems.md. With `ConstantStepTime`, which knows no KV capacity, reserved memory has no limit.

    Parameters
    ----------
    workload
        The requests.
    step
        How long the steps of an instance take.
    n_instances
        Instances, all alike.
    policy
        "prefill_first", "chunked", or without reserved memory "mixed" or "vllm"; see `Scheduler`.
    memory
        "reserve": prompt + output tokens are set aside at admission; "paged" or "unlimited": each instance is a
        `Scheduler` with its policies and options.
    chunk_budget
        Tokens of a step, of "chunked" under reserved memory only. None: 512 there.
    max_tokens
        Prompt tokens of a prefill batch, of "prefill_first" only. None: 4096 there.
    max_running, block_size, num_blocks, token_budget
        See `Scheduler`, which an instance is without reserved memory. None: under reserved memory.
    long_prefill_token_threshold, enable_chunked_prefill, reserve_full_isl, watermark, max_model_len, async_scheduling
        See `Scheduler`; of "vllm" only.
    enable_prefix_caching
        Whether each instance finds blocks again by their content; under paged memory only.
    order, max_wait_s
        See `Scheduler`: who is admitted next.
    router, router_seed
        Which instance a request goes to: "least_loaded", "least_outstanding", "least_tokens", "round_robin", "random"
        or "power_of_two", and the seed of the last two.
    rate
        Arrival = workload.arrival_s / rate.

    Raises
    ------
    ValueError
        For a value out of range, and for an option without effect.
    """

    roles: ClassVar[tuple[str, ...]] = ("colocated",)
    memories: ClassVar[tuple[str, ...]] = get_args(MemoryName)

    workload: Workload
    step: Step
    _: KW_ONLY
    n_instances: int = 1
    policy: PolicyName = "prefill_first"
    memory: MemoryName = "reserve"
    chunk_budget: int | None = None
    max_tokens: int | None = None
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_full_isl: bool = True
    watermark: float = 0.0
    max_model_len: int | None = None
    async_scheduling: bool = False
    enable_prefix_caching: bool = False
    order: OrderName = DEFAULT_ORDER
    max_wait_s: float | None = None
    router: RouterName = DEFAULT_ROUTER
    router_seed: int = 0
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_memory(self.memory)
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        self._whole("n_instances", MAX_INSTANCES)
        if self.memory != "reserve":
            self._refuse("without reserved memory", "chunk_budget")
            if self.memory == "paged" and self.block_size is None:
                raise ValueError("block_size=None: must be given under paged memory")
            if self.memory == "unlimited":
                self._refuse("under unlimited memory", "block_size", "num_blocks")
            if self.max_running is None:
                raise ValueError(f"max_running=None: must be given under {self.memory} memory")
            for name in ("num_blocks", "token_budget", "max_tokens", "max_running"):
                self._keep(name, getattr(self.scheduler(), name))
            return
        self._refuse("under reserved memory", "max_running", "block_size", "num_blocks", "token_budget")
        for name in ("enable_prefix_caching", *VLLM_OPTIONS):
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name}={getattr(self, name)!r}: has no effect under reserved memory")
        used = policy_of(self.policy, self.memory).options[self.memory]
        for name in ("chunk_budget", "max_tokens"):
            if name not in used:
                self._refuse(f"under policy {self.policy!r}", name)
                continue
            if getattr(self, name) is None:
                self._keep(name, DEFAULTS[name])
            self._whole(name)
        self._check_steps(self.chunk_budget)

    def scheduler(self) -> Scheduler | None:
        """The scheduler that each of its instances is; None under reserved memory."""
        if self.memory == "reserve" or self.max_running is None:
            return None
        return Scheduler(
            self.workload,
            self.step,
            policy=self.policy,
            max_running=self.max_running,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            token_budget=self.token_budget,
            max_tokens=self.max_tokens,
            order=self.order,
            max_wait_s=self.max_wait_s,
            rate=self.rate,
            enable_prefix_caching=self.enable_prefix_caching,
            **{name: getattr(self, name) for name in VLLM_OPTIONS},
        )

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of an instance; inf where no request is refused."""
        scheduler = self.scheduler()
        return np.inf if scheduler is None else scheduler.capacity_tokens

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        scheduler = self.scheduler()
        if scheduler is not None:
            return replace(scheduler.stage(role, queue), instances=self.n_instances, **self._routing())
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


@checks.spelt_out
@dataclass(frozen=True)
class PrefillOnly(RoutedSystem):
    """Instances that only prefill, and a router in front of them: requests are done with their first token.

    The rules are in docs/systems.md.

    Parameters
    ----------
    workload
        The requests.
    step
        How long the steps of an instance take; its `pp` stages are a pipeline.
    n_instances
        Instances, all alike.
    max_tokens
        Prompt tokens of a prefill batch.
    order, max_wait_s
        See `Scheduler`: who is taken up next.
    router, router_seed, rate
        As of `Colocated`.

    Raises
    ------
    ValueError
        For a value out of range.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill",)
    memories: ClassVar[tuple[str, ...]] = ()

    workload: Workload
    step: Step
    _: KW_ONLY
    n_instances: int = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    order: OrderName = DEFAULT_ORDER
    max_wait_s: float | None = None
    router: RouterName = DEFAULT_ROUTER
    router_seed: int = 0
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        check_order(self.order, self.max_wait_s, self.workload)
        self._whole("n_instances", MAX_INSTANCES)
        self._whole("max_tokens")
        self._check_steps(None)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return prefill_stage(self, queue, self.step, self.n_instances)


@checks.spelt_out
@dataclass(frozen=True)
class DecodeOnly(RoutedSystem):
    """Instances that only decode, and a router in front of them: requests arrive with their KV and their first token.

    The rules are in docs/systems.md.

    Parameters
    ----------
    workload
        The requests.
    step
        How long the steps of an instance take; it works on `pp` batches in turn.
    n_instances
        Instances, all alike.
    memory
        "reserve": prompt + output tokens are set aside at admission; "paged": blocks, preemption.
    max_running
        Most requests of a batch that run at a time, of which an instance has `pp`; with paged memory only. None: under
        reserved memory.
    block_size
        Tokens of a KV block; with paged memory only. None: under reserved memory.
    num_blocks
        KV blocks of an instance; with paged memory only. None: all that its KV capacity holds.
    router, router_seed, rate
        As of `Colocated`.

    Raises
    ------
    ValueError
        For a value out of range, and for an option without effect.
    """

    roles: ClassVar[tuple[str, ...]] = ("decode",)
    memories: ClassVar[tuple[str, ...]] = get_args(DecodeMemoryName)

    workload: Workload
    step: Step
    _: KW_ONLY
    n_instances: int = 1
    memory: DecodeMemoryName = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    router: RouterName = DEFAULT_ROUTER
    router_seed: int = 0
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        self._whole("n_instances", MAX_INSTANCES)
        self._check_steps(None)
        self._keep("num_blocks", check_decode_memory(self, self.step))

    @property
    def skips_one_token(self) -> bool:
        """Whether requests of one token join no instance."""
        return self.memory == "paged"

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of a stream; inf where no request is refused."""
        return decode_capacity(self, self.step)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return decode_stage(self, queue, self.step, self.n_instances, self._routing())


@checks.spelt_out
@dataclass(frozen=True)
class Disaggregated(RoutedSystem):
    """Instances that only prefill, a link that the KV crosses, and instances that only decode.

    The rules are in docs/systems.md. A prefill step of `ConstantStepTime` knows no KV: transfers take the latency of
    the link alone.

    Parameters
    ----------
    workload
        The requests.
    prefill_step, decode_step
        How long the steps of an instance of each role take; both serve the same model.
    n_prefill, n_decode
        Instances of each role.
    link
        What the KV crosses.
    max_tokens, order, max_wait_s
        See `PrefillOnly`: of the prefill instances; decode instances serve who is ready first.
    memory, max_running, block_size, num_blocks
        See `DecodeOnly`: of the decode instances.
    router, router_seed
        At both kinds of instances, see `Colocated`.
    rate
        Arrival = workload.arrival_s / rate.

    Raises
    ------
    ValueError
        For a value out of range, and for an option without effect.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode")
    memories: ClassVar[tuple[str, ...]] = get_args(DecodeMemoryName)

    workload: Workload
    prefill_step: Step
    decode_step: Step
    _: KW_ONLY
    n_prefill: int = 1
    n_decode: int = 1
    link: Link = IB_NDR
    max_tokens: int = DEFAULT_MAX_TOKENS
    order: OrderName = DEFAULT_ORDER
    max_wait_s: float | None = None
    memory: DecodeMemoryName = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    router: RouterName = DEFAULT_ROUTER
    router_seed: int = 0
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_step("prefill_step")
        self._check_step("decode_step")
        models = [step.model for step in (self.prefill_step, self.decode_step) if isinstance(step, KNOWS_CHIP)]
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
        self._keep("num_blocks", check_decode_memory(self, self.decode_step))

    @property
    def skips_one_token(self) -> bool:
        """Whether requests of one token join no decode instance."""
        return self.memory == "paged"

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of a stream of a decode instance; inf where no request is refused."""
        return decode_capacity(self, self.decode_step)

    def stage(self, role: str, queue: Queue) -> Stage:
        """The instances of a role, with what they shall serve."""
        if role == "prefill":
            return prefill_stage(self, queue, self.prefill_step, self.n_prefill)
        routing = {**self._routing(), "rate": 1.0, "draw_stage": 1}
        return decode_stage(self, queue, self.decode_step, self.n_decode, routing)

    def transfer_s(self, prompt_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds in which the KV of prompts crosses the link."""
        step = self.prefill_step
        if not isinstance(step, KNOWS_CHIP):
            return np.full(prompt_tokens.size, self.link.alpha_s)
        return kv_transfer_time(step.model, prompt_tokens, self.link, step.kv_bytes)
