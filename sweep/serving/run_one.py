"""Run one system: the functions that give a `Result`."""

from __future__ import annotations

from typing import Any

from ..hardware.parts import IB_NDR, Link
from ..measures.result import Result
from ..workloads.workload import Workload
from .policies import DEFAULTS, used_or_none
from .run import run_systems
from .system import Step
from .systems import Colocated, DecodeOnly, Disaggregated, PrefillOnly


def run_colocated(
    workload: Workload,
    step: Step,
    n_instances: int = 1,
    policy: str = "prefill_first",
    chunk_budget: int = DEFAULTS["chunk_budget"],
    max_tokens: int = DEFAULTS["max_tokens"],
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
    memory = options.get("memory", "reserve")
    system = Colocated(
        workload,
        step,
        n_instances,
        policy,
        used_or_none("chunk_budget", chunk_budget, policy, memory),
        used_or_none("max_tokens", max_tokens, policy, memory),
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
    max_tokens: int = DEFAULTS["max_tokens"],
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
    workload: Workload, step: Step, n_instances: int = 1, max_tokens: int = DEFAULTS["max_tokens"], **options: Any
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
