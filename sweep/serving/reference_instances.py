"""Instances of the reference systems in plain Python, written from docs/systems.md: what a step of each does.

A step of decodes under reserved memory costs O(1) whatever its batch. They import nothing of the package but the
reference's own parts.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from .reference import Observer, ReferenceScheduler, RequestState
from .reference_cache import PrefixCache
from .reference_queue import Queue
from .reference_steps import Times


class ReservedStep(NamedTuple):
    """One step under reserved memory, as it begins. The end is when the next one can start."""

    start: float
    end: float
    decoding: int = 0
    ctx: int = 0
    reserved: int = 0
    prefill_tokens: int = 0


class Instance:
    """One or more units, and the counts that routers compare."""

    def __init__(self, role: str, number: int, units: list["Unit"], observer: Observer | None = None) -> None:
        self.role, self.number, self.units, self.observer = role, number, units, observer
        self.load = self.unfinished = self.tokens = 0
        self.requests = self.steps = 0
        self.busy_s = 0.0
        for unit in units:
            unit.instance = self

    def receive(self, request: RequestState) -> "Unit":
        """The unit that the request joins: the one with the fewest requests."""
        unit = min(self.units, key=attrgetter("unfinished")) if len(self.units) > 1 else self.units[0]
        request.served_by.append(self.number)
        self.requests += 1
        self.unfinished += 1
        self.tokens += unit.size(request)
        unit.unfinished += 1
        unit.join(request)
        return unit


class Unit(ABC):
    """What takes steps: a whole instance, or one of the pp streams of a decode instance."""

    instance: Instance
    load = 1  # what a request that leaves takes from the instance's load
    answered: Callable[[], None] | None = None  # is called when a request leaves

    def __init__(self) -> None:
        self.idle, self.unfinished = True, 0

    def size(self, request: RequestState) -> int:
        """Tokens of a request, for the router."""
        return request.prompt + request.output

    def leave(self, request: RequestState) -> None:
        instance = self.instance
        self.unfinished -= 1
        instance.unfinished -= 1
        instance.tokens -= self.size(request)
        instance.load -= self.load
        if self.answered is not None:
            self.answered()

    def settle(self, now: float) -> None:  # noqa: B027
        """Do what comes after the end of a step and before the next begins, and does not depend on who arrives."""

    def wake(self, now: float) -> float | None:
        """The end of the step that begins on an idle unit when a request joins it."""
        return self.begin(now)

    def took(self, start: float, end: float, *state: int) -> float:
        instance = self.instance
        instance.steps += 1
        instance.busy_s += end - start
        if instance.observer is not None:
            instance.observer.on_step(self, ReservedStep(start, end, *state))
        return end

    @abstractmethod
    def join(self, request: RequestState) -> None:
        """Take in a request."""

    @abstractmethod
    def begin(self, now: float) -> float | None:
        """Start the next step. Returns its end; None when idle."""

    @abstractmethod
    def end(self, now: float) -> None:
        """End the step under way."""


class PrefillInstance(Unit):
    """Its load is the prompt tokens that are queued."""

    load = 0

    def __init__(self, times: Times, max_tokens: int, queue: Queue, cache: PrefixCache | None = None) -> None:
        super().__init__()
        self.times, self.max_tokens, self.queue, self.cache = times, max_tokens, queue, cache
        self.batch: list[RequestState] = []

    def size(self, request: RequestState) -> int:
        return request.prompt

    def join(self, request: RequestState) -> None:
        self.queue.add(request)
        self.instance.load += request.prompt

    def begin(self, now: float) -> float | None:
        queue, batch, observer = self.queue, self.batch, self.instance.observer
        if not queue:
            return None
        if queue.young:
            queue.age(now)
        tokens = pairs = before = 0
        while queue:
            request = queue[0]
            found = [] if self.cache is None else self.cache.find(request)[0]
            hit = 0 if self.cache is None else len(found) * self.cache.block_size
            if batch and tokens + request.prompt - hit > self.max_tokens:
                break
            batch.append(queue.admit(now))
            self.instance.load -= request.prompt
            tokens += request.prompt - hit
            before += hit
            pairs += request.prompt * (request.prompt + 1) // 2 - hit * (hit + 1) // 2
            if self.cache is not None:
                request.found = request.cached_tokens = hit
                self.cache.share(request, found)
                self.cache.take(request, min(request.prompt // self.cache.block_size - len(found), self.cache.free))
                self.cache.register(request, len(self.cache.tables[request]) * self.cache.block_size)
        duration = self.times.mixed(0, 0, tokens, pairs, before, len(batch))
        for request in batch:
            request.first_token = now + duration
            if observer is not None:
                observer.on_admit(request, now)
        return self.took(now, now + duration / self.times.pp, 0, 0, 0, tokens)

    def end(self, now: float) -> None:
        for request in self.batch:
            if self.cache is not None:
                self.cache.release(request)
            self.leave(request)
        self.batch = []


class DecodeStream(Unit):
    """Decoding with reserved memory: one of a decode instance, or the decoding part of a colocated one."""

    def __init__(self, times: Times, capacity: int) -> None:
        super().__init__()
        self.times, self.capacity = times, capacity
        self.waiting: deque[RequestState] = deque()  # in the order in which they became ready
        self.leaving: dict[int, list[RequestState]] = {}  # by the number of the decode step that is their last
        self.running = self.reserved = self.ctx = self.decodes = self.waiting_tokens = 0

    def join(self, request: RequestState) -> None:
        self.waiting.append(request)
        self.waiting_tokens += request.prompt + request.output
        self.instance.load += 1

    def admit(self, now: float) -> None:
        observer = self.instance.observer
        while self.waiting:
            request = self.waiting[0]
            tokens = request.prompt + request.output
            if self.running and self.reserved + tokens > self.capacity:
                break
            self.waiting.popleft()
            self.waiting_tokens -= tokens
            if math.isnan(request.admitted):
                request.admitted = now
                if observer is not None:
                    observer.on_admit(request, now)
            if request.output == 1:
                request.finish = request.first_token
                if observer is not None:
                    observer.on_finish(request, request.finish)
                self.leave(request)
                continue
            self.running += 1
            self.reserved += tokens
            self.ctx += request.prompt + 1
            self.leaving.setdefault(self.decodes + request.output - 1, []).append(request)

    def settle(self, now: float) -> None:
        if self.waiting:
            self.admit(now)

    def begin(self, now: float) -> float | None:
        self.settle(now)
        return self.decode(now)

    def decode(self, now: float) -> float | None:
        if not self.running:
            return None
        duration = self.times.mixed(self.running, self.ctx, 0, 0)
        return self.took(now, now + duration, self.running, self.ctx, self.reserved)

    def end(self, now: float) -> None:
        """The end of a step in which all of the running decoded."""
        self.decodes += 1
        self.ctx += self.running
        for request in self.leaving.pop(self.decodes, ()):
            tokens = request.prompt + request.output
            self.running -= 1
            self.reserved -= tokens
            self.ctx -= tokens
            request.finish = now
            if self.instance.observer is not None:
                self.instance.observer.on_finish(request, now)
            self.leave(request)


class ColocatedInstance(DecodeStream):
    """A queue and a stream. `taken` end their prefill in the present step; who does not is `partial`."""

    def __init__(
        self,
        times: Times,
        policy: str,
        max_tokens: int,
        chunk_budget: int,
        queue: Queue,
    ) -> None:
        super().__init__(times, times.kv_capacity)
        self.compose, self.queue = RESERVED_POLICIES[policy], queue
        self.max_tokens, self.chunk_budget = max_tokens, chunk_budget
        self.taken: list[RequestState] = []
        self.partial: RequestState | None = None
        self.decoded = False  # whether the stream takes part in the present step

    def join(self, request: RequestState) -> None:
        self.queue.add(request)
        self.instance.load += 1

    def head_fits(self) -> bool:
        if not self.queue:
            return False
        head = self.queue[0]
        alone = not self.running and not self.waiting
        return alone or self.reserved + self.waiting_tokens + head.prompt + head.output <= self.capacity

    def take(self, now: float) -> RequestState:
        self.instance.load -= 1
        request = self.queue.admit(now)
        if self.instance.observer is not None:
            self.instance.observer.on_admit(request, now)
        return request

    def begin(self, now: float) -> float | None:
        if self.waiting:
            self.admit(now)
        if self.queue.young:
            self.queue.age(now)
        return self.compose(self, now)

    def end(self, now: float) -> None:
        if self.decoded:
            super().end(now)
        for request in self.taken:
            request.first_token = now
            super().join(request)
        self.taken = []


def prefills_or_decodes(instance: ColocatedInstance, now: float) -> float | None:
    """A step of prefills if a head of the queue fits, of decodes otherwise."""
    tokens, taken = 0, instance.taken
    while instance.head_fits() and (not taken or tokens + instance.queue[0].prompt <= instance.max_tokens):
        tokens += instance.queue[0].prompt
        taken.append(instance.take(now))
    instance.decoded = not taken
    if not taken:
        return instance.decode(now)
    end = now + instance.times.prefill([request.prompt for request in taken])
    return instance.took(now, end, 0, 0, instance.reserved, tokens)


def decodes_and_chunks(instance: ColocatedInstance, now: float) -> float | None:
    """All decode; what they leave of the chunk budget goes to who is part-way, then to heads that fit."""
    left = instance.chunk_budget - instance.running
    chunk = pairs = before = 0
    while left > 0 and (instance.partial or instance.head_fits()):
        request = instance.partial or instance.take(now)
        piece = min(left, request.prompt - request.done)
        pairs += piece * request.done + piece * (piece + 1) // 2
        chunk += piece
        before += request.done
        left -= piece
        request.done += piece
        instance.partial = request if request.done < request.prompt else None
        if not instance.partial:
            instance.taken.append(request)
    instance.decoded = True
    if not instance.running and not chunk:
        return None
    emitting = instance.running + len(instance.taken)
    duration = instance.times.mixed(instance.running, instance.ctx, chunk, pairs, before, emitting)
    return instance.took(now, now + duration, instance.running, instance.ctx, instance.reserved, chunk)


# How a step is made up under reserved memory
RESERVED_POLICIES: dict[str, Callable[[ColocatedInstance, float], float | None]] = {
    "prefill_first": prefills_or_decodes,
    "chunked": decodes_and_chunks,
}


class DecodeScheduler(ReferenceScheduler):
    """Requests come with their KV, so they decode at once; the preempted rebuild it by a prefill."""

    def admit(self) -> list[RequestState]:
        admitted = super().admit()
        for request in admitted:
            if not request.preemptions:
                request.status = "decode"
        return admitted


class SchedulerUnit(Unit):
    """A scheduler, which works a whole step out when it begins."""

    def __init__(self, scheduler: ReferenceScheduler) -> None:
        super().__init__()
        self.scheduler = scheduler

    def join(self, request: RequestState) -> None:
        self.scheduler.waiting.add(request)
        self.instance.load += 1

    def wake(self, now: float) -> float:
        return now  # an empty step: it ends when all arrivals of this time have been routed

    def begin(self, now: float) -> float | None:
        state = self.scheduler
        if not state.waiting and not state.running:
            return None
        state.time = now
        state.step()
        self.instance.steps += 1
        self.instance.busy_s += state.time - now
        return state.time

    def end(self, now: float) -> None:
        for request in self.scheduler.finished:
            self.leave(request)
        self.scheduler.finished = []
