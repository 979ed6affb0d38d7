"""Serving systems in plain Python, an event at a time: a yardstick for the engine's answers and for its speed.

A heap holds the ends of steps. It imports nothing of the package.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import oracle
from oracle_instances import (
    ColocatedInstance,
    DecodeLane,
    DecodeScheduler,
    Instance,
    PrefillInstance,
    Request,
    SchedulerUnit,
    Step,
    Unit,
)

IB_NDR = {"alpha_s": 2e-6, "bandwidth_bytes_per_s": 50e9}


class Router:
    """`draws` are u for each request under `random`, (u, v) under `power_of_two`."""

    def __init__(self, name: str, instances: list[Instance], draws: Iterable[Any] = ()):
        self.name, self.instances, self.draws, self.routed = name, instances, iter(draws), itertools.count()
        self.key = attrgetter({"least_loaded": "load", "least_tokens": "tokens"}.get(name, "unfinished"))

    def pick(self) -> Instance:
        n = len(self.instances)
        if self.name == "round_robin":
            return self.instances[next(self.routed) % n]
        if self.name == "random":
            return self.instances[math.floor(next(self.draws) * n)]
        if self.name == "power_of_two" and n > 1:
            u, v = next(self.draws)
            a, b = math.floor(u * n), math.floor(v * (n - 1))
            return min(self.instances[a], self.instances[b + (b >= a)], key=self.key)  # the first on a tie
        return min(self.instances, key=self.key)


def serve(requests: Iterable[Request], router: Router) -> None:
    """Run a stage. Requests are in the order in which they become ready."""
    arriving = deque(requests)
    ends: list[tuple[float, int, Unit]] = []
    order = itertools.count()
    while arriving or ends:
        if arriving and (not ends or arriving[0].ready <= ends[0][0]):  # at equal times arrivals come first
            request = arriving.popleft()
            unit = router.pick().receive(request)
            end = unit.wake(request.ready) if unit.idle else None
        else:
            now, _, unit = heapq.heappop(ends)
            unit.end(now)
            unit.idle = True
            end = unit.begin(now)
        if end is not None:
            unit.idle = False
            heapq.heappush(ends, (end, next(order), unit))


def run_system(
    system: str,
    arrivals: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    steps: dict[str, Any],
    *,
    router: str = "least_loaded",
    draws: Sequence[Sequence[Any]] = ((), ()),
    trace: list[Step] | None = None,
    **options: Any,
) -> tuple[list[Request], list[Instance]]:
    """Requests as given, and the instances, prefill before decode. Those that are refused have status "refused".

    steps  StepTimes `step`, or `prefill_step` and `decode_step`
    draws  the router's, of stages 0 and 1
    """
    requests = [Request(i, *request) for i, request in enumerate(zip(arrivals, prompts, outputs, strict=True))]
    for request in requests:
        request.ready = request.arrival
    arriving = sorted(requests, key=attrgetter("ready", "key"))
    counts = [options.pop(f"n_{name}", 1) for name in ("instances", "prefill", "decode")]
    max_tokens, link = options.pop("max_tokens", 4096), options.pop("link", IB_NDR)
    reserve = options.pop("memory", "reserve") == "reserve"

    def stage(number: int, role: str, n: int, units: Callable[[], list[Unit]]) -> list[Instance]:
        instances = [Instance(role, i, units(), trace) for i in range(n)]
        serve(arriving, Router(router, instances, draws[number]))
        return instances

    if system == "prefill_only":
        return requests, stage(0, "prefill", counts[0], lambda: [PrefillInstance(steps["step"], max_tokens)])
    if system == "colocated":
        step = steps["step"]
        if reserve:
            budget = options.get("chunk_budget", 512) if options.get("policy") == "chunked" else None
            return requests, stage(0, "colocated", counts[0], lambda: [ColocatedInstance(step, max_tokens, budget)])
        limits = fill_in(options, step.kv_capacity)
        if limits["policy"] == "prefill_first":
            limits["max_tokens"] = max_tokens
        arriving = refuse(arriving, limits)
        return requests, stage(
            0, "colocated", counts[0], lambda: [SchedulerUnit(oracle.Scheduler([], step.mixed, **limits))]
        )

    apart = system == "disaggregated"
    step = steps["decode_step" if apart else "step"]
    capacity = step.kv_capacity // step.pp  # of a lane
    if not reserve:
        if options.get("num_blocks") is not None:
            options["num_blocks"] //= step.pp
        limits = fill_in({**options, "policy": "mixed"}, capacity)
        arriving = refuse(arriving, limits)
    instances: list[Instance] = []
    if apart:
        prefill_step = steps["prefill_step"]
        instances = stage(0, "prefill", counts[1], lambda: [PrefillInstance(prefill_step, max_tokens)])
    for request in arriving:
        request.emitted = 1
        if not apart:
            request.first_token = request.arrival
        if request.output == 1 and not reserve:
            request.finish = request.first_token
    if not reserve:
        arriving = [request for request in arriving if request.output > 1]
    if apart:
        for request in arriving:
            transfer = link["alpha_s"] + request.prompt * prefill_step.kv / link["bandwidth_bytes_per_s"]
            request.ready = request.kv_ready = request.first_token + transfer
        arriving.sort(key=attrgetter("ready"))  # in the order of arrival on a tie

    def lane() -> Unit:
        return DecodeLane(step, capacity) if reserve else SchedulerUnit(DecodeScheduler([], step.mixed, **limits))

    n_decode = counts[2] if apart else counts[0]
    instances += stage(int(apart), "decode", n_decode, lambda: [lane() for _ in range(step.pp)])
    return requests, instances


def fill_in(options: dict[str, Any], capacity: int) -> dict[str, Any]:
    """The options of a scheduler, with as many blocks as the capacity holds."""
    if options.get("block_size") is not None and options.get("num_blocks") is None:
        return {**options, "num_blocks": capacity // options["block_size"]}
    return dict(options)


def refuse(requests: list[Request], limits: dict[str, Any]) -> list[Request]:
    """Those that could ever be served; the others are marked."""
    fits_alone = oracle.Scheduler([], lambda *_: 1, **limits).fits_alone
    for request in requests:
        request.status = "waiting" if fits_alone(request) else "refused"
    return [request for request in requests if request.status != "refused"]
