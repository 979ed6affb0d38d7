"""Serving systems in plain Python, an event at a time: what the engine must compute, written from docs/systems.md.

A heap holds the ends of steps. It imports nothing of the package but the reference's own parts.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from .reference import Observer, ReferenceScheduler, RequestState, reject
from .reference_cache import Contents, PrefixCache
from .reference_instances import (
    ColocatedInstance,
    DecodeScheduler,
    DecodeStream,
    Instance,
    PrefillInstance,
    SchedulerUnit,
    Unit,
)
from .reference_queue import Queue
from .reference_vllm import longest_of

IB_NDR = {"alpha_s": 2e-6, "bandwidth_bytes_per_s": 50e9}


class Router:
    """Picks the instance for each request; on a tie the first.

    Parameters
    ----------
    draws  for each request as many numbers as the rule draws, one alone or two as a pair
    """

    def __init__(self, name: str, instances: list[Instance], draws: Iterable[Any] = ()) -> None:
        self.instances, self.draws, self.routed = instances, iter(draws), itertools.count()
        self.pick: Callable[[], Instance] = partial(ROUTERS[name].pick, self)


class Routing(NamedTuple):
    """How a router picks, and how many numbers from [0, 1) it draws for each request."""

    pick: Callable[[Router], Instance]
    draws: int = 0


def least(count: str) -> Callable[[Router], Instance]:
    """The rule that picks the instance with the smallest count."""
    by = attrgetter(count)

    def pick(router: Router) -> Instance:
        return min(router.instances, key=by)

    return pick


def in_turn(router: Router) -> Instance:
    return router.instances[next(router.routed) % len(router.instances)]


def at_random(router: Router) -> Instance:
    return router.instances[int(next(router.draws) * len(router.instances))]


def better_of_two(router: Router) -> Instance:
    n = len(router.instances)
    if n == 1:
        return router.instances[0]
    u, v = next(router.draws)
    a, b = int(u * n), int(v * (n - 1))
    return min(router.instances[a], router.instances[b + (b >= a)], key=lambda instance: instance.unfinished)


ROUTERS: dict[str, Routing] = {
    "least_loaded": Routing(least("load")),
    "least_outstanding": Routing(least("unfinished")),
    "least_tokens": Routing(least("tokens")),
    "round_robin": Routing(in_turn),
    "random": Routing(at_random, draws=1),
    "power_of_two": Routing(better_of_two, draws=2),
}


def serve(requests: Iterable[RequestState], router: Router) -> None:
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


def serve_clients(requests: list[RequestState], router: Router, concurrency: int, think_time_s: float) -> None:
    """Run a stage in a closed loop. Requests are in the order in which clients send them, the refused among them."""
    waiting = deque(requests)
    free = [0.0] * concurrency  # when clients send their next requests
    ends: list[tuple[float, int, Unit]] = []
    order = itertools.count()
    now = 0.0

    def answer() -> None:
        heapq.heappush(free, now + think_time_s)

    for instance in router.instances:
        for unit in instance.units:
            unit.answered = answer

    def begin(unit: Unit, end: float | None) -> None:
        unit.idle = end is None
        if end is not None:
            heapq.heappush(ends, (end, next(order), unit))

    def send(until: float) -> None:
        """Clients that are free by then send; before the next end of a step in any case."""
        nonlocal now
        while waiting and free and free[0] <= min(until, ends[0][0] if ends else math.inf):
            request = waiting.popleft()
            request.arrival = request.ready = free[0]
            if request.status == "rejected":
                continue  # its client goes on at once
            now = heapq.heappop(free)
            unit = router.pick().receive(request)
            if unit.idle:
                begin(unit, unit.wake(now))

    while True:
        send(math.inf)
        if not ends:
            return
        now = ends[0][0]
        ended = []
        while ends and ends[0][0] == now:  # all that ends at a time comes before what it brings
            unit = heapq.heappop(ends)[2]
            unit.end(now)
            unit.settle(now)
            ended.append(unit)
        send(now)
        for unit in ended:
            begin(unit, unit.begin(now))


def run_system(
    system: str,
    arrivals: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    steps: dict[str, Any],
    *,
    priorities: Sequence[int] | None = None,
    texts: Sequence[list[tuple[Any, int]]] | None = None,
    router: str = "least_loaded",
    draws: Sequence[Sequence[Any]] = ((), ()),
    concurrency: int | None = None,
    think_time_s: float = 0.0,
    observer: Observer | None = None,
    **options: Any,
) -> tuple[list[RequestState], list[Instance]]:
    """Serve a workload, whose columns have one entry a request, on a serving system.

    Parameters
    ----------
    system    "colocated", "disaggregated", "prefill_only" or "decode_only"
    steps     StepTimes `step`, or `prefill_step` and `decode_step`
    router    a row of ROUTERS
    texts     what prompts and answers are made of, as in `schedule`
    draws     the router's, of stages 0 and 1
    concurrency, think_time_s  of a closed loop, on a colocated system: `arrivals` do not matter. None: it is none
    observer  is told what happens; its steps are `ReservedStep` under reserved memory, else `Step`
    options   those of servesweep.run_<system>; `link` as a dict

    Returns
    -------
    Requests as given, those that are refused with the status "rejected"; and the instances, prefill before decode.
    """
    columns = zip(arrivals, prompts, outputs, priorities or [0] * len(arrivals), strict=True)
    requests = [RequestState(i, *row) for i, row in enumerate(columns)]
    for request, own in zip(requests, texts or (), strict=False):
        request.texts = own
    for request in requests:
        request.ready = request.arrival
    arriving = sorted(requests, key=attrgetter("ready", "key"))
    counts = [options.pop(f"n_{name}", 1) for name in ("instances", "prefill", "decode")]
    max_tokens, link = options.pop("max_tokens", 4096), options.pop("link", IB_NDR)
    reserve = options.pop("memory", "reserve") == "reserve"
    kept, contents = options.pop("prefix_cache_blocks", None), None
    if options.get("enable_prefix_caching"):  # a number for a content, whoever holds it
        contents = options["contents"] = Contents(options["block_size"])
    ordering: dict[str, Any] = {name: options.pop(name) for name in ("order", "max_wait_s") if name in options}

    if ordering and system == "decode_only":
        raise ValueError("decode_only has no order: requests decode as they become ready")

    def stage(number: int, role: str, n: int, units: Callable[[], list[Unit]]) -> list[Instance]:
        instances = [Instance(role, i, units(), observer) for i in range(n)]
        if concurrency is not None:
            assert system == "colocated"
            serve_clients(requests, Router(router, instances, draws[number]), concurrency, think_time_s)
            return instances
        serve(arriving, Router(router, instances, draws[number]))
        return instances

    def prefill(step: Any) -> list[Unit]:
        blocks = step.kv_capacity // contents.block_size if contents and kept is None else kept
        cache = None if contents is None else PrefixCache(blocks, contents)
        return [PrefillInstance(step, max_tokens, Queue(**ordering), cache)]

    if system == "prefill_only":
        return requests, stage(0, "prefill", counts[0], lambda: prefill(steps["step"]))
    if system == "colocated":
        step = steps["step"]
        if reserve:
            policy, budget = options.get("policy", "prefill_first"), options.get("chunk_budget", 512)

            def colocated() -> list[Unit]:
                return [ColocatedInstance(step, policy, max_tokens, budget, Queue(**ordering))]

            return requests, stage(0, "colocated", counts[0], colocated)
        limits = {**fill_in(options, step.kv_capacity), **ordering}
        if limits["policy"] == "prefill_first":
            limits["max_tokens"] = max_tokens
        arriving = reject(arriving, limits.get("block_size"), limits.get("num_blocks"), longest_of(limits))
        return requests, stage(
            0,
            "colocated",
            counts[0],
            lambda: [SchedulerUnit(ReferenceScheduler([], step.mixed, observer=observer, **limits))],
        )

    apart = system == "disaggregated"
    step = steps["decode_step" if apart else "step"]
    capacity = step.kv_capacity // step.pp  # of a stream
    if not reserve:
        if options.get("num_blocks") is not None:
            options["num_blocks"] //= step.pp
        limits = fill_in({**options, "policy": "mixed"}, capacity)
        arriving = reject(arriving, limits.get("block_size"), limits.get("num_blocks"), longest_of(limits))
    instances: list[Instance] = []
    if apart:
        prefill_step = steps["prefill_step"]
        instances = stage(0, "prefill", counts[1], lambda: prefill(prefill_step))
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

    def stream() -> Unit:
        if reserve:
            return DecodeStream(step, capacity)
        return SchedulerUnit(DecodeScheduler([], step.mixed, observer=observer, **limits))

    n_decode = counts[2] if apart else counts[0]
    instances += stage(int(apart), "decode", n_decode, lambda: [stream() for _ in range(step.pp)])
    return requests, instances


def fill_in(options: dict[str, Any], capacity: int) -> dict[str, Any]:
    """The options of a scheduler, with as many blocks as the capacity holds."""
    if options.get("block_size") is not None and options.get("num_blocks") is None:
        return {**options, "num_blocks": capacity // options["block_size"]}
    return dict(options)
