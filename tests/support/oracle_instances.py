"""The instances of the systems' oracle: what a step does to prefill instances, lanes, colocated instances, schedulers.

A step of decodes costs O(1) whatever its batch. It imports nothing of the package.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import oracle
from oracle_steps import ConstantTimes, StepTimes


@dataclass(slots=True, eq=False)
class Request(oracle.Sequence):
    """A request on its way through the stages of a system; `key` is its position in the workload."""

    ready: float = math.nan  # its arrival at the present stage
    kv_ready: float = math.nan
    served_by: list[int] = field(default_factory=list)  # instance of each stage


class Step(NamedTuple):
    """One step of reserved memory, as it begins. The end is when the next one can start."""

    unit: "Unit"
    start: float
    end: float
    decoding: int = 0
    ctx: int = 0
    reserved: int = 0
    prefill_tokens: int = 0


class Instance:
    """One or more units, and the counts that routers compare."""

    def __init__(self, role: str, number: int, units: list["Unit"], trace: list[Step] | None = None):
        self.role, self.number, self.units, self.trace = role, number, units, trace
        self.load = self.unfinished = self.tokens = 0
        self.requests = self.steps = 0
        self.busy_s = 0.0
        for unit in units:
            unit.instance = self

    def receive(self, request: Request) -> "Unit":
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
    """What takes steps: a whole instance, or one of the pp lanes of a decode instance."""

    instance: Instance

    def __init__(self) -> None:
        self.idle, self.unfinished = True, 0

    def size(self, request: Request) -> int:
        return request.prompt + request.output

    def leave(self, request: Request) -> None:
        self.unfinished -= 1
        self.instance.unfinished -= 1
        self.instance.tokens -= self.size(request)

    def wake(self, now: float) -> float | None:
        """The end of the step that begins on an idle unit when a request joins it."""
        return self.begin(now)

    def took(self, start: float, end: float, *state: int) -> float:
        self.instance.steps += 1
        self.instance.busy_s += end - start
        if self.instance.trace is not None:
            self.instance.trace.append(Step(self, start, end, *state))
        return end

    @abstractmethod
    def join(self, request: Request) -> None:
        """Take in a request."""

    @abstractmethod
    def begin(self, now: float) -> float | None:
        """Start the next step. Returns its end; None when idle."""

    @abstractmethod
    def end(self, now: float) -> None:
        """End the step under way."""


class PrefillInstance(Unit):
    """Its load is the prompt tokens that are queued."""

    def __init__(self, times: StepTimes | ConstantTimes, max_tokens: int):
        super().__init__()
        self.times, self.max_tokens = times, max_tokens
        self.queue: deque[Request] = deque()
        self.batch: list[Request] = []

    def size(self, request: Request) -> int:
        return request.prompt

    def join(self, request: Request) -> None:
        self.queue.append(request)
        self.instance.load += request.prompt

    def begin(self, now: float) -> float | None:
        if not self.queue:
            return None
        tokens = 0
        while self.queue and (not self.batch or tokens + self.queue[0].prompt <= self.max_tokens):
            tokens += self.queue[0].prompt
            self.batch.append(self.queue.popleft())
        self.instance.load -= tokens
        duration = self.times.prefill([request.prompt for request in self.batch])
        for request in self.batch:
            request.admitted, request.first_token = now, now + duration
        return self.took(now, now + duration / self.times.pp, 0, 0, 0, tokens)

    def end(self, now: float) -> None:
        for request in self.batch:
            self.leave(request)
        self.batch = []


class DecodeLane(Unit):
    """Decoding with reserved memory: a lane of a decode instance, and a part of a colocated one."""

    def __init__(self, times: StepTimes | ConstantTimes, capacity: int):
        super().__init__()
        self.times, self.capacity = times, capacity
        self.waiting: deque[Request] = deque()
        self.leaving: dict[int, list[Request]] = {}  # by the number of the decode step that is their last
        self.running = self.reserved = self.ctx = self.decodes = self.waiting_tokens = 0

    def join(self, request: Request) -> None:
        self.waiting.append(request)
        self.waiting_tokens += request.prompt + request.output
        self.instance.load += 1

    def leave(self, request: Request) -> None:
        super().leave(request)
        self.instance.load -= 1

    def admit(self, now: float) -> None:
        while self.waiting:
            request = self.waiting[0]
            tokens = request.prompt + request.output
            if self.running and self.reserved + tokens > self.capacity:
                break
            self.waiting.popleft()
            self.waiting_tokens -= tokens
            if math.isnan(request.admitted):
                request.admitted = now
            if request.output == 1:
                request.finish = request.first_token
                self.leave(request)
                continue
            self.running += 1
            self.reserved += tokens
            self.ctx += request.prompt + 1
            self.leaving.setdefault(self.decodes + request.output - 1, []).append(request)

    def begin(self, now: float) -> float | None:
        self.admit(now)
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
            self.leave(request)


class ColocatedInstance(DecodeLane):
    """A queue and a lane. `taken` are in the present step's prefill, and end theirs there unless one is `partial`."""

    def __init__(self, times: StepTimes | ConstantTimes, max_tokens: int, chunk_budget: int | None):
        super().__init__(times, times.kv_capacity)
        self.max_tokens, self.chunk_budget = max_tokens, chunk_budget
        self.queue: deque[Request] = deque()
        self.taken: list[Request] = []
        self.partial: Request | None = None

    def join(self, request: Request) -> None:
        self.queue.append(request)
        self.instance.load += 1

    def head_fits(self) -> bool:
        if not self.queue:
            return False
        tokens = self.queue[0].prompt + self.queue[0].output
        alone = not self.running and not self.waiting
        return alone or self.reserved + self.waiting_tokens + tokens <= self.capacity

    def take(self, now: float) -> Request:
        self.instance.load -= 1
        self.queue[0].admitted = now
        return self.queue.popleft()

    def begin(self, now: float) -> float | None:
        self.admit(now)
        if self.chunk_budget is not None:
            return self.begin_chunked(now)
        tokens = 0
        while self.head_fits() and (not self.taken or tokens + self.queue[0].prompt <= self.max_tokens):
            tokens += self.queue[0].prompt
            self.taken.append(self.take(now))
        if not self.taken:
            return self.decode(now)
        end = now + self.times.prefill([request.prompt for request in self.taken])
        return self.took(now, end, 0, 0, self.reserved, tokens)

    def begin_chunked(self, now: float) -> float | None:
        assert self.chunk_budget is not None
        left = self.chunk_budget - self.running
        chunk = pairs = 0
        while left > 0 and (self.partial or self.head_fits()):
            request = self.partial or self.take(now)
            piece = min(left, request.prompt - request.done)
            pairs += piece * request.done + piece * (piece + 1) // 2
            chunk += piece
            left -= piece
            request.done += piece
            self.partial = request if request.done < request.prompt else None
            if not self.partial:
                self.taken.append(request)
        if not self.running and not chunk:
            return None
        duration = self.times.mixed(self.running, self.ctx, chunk, pairs)
        return self.took(now, now + duration, self.running, self.ctx, self.reserved, chunk)

    def end(self, now: float) -> None:
        if self.chunk_budget is not None or not self.taken:
            super().end(now)
        for request in self.taken:
            request.first_token = now
            super().join(request)
        self.taken = []


class DecodeScheduler(oracle.Scheduler):
    """Requests come with their KV, so they decode at once; the preempted rebuild it by a prefill."""

    def admit(self) -> list[oracle.Sequence]:
        admitted = super().admit()
        for seq in admitted:
            if not seq.preemptions:
                seq.status = "decode"
        return admitted


class SchedulerUnit(Unit):
    """A scheduler of tests/oracle.py, which works a whole step out when it begins."""

    def __init__(self, scheduler: oracle.Scheduler):
        super().__init__()
        self.scheduler, scheduler.log = scheduler, []

    def join(self, request: Request) -> None:
        self.scheduler.waiting.append(request)
        self.instance.load += 1

    def leave(self, request: Request) -> None:
        super().leave(request)
        self.instance.load -= 1

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
