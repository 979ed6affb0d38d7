"""What a system did with each request, from its arrival to its last token.

For a scheduler (paged or unlimited memory) the reference plays every step back, at the times of the engine's log, and
the outcome is compared with the engine's: who ran, prefill pieces, pauses and preemptions are exact. For other systems
a request has the phases that its result tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .. import checks
from ..measures.result import Result
from ..measures.system_results import StepColumns
from .reference import Observer, RequestState, Step, schedule
from .reference_answers import limits, one_scheduler, step_times
from .run import run_systems
from .scheduler import Scheduler
from .system import System
from .whole_steps import Request, as_scheduler

SegmentKind = Literal["waiting", "prefill", "decode", "paused", "preempted", "transfer"]
KINDS: tuple[SegmentKind, ...] = get_args(SegmentKind)
WAITING: SegmentKind = "waiting"
PREFILL: SegmentKind = "prefill"
DECODE: SegmentKind = "decode"
PAUSED: SegmentKind = "paused"
PREEMPTED: SegmentKind = "preempted"
TRANSFER: SegmentKind = "transfer"


class Segment(NamedTuple):
    """A time in which a request was in one condition.

    Attributes
    ----------
    what
        "waiting" (not admitted yet), "prefill" (processing its prompt, or rebuilding its cache), "decode" (emitting a
        token a step), "paused" (admitted, without a share of the step), "preempted" (waiting again), or "transfer" (its
        KV cache crosses the link).
    start_s, end_s
        In the clock of the timeline.
    first_step, steps
        In the log of steps; -1 and 0 where no step is concerned.
    tokens, emitted
        Processed and sent in this time.
    blocks
        Held at its end.
    """

    what: SegmentKind
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

    Attributes
    ----------
    names
        Of the requests, in order of arrival.
    segments
        Of each request, one behind the other.
    steps
        A row a step, see `StepColumns`.
    num_blocks
        KV blocks of an instance. None: unlimited memory.
    preempted_s
        When each request was preempted.
    rejected
        Names of the requests that were refused.
    clock
        "s", or "step" where times are whole steps.
    block_unit
        "blocks", or "tokens" under reserved memory.
    """

    names: list[str]
    segments: list[list[Segment]]
    steps: StepColumns
    num_blocks: int | None
    preempted_s: list[list[float]]
    rejected: list[str] = field(default_factory=list)
    clock: Literal["s", "step"] = "s"
    block_unit: Literal["blocks", "tokens"] = "blocks"

    @property
    def end_s(self) -> float:
        """When the last request is done; 0 without requests."""
        return max((segments[-1].end_s for segments in self.segments if segments), default=0.0)


@checks.spelt_out
def timeline(system: System) -> Timeline:
    """What a system does with its requests, which are named by their position in the workload.

    Parameters
    ----------
    system
        A `Scheduler`, `Colocated`, `Disaggregated`, `PrefillOnly` or `DecodeOnly`.

    Returns
    -------
    Timeline
        Every step of a single scheduler; the phases of each request of other systems.

    Raises
    ------
    ValueError
        For a system of several instances that preempts: the preemptions of a single one only can be told.
    """
    results = run_systems([system], step_log=[0])
    result, log = results.result(0), results.step_logs[0]
    order = [int(i) for i in np.argsort(result.arrival_s, kind="stable")]
    served = [i for i in order if not result.rejected[i]]
    scheduler = one_scheduler(system)
    if scheduler is not None:
        segments, preempted = _played_back(scheduler, result, served, log)
    else:
        if result.preemptions.any():
            raise ValueError(
                f"system={type(system).__name__}: preempts on several instances: must be of one, or without preemptions"
            )
        segments = [_phases(result, i) for i in served]
        preempted = [[] for _ in segments]
    blocks = None if np.isnan(result.num_blocks) else int(result.num_blocks)
    rejected = [str(i) for i in order if result.rejected[i]]
    unit: Literal["blocks", "tokens"] = (
        "tokens" if scheduler is None and getattr(system, "memory", "reserve") == "reserve" else "blocks"
    )
    return Timeline([str(i) for i in served], segments, log, blocks, preempted, rejected, block_unit=unit)


@checks.spelt_out
def timeline_of_requests(
    requests: Iterable[Request],
    *,
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
) -> Timeline:
    """What `simulate` does with named requests; times are whole steps: step s lasts from s to s + 1.

    Parameters
    ----------
    requests, max_running, block_size, num_blocks, token_budget
        As for `simulate`.

    Returns
    -------
    Timeline
        With the clock "step".

    Raises
    ------
    ValueError, TypeError
        As `simulate`.
    """
    scheduler, served = as_scheduler(requests, max_running, block_size, num_blocks, token_budget)
    found = timeline(scheduler)
    names = [served[int(name)].rid for name in found.names]
    return Timeline(names, found.segments, found.steps, found.num_blocks, found.preempted_s, clock="step")


def _played_back(
    scheduler: Scheduler, result: Result, served: Sequence[int], log: StepColumns
) -> tuple[list[list[Segment]], list[list[float]]]:
    """Segments and preemptions of the requests served, by the reference at the times of the engine's log.

    RuntimeError where the engine did something else.
    """
    recorder = _Recorder(log)
    arrivals, prompts, outputs = result.arrival_s.tolist(), result.prompt_tokens.tolist(), result.output_tokens.tolist()
    ends = chain(log["end_s"].tolist(), repeat(np.nan))  # a step too many is the recorder's to tell
    options: dict[str, Any] = {**limits(scheduler), "observer": recorder, "step_ends": ends}
    _, requests = schedule(arrivals, prompts, outputs, step_times(scheduler.step).mixed, **options)
    if [requests[i].finish for i in served] != result.finish_s[list(served)].tolist():
        raise RuntimeError("the playback ends with other times than the engine")
    return [recorder.segments(requests[i]) for i in served], [recorder.preempted_s[requests[i]] for i in served]


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


class _Recorder(Observer):
    """Makes segments of what the reference does, and compares its steps with those of the engine's log."""

    def __init__(self, log: StepColumns) -> None:
        names = ("start_s", "end_s", "running", "emitted", "tokens")
        self.rows = list(zip(*(log[name].tolist() for name in names), strict=True))
        self.step = 0
        self.runs: dict[RequestState, list[Segment]] = defaultdict(list)
        self.preempted_s: dict[RequestState, list[float]] = defaultdict(list)

    def on_preempt(self, request: RequestState, time: float) -> None:
        self.preempted_s[request].append(time)

    def on_step(self, source: Any, step: Step) -> None:
        did = (step.start, step.end, len(step.running), step.emitted, step.tokens)
        engine = self.rows[self.step] if self.step < len(self.rows) else None
        if did != engine:
            raise RuntimeError(
                f"step {self.step}: (start, end, running, emitted, tokens) is {did} by the rules, the engine's {engine}"
            )
        taking_part = set(step.batch)
        for request in step.running:
            if request not in taking_part:
                self._add(request, step, PAUSED, 0, 0)
            elif request not in step.pieces:
                self._add(request, step, DECODE, 1, 1)
            else:
                piece = step.pieces[request]
                self._add(request, step, PREFILL if piece else PAUSED, piece, int(request.status == "decode"))
        self.step += 1

    def _add(self, request: RequestState, step: Step, what: SegmentKind, tokens: int, emitted: int) -> None:
        """Another step; it goes on a segment of decoding or pausing, and each piece of a prefill is one of its own."""
        runs = self.runs[request]
        last = runs[-1] if runs else None
        if last is not None and what == last.what != PREFILL and last.first_step + last.steps == self.step:
            runs[-1] = last._replace(
                end_s=step.end,
                steps=last.steps + 1,
                tokens=last.tokens + tokens,
                emitted=last.emitted + emitted,
                blocks=request.blocks,
            )
        else:
            runs.append(Segment(what, step.start, step.end, self.step, 1, tokens, emitted, request.blocks))

    def segments(self, request: RequestState) -> list[Segment]:
        """Its runs, and the waiting between them."""
        filled: list[Segment] = []
        at = request.arrival
        for segment in self.runs[request]:
            if segment.start_s > at:
                what = PREEMPTED if filled and at in self.preempted_s[request] else WAITING
                filled.append(Segment(what, at, segment.start_s))
            filled.append(segment)
            at = segment.end_s
        return filled
