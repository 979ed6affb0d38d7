"""`simulate`: the scheduler in whole steps, for a list of named requests (docs/scheduler.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..hardware.step_times import ConstantStepTime
from ..workloads.workload import Workload
from .scheduler import Scheduler, run_schedulers

_LAST_STEP = 2**52  # later ones are not exact in the float64 of the engine's clock
_LONGEST = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """A request of `simulate`.

    Parameters
    ----------
    rid
        Its name.
    arrival
        The first step at which it may be scheduled.
    prompt_len, output_len
        Tokens.
    """

    rid: str
    arrival: int
    prompt_len: int
    output_len: int


def simulate(
    requests: Iterable[Request],
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
    log: list[dict[str, int]] | None = None,
) -> dict[str, dict[str, int]]:
    """Schedule requests in steps 0, 1, 2, ... and say for each when its first and its last token came.

    It is the engine that runs sweeps, with steps of one second. The order of events inside a step is in
    docs/scheduler.md.

    Parameters
    ----------
    requests
        In any order.
    max_running
        Most requests that run at a time.
    block_size, num_blocks
        Tokens of a KV block, and how many there are. Both None: unlimited memory.
    token_budget
        Most tokens processed in a step, decoding requests first. None: prompts run whole.
    log
        A list that gets one dict a step from 0 to the last finish, with the integers step, running, emitted, tokens and
        blocks_used. None: nothing is kept.

    Returns
    -------
    dict
        `{rid: {"first_token": step, "finish": step, "preemptions": n}}` in the order of `requests`.

    Raises
    ------
    ValueError
        For a value that is not allowed.
    TypeError
        For one that is not an integer where an integer is due.
    """
    requests = _listed(requests)
    scheduler, served = as_scheduler(requests, max_running, block_size, num_blocks, token_budget)
    if log is not None and not isinstance(log, list):
        raise TypeError(f"log={log!r}: must be a list, not {type(log).__name__}")
    if not requests:
        return {}
    results = run_schedulers([scheduler], step_log=[] if log is None else [0])
    if log is not None:
        log.extend(_with_idle_steps(results.step_logs[0]))
    outcome = {
        request.rid: {"first_token": int(first) - 1, "finish": int(finish) - 1, "preemptions": int(preemptions)}
        for request, first, finish, preemptions in zip(
            served, results.first_token_s[0], results.finish_s[0], results.preemptions[0], strict=True
        )
    }
    return {request.rid: outcome[request.rid] for request in requests}


def as_scheduler(
    requests: Iterable[Request],
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
) -> tuple[Scheduler, list[Request]]:
    """The scheduler of `simulate` with steps of one second, and its requests in the order of its workload.

    Errors are those of `simulate`.
    """
    requests = _listed(requests)
    _check(requests, max_running, block_size, num_blocks, token_budget)
    served = sorted(requests, key=lambda request: (request.arrival, request.rid))
    workload = Workload(
        np.array([int(r.arrival) for r in served], np.float64),
        np.array([int(r.prompt_len) for r in served], np.int64),
        np.array([int(r.output_len) for r in served], np.int64),
    )
    scheduler = Scheduler(
        workload,
        ConstantStepTime(1.0),
        policy="mixed" if token_budget is None else "chunked",
        max_running=max_running,
        block_size=block_size,
        num_blocks=num_blocks,
        token_budget=token_budget,
    )
    return scheduler, served


def _listed(requests: Iterable[Request]) -> list[Request]:
    try:
        return list(requests)
    except TypeError:
        raise TypeError(f"requests is a {type(requests).__name__}: must be a list of Request") from None


def _with_idle_steps(columns: dict[str, Any]) -> Iterator[dict[str, int]]:
    names = ("running", "emitted", "tokens", "blocks_used")
    following = 0
    for row in zip(*(columns[name].astype(np.int64).tolist() for name in ("start_s", *names)), strict=True):
        for step in range(following, row[0]):
            yield {"step": step, **dict.fromkeys(names, 0)}
        yield dict(zip(("step", *names), row, strict=True))
        following = row[0] + 1


def _check(requests: list[Request], max_running: Any, block_size: Any, num_blocks: Any, token_budget: Any) -> None:
    _integer("max_running", max_running, 1)
    if (block_size is None) != (num_blocks is None):
        raise ValueError(f"block_size={block_size!r}, num_blocks={num_blocks!r}: must be given together or not at all")
    if block_size is not None:
        _integer("block_size", block_size, 1)
        _integer("num_blocks", num_blocks, 1)
    if token_budget is not None:
        _integer("token_budget", token_budget, None)
        if token_budget < max_running:
            raise ValueError(f"token_budget={token_budget!r}: must be at least max_running={max_running!r}")
    seen: set[str] = set()
    for position, request in enumerate(requests):
        if not isinstance(request, Request):
            raise TypeError(f"requests[{position}] is a {type(request).__name__}: must be a Request")
        name = f"request {request.rid!r}: "
        if not isinstance(request.rid, str):
            raise TypeError(f"{name}rid must be a string, not {type(request.rid).__name__}")
        _integer(name + "arrival", request.arrival, 0, _LAST_STEP)
        _integer(name + "prompt_len", request.prompt_len, 1, _LONGEST)
        _integer(name + "output_len", request.output_len, 1, _LONGEST)
        if request.rid in seen:
            raise ValueError(f"{name}two requests have this rid: must be unique")
        seen.add(request.rid)
        if block_size is not None:
            tokens = int(request.prompt_len) + int(request.output_len) - 1
            if -(-tokens // int(block_size)) > num_blocks:
                raise ValueError(
                    f"{name}can never fit: prompt_len={request.prompt_len} and output_len={request.output_len} need "
                    f"{-(-tokens // int(block_size))} blocks of {block_size} tokens, num_blocks={num_blocks!r}"
                )


def _integer(name: str, value: Any, at_least: int | None, at_most: int | None = None) -> None:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r}: must be an integer, not {type(value).__name__}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name}={value!r}: must be at least {at_least}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name}={value!r}: must be at most {at_most}")
