"""What is measured: kinds of systems, sizes and loads, and which of them in a short, a usual and a long run."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import servesweep
from servesweep import StepModel, Workload, chip, load_trace, lognormal_len, make_workload, model
from servesweep.serving.run import System

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
TRACE = "AzureLLMInferenceTrace_conv.csv"
STEP = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
PARTS = 4  # instances of a group
GROUPED = 5  # groups are a fifth as many as single instances
LOADS = {"light": (0.1, 0.2), "heavy": (0.85, 0.95), "overloaded": (2.0, 4.0)}  # as shares of the capacity
SPREAD = (2.0, 60.0)  # requests/s of an instance under the load "spread"
MOST_REQUESTS = 10_000_000  # of a batch in a long run


@dataclass(frozen=True)
class Kind:
    """A system but for its traffic.

    build         the class of the package
    capacity_rps  requests/s that an instance finishes when far more arrive, rounded: what loads refer to
    bar           multiple of the reference's speed, with 1,000 systems (200 groups) of 2,000 requests
    """

    name: str
    build: str
    options: dict[str, Any] = field(default_factory=dict)
    capacity_rps: float = 30.0
    bar: float = math.nan
    parts: int = 1
    trace: bool = False


@dataclass(frozen=True)
class Case:
    """A kind under a load. Rates are log-spaced over the systems."""

    kind: Kind
    systems: int
    requests: int
    load: str

    def build(self) -> list[System]:
        work = _azure(self.requests) if self.kind.trace else _chat(self.requests)
        low, high = SPREAD if self.load == "spread" else (self.kind.capacity_rps * x for x in LOADS[self.load])
        rates = self.kind.parts * (np.geomspace(low, high, self.systems) if self.systems > 1 else [(low * high) ** 0.5])
        made = getattr(servesweep, self.kind.build)
        return [made(workload=work, rate=float(rate), **self.kind.options) for rate in rates]

    def bars(self) -> tuple[float, float]:
        """The least multiple of the reference's speed, and the least requests/s; NaN where there is none."""
        if self.load != "spread" or self.kind.trace:
            return math.nan, math.nan
        if (self.systems, self.requests) == (of_size(self.kind, 1000), 2000):
            return self.kind.bar, math.nan
        if self.kind.build != "Scheduler":
            return math.nan, math.nan
        if self.systems == 50:
            return math.nan, 30_000.0
        one = {"mixed": 2000.0, "chunked": 1500.0}
        return math.nan, one.get(self.kind.options["policy"], math.nan) if self.systems == 1 else math.nan


def of_size(kind: Kind, lanes: int) -> int:
    """Systems for a batch of about so many lanes."""
    return lanes if kind.parts == 1 else max(lanes // GROUPED, 1)


@cache
def _chat(requests: int) -> Workload:
    return make_workload(requests, 1.0, lognormal_len(400, 0.8, 16, 4000), lognormal_len(150, 0.8, 2, 1000), seed=1)


@cache
def _trace() -> Workload:
    return load_trace(TRACES / TRACE).at_unit_rate()


def _azure(requests: int) -> Workload:
    whole = _trace()
    first = slice(requests)
    return Workload(whole.arrival_s[first], whole.prompt_tokens[first], whole.output_tokens[first]).at_unit_rate()


def _schedulers() -> Iterator[Kind]:
    capacity = {"mixed": (36, 13), "chunked": (39, 13), "prefill_first": (32, 12)}
    for policy in ("mixed", "chunked", "prefill_first"):
        for tight, (memory, blocks, bar) in enumerate((("roomy", 4000, 120.0), ("tight", 600, 70.0))):
            options = {"step": STEP, "policy": policy, "max_running": 128, "block_size": 16, "num_blocks": blocks}
            if policy == "chunked":
                options["token_budget"] = 512
            yield Kind(f"{policy} {memory}", "Scheduler", options, capacity[policy][tight], bar)
            if memory == "roomy" and (TRACES / TRACE).exists():
                yield Kind(f"{policy} azure", "Scheduler", options, capacity[policy][tight] / 3, trace=True)


def _vllm() -> Iterator[Kind]:
    """The same under vLLM's rules: plain, with its prefix cache and nothing shared, and in running lists."""
    for memory, blocks, capacity, bars in (("roomy", 4000, 39, (84.0, 48.0)), ("tight", 600, 13, (49.0, math.nan))):
        options = {"step": STEP, "policy": "vllm", "max_running": 128, "token_budget": 512}
        options |= {"block_size": 16, "num_blocks": blocks}
        yield Kind(f"vllm {memory}", "Scheduler", options, capacity, bars[0])
        yield Kind(f"vllm cache {memory}", "Scheduler", {**options, "enable_prefix_caching": True}, capacity, bars[1])
        yield Kind(f"vllm async {memory}", "Scheduler", {**options, "async_scheduling": True}, capacity)


def _systems() -> Iterator[Kind]:
    paged = {"memory": "paged", "max_running": 128, "block_size": 16, "num_blocks": 4000}
    apart = {"prefill_step": STEP, "decode_step": STEP}
    single = [
        Kind("colocated prefill_first", "Colocated", {"step": STEP}, 40),
        Kind("colocated chunked", "Colocated", {"step": STEP, "policy": "chunked"}, 40),
        Kind("prefill_only", "PrefillOnly", {"step": STEP}, 95),
        Kind("decode_only", "DecodeOnly", {"step": STEP}, 70),
        Kind("disaggregated", "Disaggregated", apart, 50),
        Kind("disaggregated paged", "Disaggregated", {**apart, **paged}, 50),
    ]
    for kind in single:
        yield Kind(kind.name, kind.build, kind.options, kind.capacity_rps, 40.0)
    for kind in single:
        several = ("n_prefill", "n_decode") if kind.build == "Disaggregated" else ("n_instances",)
        options = {**kind.options, **dict.fromkeys(several, PARTS)}
        yield Kind(f"{kind.name} x{PARTS}", kind.build, options, kind.capacity_rps, 10.0, PARTS)
    options = {"step": STEP, "n_instances": PARTS, "router": "round_robin"}
    yield Kind(f"colocated prefill_first x{PARTS} round_robin", "Colocated", options, 40, 10.0, PARTS)


KINDS = [*_schedulers(), *_vllm(), *_systems()]


def chosen(
    size: str, only: str, lanes: list[int] | None, requests: list[int] | None, loads: list[str] | None
) -> list[Case]:
    """The cases of a run: `size` is quick, usual or full; what is given in its place holds for all kinds.

    `only` is a regular expression, found in the names of kinds.
    """
    shapes: list[tuple[int, int, str]]
    if lanes or requests or loads:
        shapes = list(itertools.product(lanes or [1000], requests or [2000], loads or ["spread"]))
    elif size == "quick":
        shapes = [(50, 500, "spread")]
    elif size == "usual":
        shapes = [(1000, 2000, "spread"), (50, 500, "spread"), (1, 1000, "spread"), (1000, 200, "overloaded")]
    else:
        every = itertools.product((1, 50, 1000, 4000), (1000, 10_000, 100_000), ("spread", *LOADS))
        shapes = [(1000, 2000, "spread"), *(shape for shape in every if shape[0] * shape[1] <= MOST_REQUESTS)]
    cases = [
        Case(kind, of_size(kind, n), requests_each, load)
        for n, requests_each, load in shapes
        for kind in KINDS
        if re.search(only, kind.name) and not (kind.trace and requests_each > len(_trace()))
    ]
    return [case for place, case in enumerate(cases) if case not in cases[:place]]
