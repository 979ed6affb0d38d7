"""Run one system: the functions that give a `Result`."""

from __future__ import annotations

from typing import Literal, get_args

from .. import checks
from ..hardware.parts import IB_NDR, Link
from ..hardware.steps import Step
from ..measures.result import Result
from ..workloads.workload import Workload
from .orders import DEFAULT_ORDER, OrderName
from .policies import DEFAULTS, SCHEDULED, MemoryName, PolicyName, used_or_none
from .routers import DEFAULT_ROUTER, RouterName
from .run import run_systems
from .scheduler import Scheduler
from .system import System
from .systems import Colocated, DecodeMemoryName, DecodeOnly, Disaggregated, PrefillOnly

OnReject = Literal["reject", "error"]
SchedulerMemoryName = Literal["paged", "unlimited"]


@checks.spelt_out
def run_scheduler(
    workload: Workload,
    step: Step,
    *,
    policy: PolicyName,
    max_running: int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
    max_tokens: int = DEFAULTS["max_tokens"],
    memory: SchedulerMemoryName | None = None,
    order: OrderName = DEFAULT_ORDER,
    max_wait_s: float | None = None,
    long_prefill_token_threshold: int = 0,
    enable_chunked_prefill: bool = True,
    reserve_full_isl: bool = True,
    watermark: float = 0.0,
    max_model_len: int | None = None,
    async_scheduling: bool = False,
    enable_prefix_caching: bool = False,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    num_gpu_blocks: int | None = None,
    on_reject: OnReject = "reject",
) -> Result:
    """One instance with a batching policy, paged or unlimited KV memory (docs/scheduler.md).

    Parameters
    ----------
    workload, step
        The N requests, and how long steps take.
    policy, max_running, block_size, num_blocks, token_budget, order, max_wait_s
        See `Scheduler`. Each must have an effect.
    max_tokens
        Tokens of a prefill batch of "prefill_first"; under another policy any value but the default is an error.
    memory
        "paged" or "unlimited". None: paged if `block_size` is given, else unlimited.
    long_prefill_token_threshold, enable_chunked_prefill, reserve_full_isl, watermark, max_model_len, async_scheduling
        See `Scheduler`; of policy "vllm" only.
    enable_prefix_caching
        See `Scheduler`; under paged memory only.
    max_num_seqs, max_num_batched_tokens, num_gpu_blocks
        vLLM's names for `max_running`, `token_budget`, and `num_blocks` + 1. None: ours are given.
    on_reject
        What to do with requests that can never fit: "reject" leaves them with NaN times, marked `rejected`; "error"
        raises ValueError naming the first of them.

    Returns
    -------
    Result
        Times in seconds, arrays [N] in the order of the workload.

    Raises
    ------
    ValueError
        For a value out of range, an option without effect, or with `on_reject="error"` a request that can never fit.
    """
    if memory is not None:
        checks.one_of("memory", memory, SCHEDULED)
    if memory == "paged" and block_size is None:
        raise ValueError("block_size=None: must be given under paged memory")
    if memory == "unlimited" and block_size is not None:
        raise ValueError(f"block_size={block_size!r}: has no effect under unlimited memory")
    max_running = _by_either_name("max_running", max_running, "max_num_seqs", max_num_seqs)
    token_budget = _by_either_name("token_budget", token_budget, "max_num_batched_tokens", max_num_batched_tokens)
    if num_gpu_blocks is not None:
        num_gpu_blocks = checks.whole("num_gpu_blocks", num_gpu_blocks, 2) - 1  # vLLM never hands one of them out
    num_blocks = _by_either_name("num_blocks", num_blocks, "num_gpu_blocks", num_gpu_blocks)
    if max_running is None:
        raise ValueError("max_running=None: must be given")
    scheduler = Scheduler(
        workload,
        step,
        policy=policy,
        max_running=max_running,
        block_size=block_size,
        num_blocks=num_blocks,
        token_budget=token_budget,
        max_tokens=used_or_none("max_tokens", max_tokens, policy, "unlimited" if block_size is None else "paged"),
        order=order,
        max_wait_s=max_wait_s,
        long_prefill_token_threshold=long_prefill_token_threshold,
        enable_chunked_prefill=enable_chunked_prefill,
        reserve_full_isl=reserve_full_isl,
        watermark=watermark,
        max_model_len=max_model_len,
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
    )
    return _run(scheduler, on_reject)


@checks.spelt_out
def run_colocated(
    workload: Workload,
    step: Step,
    n_instances: int = 1,
    policy: PolicyName = "prefill_first",
    chunk_budget: int = DEFAULTS["chunk_budget"],
    max_tokens: int = DEFAULTS["max_tokens"],
    *,
    memory: MemoryName = "reserve",
    max_running: int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
    long_prefill_token_threshold: int = 0,
    enable_chunked_prefill: bool = True,
    reserve_full_isl: bool = True,
    watermark: float = 0.0,
    max_model_len: int | None = None,
    async_scheduling: bool = False,
    enable_prefix_caching: bool = False,
    order: OrderName = DEFAULT_ORDER,
    max_wait_s: float | None = None,
    router: RouterName = DEFAULT_ROUTER,
    router_seed: int = 0,
    rate: float = 1.0,
    on_reject: OnReject = "reject",
) -> Result:
    """Instances that each prefill and decode, and a router in front of them (docs/systems.md).

    Parameters
    ----------
    workload, step
        The N requests, and how long the steps of an instance take.
    n_instances, policy, memory, max_running, block_size, num_blocks, token_budget, order, max_wait_s
        See `Colocated`.
    long_prefill_token_threshold, enable_chunked_prefill, reserve_full_isl, watermark, max_model_len, async_scheduling
        See `Scheduler`; of policy "vllm" only.
    enable_prefix_caching
        See `Colocated`; under paged memory only.
    chunk_budget, max_tokens
        See `Colocated`; under a policy or memory that does not use them any value but the default is an error.
    router, router_seed, rate
        See `Colocated`.
    on_reject
        What to do with requests that can never fit: "reject" leaves them with NaN times, marked `rejected`; "error"
        raises ValueError naming the first of them.

    Returns
    -------
    Result
        Times in seconds, arrays [N] in the order of the workload.

    Raises
    ------
    ValueError
        For a value out of range, an option without effect, or with `on_reject="error"` a request that can never fit.
    """
    system = Colocated(
        workload,
        step,
        n_instances=n_instances,
        policy=policy,
        memory=memory,
        chunk_budget=used_or_none("chunk_budget", chunk_budget, policy, memory),
        max_tokens=used_or_none("max_tokens", max_tokens, policy, memory),
        max_running=max_running,
        block_size=block_size,
        num_blocks=num_blocks,
        token_budget=token_budget,
        long_prefill_token_threshold=long_prefill_token_threshold,
        enable_chunked_prefill=enable_chunked_prefill,
        reserve_full_isl=reserve_full_isl,
        watermark=watermark,
        max_model_len=max_model_len,
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        order=order,
        max_wait_s=max_wait_s,
        router=router,
        router_seed=router_seed,
        rate=rate,
    )
    return _run(system, on_reject)


@checks.spelt_out
def run_disaggregated(
    workload: Workload,
    prefill_step: Step,
    decode_step: Step,
    n_prefill: int = 1,
    n_decode: int = 1,
    link: Link = IB_NDR,
    max_tokens: int = DEFAULTS["max_tokens"],
    *,
    memory: DecodeMemoryName = "reserve",
    max_running: int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    order: OrderName = DEFAULT_ORDER,
    max_wait_s: float | None = None,
    router: RouterName = DEFAULT_ROUTER,
    router_seed: int = 0,
    rate: float = 1.0,
    on_reject: OnReject = "reject",
) -> Result:
    """Instances that only prefill, a link that the KV crosses, and instances that only decode (docs/systems.md).

    Parameters
    ----------
    workload, prefill_step, decode_step
        The N requests, and how long the steps of an instance of each role take.
    n_prefill, n_decode, link, max_tokens, memory, max_running, block_size, num_blocks, order, max_wait_s
        See `Disaggregated`.
    router, router_seed, rate
        See `Disaggregated`.
    on_reject
        As for `run_colocated`.

    Returns
    -------
    Result
        Times in seconds, arrays [N] in the order of the workload; `kv_ready_s` is when a request's KV has crossed the
        link.

    Raises
    ------
    ValueError
        For a value out of range, an option without effect, or with `on_reject="error"` a request that can never fit.
    """
    system = Disaggregated(
        workload,
        prefill_step,
        decode_step,
        n_prefill=n_prefill,
        n_decode=n_decode,
        link=link,
        max_tokens=max_tokens,
        memory=memory,
        max_running=max_running,
        block_size=block_size,
        num_blocks=num_blocks,
        order=order,
        max_wait_s=max_wait_s,
        router=router,
        router_seed=router_seed,
        rate=rate,
    )
    return _run(system, on_reject)


@checks.spelt_out
def run_prefill_only(
    workload: Workload,
    step: Step,
    n_instances: int = 1,
    max_tokens: int = DEFAULTS["max_tokens"],
    *,
    order: OrderName = DEFAULT_ORDER,
    max_wait_s: float | None = None,
    router: RouterName = DEFAULT_ROUTER,
    router_seed: int = 0,
    rate: float = 1.0,
) -> Result:
    """Prefill instances alone (docs/systems.md).

    Parameters
    ----------
    workload, step
        The N requests, and how long the steps of an instance take.
    n_instances, max_tokens, order, max_wait_s, router, router_seed, rate
        See `PrefillOnly`.

    Returns
    -------
    Result
        Times in seconds, arrays [N] in the order of the workload; requests have a first token and no finish (NaN).

    Raises
    ------
    ValueError
        For a value out of range.
    """
    system = PrefillOnly(
        workload,
        step,
        n_instances=n_instances,
        max_tokens=max_tokens,
        order=order,
        max_wait_s=max_wait_s,
        router=router,
        router_seed=router_seed,
        rate=rate,
    )
    return _run(system, "reject")


@checks.spelt_out
def run_decode_only(
    workload: Workload,
    step: Step,
    n_instances: int = 1,
    *,
    memory: DecodeMemoryName = "reserve",
    max_running: int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    router: RouterName = DEFAULT_ROUTER,
    router_seed: int = 0,
    rate: float = 1.0,
    on_reject: OnReject = "reject",
) -> Result:
    """Decode instances alone; requests arrive with their KV and their first token (docs/systems.md).

    Parameters
    ----------
    workload, step
        The N requests, and how long the steps of an instance take.
    n_instances, memory, max_running, block_size, num_blocks, router, router_seed, rate
        See `DecodeOnly`.
    on_reject
        As for `run_colocated`.

    Returns
    -------
    Result
        Times in seconds, arrays [N] in the order of the workload; a request's first token is its arrival.

    Raises
    ------
    ValueError
        For a value out of range, an option without effect, or with `on_reject="error"` a request that can never fit.
    """
    system = DecodeOnly(
        workload,
        step,
        n_instances=n_instances,
        memory=memory,
        max_running=max_running,
        block_size=block_size,
        num_blocks=num_blocks,
        router=router,
        router_seed=router_seed,
        rate=rate,
    )
    return _run(system, on_reject)


def _by_either_name(name: str, value: int | None, other: str, given: int | None) -> int | None:
    """What was given by our name or by vLLM's."""
    if value is not None and given is not None:
        raise ValueError(f"{other}={given!r}: must not be given beside {name}={value!r}, which it is another name of")
    return given if value is None else value


def _run(system: System, on_reject: OnReject) -> Result:
    checks.one_of("on_reject", on_reject, get_args(OnReject))
    if on_reject == "error":
        needed = system.workload.prompt_tokens + system.workload.output_tokens - 1
        for position in (needed > system.capacity_tokens).nonzero()[0][:1]:
            blocks = ", ".join(f"{name}={getattr(system, name, None)}" for name in ("num_blocks", "block_size"))
            raise ValueError(
                f"request {position} can never fit: its cache grows to {needed[position]} tokens: must be at most "
                f"{system.capacity_tokens:.0f}, with {blocks}"
            )
    return run_systems([system]).result(0)
