"""What a system did with each request, from its arrival to its last token.

For a scheduler (paged or unlimited memory) every step is played back by the rules of docs/scheduler.md, at the times of
the engine's log, and the outcome is compared with the engine's: who ran, prefill pieces, pauses and preemptions are
exact. For other systems a request has the phases that its result tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..measures.result import Result
from .run import System, run_systems
from .scheduler import Lane
from .systems import Colocated
from .whole_steps import Request, as_lane

WAITING, PREFILL, DECODE, PAUSED, PREEMPTED, TRANSFER = KINDS = (
    "waiting",  # not admitted yet
    "prefill",  # processing its prompt, or rebuilding its cache
    "decode",  # emitting a token a step
    "paused",  # admitted, without a share of the step
    "preempted",  # waiting again
    "transfer",  # its KV cache crosses the link
)


class Segment(NamedTuple):
    """A time in which a request was in one condition.

    first_step, steps    in the log; -1, 0 where no step is concerned
    tokens, emitted      processed and sent in this time
    blocks               held at its end
    """

    what: str
    start_s: float
    end_s: float
    first_step: int = -1
    steps: int = 0
    tokens: int = 0
    emitted: int = 0
    blocks: int = 0


@dataclass(frozen=True)
class Timeline:
    """What happened to each request of one system, and its steps.

    names       of the requests, in order of arrival
    segments    of each request, one behind the other
    preempted_s, rejected    when each request was preempted; the names of those that were refused
    steps       columns start_s, end_s, running, emitted, tokens, blocks_used, and with several instances instance or
                role; a row a step
    num_blocks  KV blocks of an instance, or None
    block_unit  "blocks", or "tokens" under reserved memory
    clock       "s", or "step" where times are whole steps
    """

    names: list[str]
    segments: list[list[Segment]]
    steps: dict[str, NDArray[Any]]
    num_blocks: int | None
    preempted_s: list[list[float]]
    rejected: list[str] = field(default_factory=list)
    clock: str = "s"
    block_unit: str = "blocks"

    @property
    def end_s(self) -> float:
        """When the last request is done; 0 without requests."""
        return max((segments[-1].end_s for segments in self.segments if segments), default=0.0)


def timeline(system: System) -> Timeline:
    """What a system does with its requests, which are named by their position in the workload.

    ValueError for a system of several instances that preempts: only those of a single one can be told.
    """
    results = run_systems([system], step_log=[0])
    result, log = results.result(0), results.step_logs[0]
    order = [int(i) for i in np.argsort(result.arrival_s, kind="stable")]
    names = [str(i) for i in order if not result.rejected[i]]
    lane = _scheduler(system)
    if lane is not None:
        playback = _Playback(lane, result, [i for i in order if not result.rejected[i]], log)
        playback.run()
        segments, preempted = playback.segments(), [request.preempted_s for request in playback.requests]
    else:
        if result.preemptions.any():
            raise ValueError(
                f"{type(system).__name__}: preempts on several instances; a timeline can tell preemptions of one only"
            )
        segments = [_phases(result, i) for i in order if not result.rejected[i]]
        preempted = [[] for _ in segments]
    blocks = None if np.isnan(result.num_blocks) else int(result.num_blocks)
    rejected = [str(i) for i in order if result.rejected[i]]
    unit = "tokens" if lane is None and getattr(system, "memory", "reserve") == "reserve" else "blocks"
    return Timeline(names, segments, log, blocks, preempted, rejected, block_unit=unit)


def timeline_of_requests(
    requests: Iterable[Request],
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
) -> Timeline:
    """What `simulate` does with named requests; times are whole steps: step s lasts from s to s + 1.

    Arguments and errors are those of `simulate`.
    """
    lane, served = as_lane(requests, max_running, block_size, num_blocks, token_budget)
    found = timeline(lane)
    names = [served[int(name)].rid for name in found.names]
    return Timeline(names, found.segments, found.steps, found.num_blocks, found.preempted_s, clock="step")


def _scheduler(system: System) -> Lane | None:
    """The one scheduler that a system is, if it is one."""
    if isinstance(system, Lane):
        return system
    if isinstance(system, Colocated) and system.n_instances == 1 and system.max_running is not None:
        limits = (system.max_running, system.block_size, system.num_blocks, system.token_budget, system.max_tokens)
        return Lane(system.workload, system.step, system.policy, *limits, rate=system.rate)
    return None


def _phases(result: Result, i: int) -> list[Segment]:
    """The phases of a request as far as its result tells them."""
    first, finish, ready = (float(getattr(result, f"{x}_s")[i]) for x in ("first_token", "finish", "kv_ready"))
    arrival, admitted = float(result.arrival_s[i]), float(result.admitted_s[i])
    found = [
        Segment(WAITING, arrival, admitted),
        Segment(PREFILL, admitted, first, tokens=int(result.prompt_tokens[i]), emitted=1),
        Segment(TRANSFER, first, ready),
        Segment(DECODE, first if np.isnan(ready) else ready, finish, emitted=int(result.output_tokens[i]) - 1),
    ]
    return [segment for segment in found if segment.end_s > segment.start_s]  # NaN: there is none


class _Request:
    """A request in the playback."""

    __slots__ = ("arrival", "blocks", "decodes", "done", "emitted", "output", "preempted_s", "prompt", "runs", "since")

    def __init__(self, arrival: float, prompt: int, output: int) -> None:
        self.arrival, self.prompt, self.output = arrival, prompt, output
        self.emitted = self.done = self.blocks = 0
        self.decodes = False
        self.since = arrival  # when it began to wait
        self.runs: list[Segment] = []
        self.preempted_s: list[float] = []

    def add(self, what: str, start: float, end: float, step: int, tokens: int, emitted: int) -> None:
        """Another step; it goes on a segment of decoding or pausing, and each piece of a prefill is one of its own."""
        last = self.runs[-1] if self.runs else None
        if last is not None and what == last.what != PREFILL and last.first_step + last.steps == step:
            self.runs[-1] = last._replace(
                end_s=end,
                steps=last.steps + 1,
                tokens=last.tokens + tokens,
                emitted=last.emitted + emitted,
                blocks=self.blocks,
            )
        else:
            self.runs.append(Segment(what, start, end, step, 1, tokens, emitted, self.blocks))


class _Playback:
    """The rules of docs/scheduler.md at the times of a log."""

    def __init__(self, lane: Lane, result: Result, order: Sequence[int], log: dict[str, NDArray[Any]]) -> None:
        self.lane, self.result, self.order, self.log = lane, result, order, log
        self.requests = [
            _Request(float(result.arrival_s[i]), int(result.prompt_tokens[i]), int(result.output_tokens[i]))
            for i in order
        ]
        self.size = lane.block_size
        self.free = lane.num_blocks or 0
        self.waiting: deque[_Request] = deque()
        self.running: list[_Request] = []

    def run(self) -> None:
        """Play every step back; RuntimeError where the engine did something else."""
        arriving = deque(self.requests)
        columns = [self.log[name].tolist() for name in ("start_s", "end_s", "running", "emitted", "tokens")]
        for step, (start, end, running, emitted, tokens) in enumerate(zip(*columns, strict=True)):
            while arriving and arriving[0].arrival <= start:
                self.waiting.append(arriving.popleft())
            did = self._step(step, start, end)
            if did != (running, emitted, tokens):
                raise RuntimeError(
                    f"step {step}: (running, emitted, tokens) is {did}, the engine's {running, emitted, tokens}"
                )
        finished = [request.runs[-1].end_s if request.runs else np.nan for request in self.requests]
        if finished != self.result.finish_s[list(self.order)].tolist():
            raise RuntimeError("the playback ends with other times than the engine")

    def segments(self) -> list[list[Segment]]:
        """Of every request, the waiting between its runs filled in."""
        found = []
        for request in self.requests:
            filled: list[Segment] = []
            at = request.arrival
            for segment in request.runs:
                if segment.start_s > at:
                    filled.append(
                        Segment(PREEMPTED if filled and at in request.preempted_s else WAITING, at, segment.start_s)
                    )
                filled.append(segment)
                at = segment.end_s
            found.append(filled)
        return found

    def _step(self, step: int, start: float, end: float) -> tuple[int, int, int]:
        batch = self._admit() if self.lane.policy == "prefill_first" else []
        if not batch:
            self._grow(start)
            if self.lane.policy != "prefill_first":
                self._admit()
            batch = self.running
        prefilling = [request for request in batch if not request.decodes]
        decoding = len(batch) - len(prefilling)
        left = (self.lane.token_budget or np.inf) - decoding
        counts = [len(self.running), decoding, decoding]
        in_batch = {id(request) for request in batch}
        for request in self.running:
            if request.decodes and id(request) in in_batch:
                request.emitted += 1
                request.add(DECODE, start, end, step, 1, 1)
        for request in prefilling:
            piece = int(min(left, request.prompt + request.emitted - request.done))
            left -= piece
            request.done += piece
            counts[2] += piece
            ends = request.done == request.prompt + request.emitted
            if ends:
                counts[1] += 1
                request.emitted += 1
                request.decodes = True
            request.add(PREFILL if piece else PAUSED, start, end, step, piece, int(ends))
        for request in self.running:
            if id(request) not in in_batch:
                request.add(PAUSED, start, end, step, 0, 0)
        for request in self.running:
            if request.emitted == request.output:
                self._release(request)
        self.running = [request for request in self.running if request.emitted < request.output]
        return counts[0], counts[1], counts[2]

    def _grow(self, now: float) -> None:
        if self.size is None:
            return
        for request in self.running:  # a preemption cuts the end of another list, so look whether it still runs
            while request.decodes and request.prompt + request.emitted > request.blocks * self.size:
                if self.free:
                    request.blocks += 1
                    self.free -= 1
                else:
                    self._preempt(now)
        self.running = [request for request in self.running if request.blocks]

    def _preempt(self, now: float) -> None:
        """The youngest running request goes to the front of the queue."""
        request = next(request for request in reversed(self.running) if request.blocks)
        self._release(request)
        request.decodes, request.done = False, 0
        request.preempted_s.append(now)
        self.waiting.appendleft(request)

    def _admit(self) -> list[_Request]:
        admitted: list[_Request] = []
        tokens = 0
        while self.waiting and len(self.running) < self.lane.max_running:
            request = self.waiting[0]
            target = request.prompt + request.emitted
            tokens += target
            need = 0 if self.size is None else -(-target // self.size)
            if need > self.free or (admitted and tokens > (self.lane.max_tokens or np.inf)):
                break
            request.blocks = need
            self.free -= need
            self.running.append(self.waiting.popleft())
            admitted.append(request)
        return admitted

    def _release(self, request: _Request) -> None:
        self.free += request.blocks
        request.blocks = 0
