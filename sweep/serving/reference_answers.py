"""What the reference says about a system, and whether the engine says the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ..hardware.operators import OperatorStepModel
from ..hardware.parts import Link
from ..hardware.profile import TableStepTimes
from ..hardware.step_times import ConstantStepTime
from ..hardware.steps import Step
from ..hardware.table_steps import TableStepModel
from ..measures.result import Result
from ..workloads.workload import Workload
from .reference import Observer, RequestState, schedule
from .reference_steps import Times, times_of
from .reference_systems import ROUTERS, run_system
from .routers import DEFAULT_ROUTER
from .scheduler import Scheduler
from .system import System
from .system_kinds import SYSTEMS
from .systems import Colocated

_KINDS: dict[type[System], str] = {kind.system: name for name, kind in SYSTEMS.items()}
_STEPS = ("step", "prefill_step", "decode_step")
_TIMES = ("admitted", "first_token", "finish", "kv_ready")


def step_times(step: Step) -> Times:
    """The reference's step times of an instance."""
    if isinstance(step, ConstantStepTime):
        return times_of({"seconds": step.seconds})
    numbers = {field.name: getattr(step, field.name) for field in fields(step)}
    if isinstance(step, TableStepTimes):
        return times_of(numbers)
    more: dict[str, Any]
    if isinstance(step, TableStepModel):
        more = {field.name: getattr(step.times, field.name) for field in fields(step.times)}
    else:
        more = step.constants if isinstance(step, OperatorStepModel) else {"link": _link(step.link)}
    chip = step.chip
    return times_of(
        {
            **numbers,
            "model": {field.name: getattr(step.model, field.name) for field in fields(step.model)},
            "chip": {
                "bf16": chip.bf16_flops,
                "fp8": chip.fp8_flops,
                "mem_bw": chip.mem_bytes_per_s,
                "mem_cap": chip.mem_bytes,
            },
            **more,
        }
    )


def answer(system: System, observer: Observer | None = None) -> list[RequestState]:
    """Serve a system's workload by the reference.

    Parameters
    ----------
    system    a scheduler or a serving system
    observer  is told what happens

    Returns
    -------
    The requests in the order of the workload, with what happened to them.
    """
    work = system.workload
    traffic = (work.arrival_s / system.rate).tolist(), work.prompt_tokens.tolist(), work.output_tokens.tolist()
    scheduler = one_scheduler(system)
    if scheduler is not None and work.concurrency is None:
        step_time = step_times(scheduler.step).mixed
        return schedule(*traffic, step_time, **limits(scheduler), observer=observer)[1]
    options = _options(system, *_STEPS)
    if scheduler is system:  # in a closed loop
        options |= {"memory": "unlimited" if scheduler.block_size is None else "paged", "router_seed": 0}
    router, seed = options.get("router", DEFAULT_ROUTER), options.pop("router_seed")
    if "link" in options:
        options["link"] = _link(options["link"])
    requests, _ = run_system(
        _KINDS.get(type(system), "colocated"),
        *traffic,
        {name: step_times(getattr(system, name)) for name in _STEPS if hasattr(system, name)},
        priorities=_priorities(work),
        texts=texts_of(work),
        draws=[_draws(router, seed, stage, len(work)) for stage in (0, 1)],
        concurrency=work.concurrency,
        think_time_s=work.think_time_s,
        observer=observer,
        **options,
    )
    return requests


def texts_of(work: Workload) -> list[list[tuple[int, int]]] | None:
    """What each request's prompt and answer are made of, in the words of `RequestState.texts`; None: its own alone."""
    texts = getattr(work, "texts", None)
    if texts is None:
        return None
    pairs = list(zip(texts.segment.tolist(), texts.tokens.tolist(), strict=True))
    start, answers = texts.start.tolist(), zip(texts.answer.tolist(), work.output_tokens.tolist(), strict=True)
    return [[*pairs[start[i] : start[i + 1]], own] for i, own in enumerate(answers)]


def one_scheduler(system: System) -> Scheduler | None:
    """The one scheduler that a system is, if it is one."""
    if isinstance(system, Scheduler):
        return system
    if isinstance(system, Colocated) and system.n_instances == 1:
        return system.scheduler()
    return None


def limits(scheduler: Scheduler) -> dict[str, Any]:
    """A scheduler's options, priorities and texts, in the words of the reference's `schedule`."""
    work = scheduler.workload
    return {**_options(scheduler, "step"), "priorities": _priorities(work), "texts": texts_of(work)}


def disagreement(result: Result, expected: list[RequestState]) -> str | None:
    """The first thing in which the engine's result differs from the reference's answer; None if they agree.

    Preemptions, tokens found in a cache, and refusals must be the same, times to 1e-9 of their size.
    """
    for name, due in (
        ("preemptions", [request.preemptions for request in expected]),
        ("cached_tokens", [request.cached_tokens for request in expected]),
        ("rejected", [request.status == "rejected" for request in expected]),
    ):
        for i in np.flatnonzero(getattr(result, name) != due)[:1]:
            return f"request {i}: {name} {getattr(result, name)[i]}, the reference's {due[i]}"
    for name in _TIMES:
        times = getattr(result, f"{name}_s")
        answered = np.array([getattr(request, name) for request in expected], dtype=np.float64)
        for i in np.flatnonzero(~np.isclose(times, answered, rtol=1e-9, atol=0, equal_nan=True))[:1]:
            return f"request {i}: {name}_s {times[i]!r}, the reference's {answered[i]!r}"
    return None


def _options(system: Any, *others: str) -> dict[str, Any]:
    """Fields that have a value, but for workload, rate and others."""
    names = [field.name for field in fields(system) if field.name not in ("workload", "rate", *others)]
    return {name: getattr(system, name) for name in names if getattr(system, name) is not None}


def _priorities(work: Workload) -> list[int] | None:
    return None if work.priority is None else work.priority.tolist()


def _draws(router: str, seed: int, stage: int, n: int) -> list[Any]:
    shape: Any = (0, n, (n, 2))[ROUTERS[router].draws]
    drawn: list[Any] = np.random.default_rng([seed, stage]).random(shape).tolist()
    return drawn


def _link(link: Link) -> dict[str, float]:
    return {"alpha_s": link.alpha_s, "bandwidth_bytes_per_s": link.bytes_per_s}
