"""Serving systems: colocated, disaggregated, prefill-only and decode-only instances. Their rules: docs/systems.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import checks
from ..hardware.parts import IB_NDR, Link
from ..hardware.step_times import ConstantStepTime, StepModel, kv_transfer_time
from ..kernels.state import NO_END, Rules
from ..measures.result import Result
from ..workloads.workload import Workload
from .run import System, run_systems
from .scheduler import DEFAULT_MAX_TOKENS, Lane
from .stages import MOST, ROUTERS, Queue, Stage

RESERVE_POLICIES = ("prefill_first", "chunked")
COLOCATED_MEMORIES = ("reserve", "paged", "unlimited")
DECODE_MEMORIES = ("reserve", "paged")
DEFAULT_CHUNK_BUDGET = 512
MAX_INSTANCES = 2**20
Step = StepModel | ConstantStepTime


class _Checked(System):
    """Checks that all systems have in common."""

    router: str
    router_seed: int

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _whole(self, name: str, most: int | None = None) -> None:
        self._keep(name, checks.whole(name, getattr(self, name), 1, most))

    def _refuse(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r}: has no effect {why}")

    def _check_traffic(self) -> None:
        if not isinstance(self.workload, Workload):
            raise ValueError(f"workload is a {type(self.workload).__name__}: must be a Workload")
        self._keep("rate", checks.positive("rate", self.rate))
        if np.isinf(float(self.workload.arrival_s.max(initial=0.0)) / self.rate):
            raise ValueError(f"rate={self.rate!r}: too small, the last request would never arrive")
        if self.router not in ROUTERS:
            raise ValueError(f"router={self.router!r}: must be one of {', '.join(ROUTERS)}")
        self._keep("router_seed", checks.whole("router_seed", self.router_seed, 0))

    def _check_steps(self, budget: int | None) -> None:
        """Each step emits a token, or spends the whole budget on one prompt, or ends a prompt."""
        pieces = -(-self.workload.prompt_tokens // (budget or MOST))
        steps = int(np.sum(self.workload.output_tokens)) + int(np.sum(pieces))
        if steps >= NO_END:
            raise ValueError(f"workload: could take {steps} steps, must be fewer than {NO_END:.0f}")

    def _check_step(self, name: str) -> None:
        step = getattr(self, name)
        if not isinstance(step, StepModel | ConstantStepTime):
            raise ValueError(f"{name}={step!r}: must be a StepModel or a ConstantStepTime")
        if isinstance(step, StepModel) and step.kv_capacity_tokens() == 0:
            raise ValueError(
                f"{name}: the weights of {step.model.name} do not fit {step.n_gpus} x {step.chip.name}"
                f" (tp={step.tp}, pp={step.pp}, mem_reserve={step.mem_reserve}): no room for any KV"
            )

    def _routing(self) -> dict[str, Any]:
        return {"router": self.router, "router_seed": self.router_seed, "rate": self.rate}


@dataclass(frozen=True)
class Colocated(_Checked):
    """Instances that each prefill and decode.

    memory        reserve: prompt + output tokens are set aside, policies prefill_first and chunked; paged or unlimited:
                  each instance is a scheduler (see `Lane`), with its policies and options
    chunk_budget  tokens of a step, `chunked` under reserved memory only; None: 512
    max_tokens    prompt tokens of a prefill batch, `prefill_first` only; None: 4096
    max_running, block_size, num_blocks, token_budget    of a scheduler, per instance
    router, router_seed    which instance a request goes to
    rate          arrival = workload.arrival_s / rate

    With `ConstantStepTime`, which knows no KV capacity, reserved memory has no limit. ValueError names the argument,
    the value and what is allowed; an option without effect is an error.
    """

    workload: Workload
    step: Step
    n_instances: int = 1
    policy: str = "prefill_first"
    chunk_budget: int | None = None
    max_tokens: int | None = None
    router: str = "least_loaded"
    router_seed: int = 0
    memory: str = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.memory not in COLOCATED_MEMORIES:
            raise ValueError(f"memory={self.memory!r}: must be one of {', '.join(COLOCATED_MEMORIES)}")
        self._check_step("step")
        self._check_traffic()
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
        if self.policy not in RESERVE_POLICIES:
            raise ValueError(
                f"policy={self.policy!r}: must be one of {', '.join(RESERVE_POLICIES)} with reserved memory"
            )
        used, unused = ("chunk_budget", "max_tokens") if self.policy == "chunked" else ("max_tokens", "chunk_budget")
        self._refuse(f"under policy {self.policy!r}", unused)
        if getattr(self, used) is None:
            self._keep(used, DEFAULT_CHUNK_BUDGET if used == "chunk_budget" else DEFAULT_MAX_TOKENS)
        self._whole(used)
        self._check_steps(self.chunk_budget)

    def _scheduler(self) -> Lane:
        assert self.max_running is not None  # checked on construction
        options = (self.block_size, self.num_blocks, self.token_budget, self.max_tokens)
        return Lane(self.workload, self.step, self.policy, self.max_running, *options, rate=self.rate)

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV blocks of an instance; inf where no request is refused."""
        return np.inf if self.memory == "reserve" else self._scheduler().capacity_tokens

    def stages(self) -> tuple[str, ...]:
        """Roles of the instances that a request meets."""
        return ("colocated",)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        if self.memory != "reserve":
            return replace(self._scheduler().stage(role, queue), instances=self.n_instances, **self._routing())
        return Stage(
            queue,
            self.step,
            Rules(decode_beside_prefill=self.policy == "chunked", reserve=True),
            instances=self.n_instances,
            num_blocks=_capacity(self.step, 1),
            token_budget=self.chunk_budget,
            max_tokens=self.max_tokens,
            **self._routing(),
        )


@dataclass(frozen=True)
class PrefillOnly(_Checked):
    """Instances that only prefill: requests are done with their first token.

    max_tokens  prompt tokens of a prefill batch

    ValueError names the argument, the value and what is allowed.
    """

    workload: Workload
    step: Step
    n_instances: int = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    router: str = "least_loaded"
    router_seed: int = 0
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._check_step("step")
        self._check_traffic()
        self._whole("n_instances", MAX_INSTANCES)
        self._whole("max_tokens")
        self._check_steps(None)

    def stages(self) -> tuple[str, ...]:
        """Roles of the instances that a request meets."""
        return ("prefill",)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return _prefill_stage(queue, self.step, self.n_instances, self.max_tokens, self._routing())


@dataclass(frozen=True)
class DecodeOnly(_Checked):
    """Instances that only decode: requests arrive with their KV and their first token.

    memory       reserve: prompt + output tokens are set aside; paged: blocks, preemption, see docs/systems.md
    max_running, block_size, num_blocks    with paged memory; the first of a lane, of which an instance has pp, the last
                 of an instance; num_blocks None: all that its KV capacity holds

    ValueError names the argument, the value and what is allowed.
    """

    workload: Workload
    step: Step
    n_instances: int = 1
    router: str = "least_loaded"
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

    def stages(self) -> tuple[str, ...]:
        """Roles of the instances that a request meets."""
        return ("decode",)

    def stage(self, role: str, queue: Queue) -> Stage:
        """All instances, with what they shall serve."""
        return _decode_stage(self, queue, self.step, self.n_instances, self._routing())


@dataclass(frozen=True)
class Disaggregated(_Checked):
    """Instances that only prefill, a link that the KV crosses, and instances that only decode.

    max_tokens  prompt tokens of a prefill batch
    memory, max_running, block_size, num_blocks    of the decode instances, see `DecodeOnly`
    router      at both kinds of instances

    A prefill step of `ConstantStepTime` knows no KV: transfers take the latency of the link alone. ValueError names the
    argument, the value and what is allowed.
    """

    workload: Workload
    prefill_step: Step
    decode_step: Step
    n_prefill: int = 1
    n_decode: int = 1
    link: Link = IB_NDR
    max_tokens: int = DEFAULT_MAX_TOKENS
    router: str = "least_loaded"
    router_seed: int = 0
    memory: str = "reserve"
    max_running: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    rate: float = 1.0

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

    def stages(self) -> tuple[str, ...]:
        """Roles of the instances that a request meets."""
        return ("prefill", "decode")

    def stage(self, role: str, queue: Queue) -> Stage:
        """The instances of a role, with what they shall serve."""
        if role == "prefill":
            return _prefill_stage(queue, self.prefill_step, self.n_prefill, self.max_tokens, self._routing())
        routing = {**self._routing(), "rate": 1.0, "draw_stage": 1}
        return _decode_stage(self, queue, self.decode_step, self.n_decode, routing)

    def transfer_s(self, prompt_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds in which the KV of prompts crosses the link."""
        step = self.prefill_step
        if isinstance(step, ConstantStepTime):
            return np.full(prompt_tokens.size, self.link.alpha_s)
        return kv_transfer_time(step.model, prompt_tokens, self.link, step.kv_bytes)


def run_colocated(
    workload: Workload,
    step: Step,
    n_instances: int = 1,
    policy: str = "prefill_first",
    chunk_budget: int = DEFAULT_CHUNK_BUDGET,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    *,
    on_reject: str = "reject",
    **options: Any,
) -> Result:
    """Instances that each prefill and decode; see `Colocated` for the options.

    chunk_budget, max_tokens    under a policy or memory that does not use them any value but the default is an error
    on_reject    what to do with requests that can never fit: "reject" leaves them with NaN times, marked `rejected`;
                 "error" raises ValueError naming the first of them

    All times are in seconds, arrays [N] in the order of the workload.
    """
    chunked = policy == "chunked" and options.get("memory", "reserve") == "reserve"
    system = Colocated(
        workload,
        step,
        n_instances,
        policy,
        None if not chunked and chunk_budget == DEFAULT_CHUNK_BUDGET else chunk_budget,
        None if policy != "prefill_first" and max_tokens == DEFAULT_MAX_TOKENS else max_tokens,
        **options,
    )
    return _run(system, on_reject)


def run_disaggregated(
    workload: Workload,
    prefill_step: Step,
    decode_step: Step,
    n_prefill: int = 1,
    n_decode: int = 1,
    link: Link = IB_NDR,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    *,
    on_reject: str = "reject",
    **options: Any,
) -> Result:
    """Prefill instances, a link, decode instances; see `Disaggregated` for the options, `run_colocated` for the rest.

    `kv_ready_s` of the result is when a request's KV has crossed the link.
    """
    parts = (n_prefill, n_decode, link, max_tokens)
    return _run(Disaggregated(workload, prefill_step, decode_step, *parts, **options), on_reject)


def run_prefill_only(
    workload: Workload, step: Step, n_instances: int = 1, max_tokens: int = DEFAULT_MAX_TOKENS, **options: Any
) -> Result:
    """Prefill instances alone; see `PrefillOnly`. Requests have a first token and no finish (NaN)."""
    return _run(PrefillOnly(workload, step, n_instances, max_tokens, **options), "reject")


def run_decode_only(
    workload: Workload, step: Step, n_instances: int = 1, *, on_reject: str = "reject", **options: Any
) -> Result:
    """Decode instances alone; see `DecodeOnly`. A request's first token is its arrival."""
    return _run(DecodeOnly(workload, step, n_instances, **options), on_reject)


def _run(system: Colocated | Disaggregated | PrefillOnly | DecodeOnly, on_reject: str) -> Result:
    if on_reject not in ("reject", "error"):
        raise ValueError(f"on_reject={on_reject!r}: must be 'reject' or 'error'")
    if on_reject == "error":
        needed = system.workload.prompt_tokens + system.workload.output_tokens - 1
        for position in (needed > system.capacity_tokens).nonzero()[0][:1]:
            raise ValueError(
                f"request {position} can never fit: its cache grows to {needed[position]} tokens, "
                f"the blocks of a lane hold {system.capacity_tokens:.0f}"
            )
    return run_systems([system]).result(0)


def _capacity(step: Step, lanes: int) -> int | None:
    """Tokens of a lane; None without a limit."""
    return None if isinstance(step, ConstantStepTime) else min(step.kv_capacity_tokens() // lanes, MOST)


def _lanes(step: Step) -> int:
    return 1 if isinstance(step, ConstantStepTime) else step.pp


def _prefill_stage(queue: Queue, step: Step, instances: int, max_tokens: int, routing: dict[str, Any]) -> Stage:
    return Stage(
        queue,
        step,
        Rules(decode_beside_prefill=False, reserve=True, decodes=False),
        instances=instances,
        max_tokens=max_tokens,
        pipeline=_lanes(step),
        **routing,
    )


def _check_decode_memory(system: Any, step: Step) -> int | None:
    """KV blocks of a decode instance, None under reserved memory."""
    if system.memory not in DECODE_MEMORIES:
        raise ValueError(f"memory={system.memory!r}: must be one of {', '.join(DECODE_MEMORIES)}")
    if system.memory == "reserve":
        system._refuse("under reserved memory", "max_running", "block_size", "num_blocks")
        return None
    for name in ("block_size", "max_running"):
        if getattr(system, name) is None:
            raise ValueError(f"{name}=None: must be given under paged memory")
        system._whole(name)
    lanes = _lanes(step)
    if system.num_blocks is None:
        capacity = _capacity(step, lanes)
        if capacity is None:
            raise ValueError("num_blocks=None: must be given, as ConstantStepTime knows no KV capacity")
        if capacity < system.block_size:
            raise ValueError(
                f"block_size={system.block_size}: a lane's KV capacity of {capacity} tokens holds no block"
            )
        return int(capacity // system.block_size * lanes)
    return checks.whole("num_blocks", system.num_blocks, lanes)


def _decode_capacity(system: Any, step: Step) -> float:
    if system.memory == "reserve":
        return np.inf
    return float(min(system.block_size * (system.num_blocks // _lanes(step)), MOST))


def _decode_stage(system: Any, queue: Queue, step: Step, instances: int, routing: dict[str, Any]) -> Stage:
    lanes = _lanes(step)
    paged = system.memory == "paged"
    return Stage(
        queue,
        step,
        Rules(reserve=not paged, prefills=False),
        instances=instances,
        lanes=lanes,
        max_running=system.max_running,
        block_size=system.block_size,
        num_blocks=system.num_blocks // lanes if paged else _capacity(step, lanes),
        **routing,
    )
