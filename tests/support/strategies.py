"""Cases for the tests: the golden files, and hypothesis strategies for both clocks."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from reference_runs import StepLog
from servesweep.kernels.counters import COUNTERS
from servesweep.serving import policies
from servesweep.serving.reference import StepTime, schedule
from servesweep.serving.reference_queue import ORDERS
from servesweep.serving.reference_steps import ConstantTimes, StepTimes, times_of

GOLDEN = Path(__file__).parents[1] / "golden"
PAGED = sorted(path.stem for path in (GOLDEN / "paged").glob("*.json") if path.stem != "steps")
POLICIES = tuple(policies.POLICIES)
# What the reference counts: a counter of the engine is compared as soon as the reference has one of its name.
TOTALS = tuple(counter.name for counter in COUNTERS)
LOG_COLUMNS = ("start_s", "end_s", "running", "emitted", "tokens", "blocks_used")
BLOCK_SIZES = (1, 2, 3, 4, 7, 8, 16)

# (call, requests, (first_token, finish), preemptions), worked out by hand
EXAMPLES: list[tuple[dict[str, int], list[tuple[str, int, int, int]], dict[str, tuple[int, int]], dict[str, int]]] = [
    (
        {"max_running": 2},
        [("A", 0, 4, 3), ("B", 0, 2, 1), ("C", 1, 3, 2)],
        {"A": (0, 2), "B": (0, 0), "C": (1, 2)},
        {},
    ),
    (
        {"max_running": 3, "block_size": 4, "num_blocks": 4},
        [("A", 0, 6, 4), ("B", 0, 4, 5), ("C", 1, 3, 2)],
        {"A": (0, 3), "B": (0, 5), "C": (4, 5)},
        {"B": 1},
    ),
    (
        {"max_running": 2, "token_budget": 4},
        [("A", 0, 6, 3), ("B", 0, 3, 2)],
        {"A": (1, 3), "B": (2, 3)},
        {},
    ),
]


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def blocks_needed(prompt: int, output: int, block_size: int) -> int:
    """The most blocks that a request ever holds: its last token is sent, not kept."""
    return -(-(prompt + output - 1) // block_size)


@dataclass
class StepCase:
    """A case on whole steps."""

    requests: list[tuple[str, int, int, int]]  # rid, arrival, prompt, output
    limits: dict[str, Any]  # arguments of simulate


@dataclass(eq=False)
class Traffic:
    """Requests in seconds, at one a second or so. Many lanes can share one."""

    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    priorities: list[int] | None = None  # None: all 0


@dataclass
class LaneCase:
    """A case in seconds."""

    traffic: Traffic
    rate: float
    step: dict[str, Any]  # as in the golden files, or {"seconds": s} for a constant
    options: dict[str, Any] = field(default_factory=dict)  # arguments of run_scheduler

    def arrivals(self) -> list[float]:
        return [arrival / self.rate for arrival in self.traffic.arrival_s]

    def step_times(self) -> StepTimes | ConstantTimes:
        return times_of(self.step)

    def step_time(self) -> StepTime:
        return self.step_times().mixed

    def limits(self) -> dict[str, Any]:
        """The options, with num_blocks filled in."""
        options = dict(self.options)
        if "block_size" in options and "num_blocks" not in options:
            options["num_blocks"] = StepTimes(self.step).kv_capacity // options["block_size"]
        return options

    def reference(self) -> tuple[SimpleNamespace, dict[str, list[Any]]]:
        """The reference's outcome, in the words of servesweep.Result, and its log by columns."""
        log = StepLog()
        requests = (self.arrivals(), self.traffic.prompt_tokens, self.traffic.output_tokens)
        options = {**self.limits(), "priorities": self.traffic.priorities, "observer": log}
        scheduler, served = schedule(*requests, self.step_time(), **options)
        run = SimpleNamespace(
            arrival_s=[s.arrival for s in served],
            prompt_tokens=[s.prompt for s in served],
            output_tokens=[s.output for s in served],
            admitted_s=[s.admitted for s in served],
            first_token_s=[s.first_token for s in served],
            finish_s=[s.finish for s in served],
            preemptions=[s.preemptions for s in served],
            rejected=[s.status == "rejected" for s in served],
            **{name: getattr(scheduler, name) for name in TOTALS if hasattr(scheduler, name)},
        )
        return run, {name: [row[i] for row in log.rows] for i, name in enumerate(LOG_COLUMNS)}


SLOTS = st.sampled_from([1, 2, 3, 4, 6, 8, 8])
SLACK = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 30])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """Number of requests, prompts, outputs. Left alone, hypothesis hardly ever draws a crowd that preempts."""
    crowded = draw(st.sampled_from([False, False, True, True]))
    n = draw(st.integers(8, 14) if crowded else st.integers(1, 10))
    tops = [(6, 40), (1, 15), (20, 20)] if crowded else [(1, 1), (6, 6), (40, 6), (40, 40), (40, 1)]
    prompt, output = draw(st.sampled_from(tops))
    lengths = [st.lists(st.integers(1, top), min_size=n, max_size=n) for top in (prompt, output)]
    return n, draw(lengths[0]), draw(lengths[1])


@st.composite
def step_cases(draw: st.DrawFn, paged: bool | None = None, chunked: bool | None = None) -> StepCase:
    """Tied arrivals, idle gaps, rids that sort unlike their positions, memories that barely hold the longest."""
    n, prompts, outputs = draw(shapes())
    last_arrival = draw(st.sampled_from([0, 3, 20, 20, 100]))
    arrivals = draw(st.lists(st.integers(0, last_arrival), min_size=n, max_size=n))
    rids = draw(st.lists(st.text("aB09-é", max_size=3), min_size=n, max_size=n, unique=True))
    limits: dict[str, Any] = {"max_running": draw(SLOTS)}
    if draw(st.booleans()) if paged is None else paged:
        limits["block_size"] = block_size = draw(st.sampled_from(BLOCK_SIZES))
        need = max(blocks_needed(p, o, block_size) for p, o in zip(prompts, outputs, strict=True))
        limits["num_blocks"] = need + draw(SLACK)
    if draw(st.booleans()) if chunked is None else chunked:
        limits["token_budget"] = limits["max_running"] + draw(st.integers(0, 10))
    return StepCase(list(zip(rids, arrivals, prompts, outputs, strict=True)), limits)


@st.composite
def traffic(draw: st.DrawFn, sizes: st.SearchStrategy[tuple[int, list[int], list[int]]] | None = None) -> Traffic:
    """Random times: none meets the end of a step, some equal each other, some are out of order."""
    n, prompts, outputs = draw(shapes() if sizes is None else sizes)
    rng = Random(draw(st.integers(0, 2**32)))
    tied = draw(st.sampled_from([0.0, 0.4, 1.0]))
    clock, arrivals = draw(st.sampled_from([0.0, rng.random()])), []
    for _ in range(n):
        arrivals.append(clock)
        clock += 0.0 if rng.random() < tied else rng.expovariate(1.0)
    if draw(st.booleans()):
        rng.shuffle(arrivals)
    return Traffic(arrivals, prompts, outputs)


@st.composite
def small_models(draw: st.DrawFn) -> dict[str, Any]:
    rng = Random(draw(st.integers(0, 2**32)))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "name": "small",
        "n_layers": rng.randint(1, 4),
        "d_model": rng.randint(4, 40),
        "n_heads": kv_heads * rng.randint(1, 4),
        "n_kv_heads": kv_heads,
        "head_dim": rng.randint(2, 12),
        "d_ff": rng.randint(4, 80),
        "vocab": rng.randint(10, 200),
        "tied_embeddings": draw(st.booleans()),
        "gated_mlp": draw(st.booleans()),
    }


@st.composite
def step_times(
    draw: st.DrawFn, models: st.SearchStrategy[dict[str, Any]] | None = None, pps: tuple[int, ...] = (1, 2)
) -> dict[str, Any]:
    """Small models on chips and links so made that a few tokens move a step from one regime to another."""
    rng = Random(draw(st.integers(0, 2**32)))
    if draw(st.integers(0, 5)) == 0:
        return {"seconds": rng.uniform(0.001, 2.0)}
    model = draw(small_models() if models is None else models)
    step: dict[str, Any] = {
        "model": model,
        "chip": {"name": "small", "bf16": 1.0, "fp8": 1.0, "mem_bw": 1.0, "mem_cap": 1.0},
        "link": {"alpha_s": 1.0, "bandwidth_bytes_per_s": 1.0},
        "tp": draw(st.sampled_from([1, 2, 3, 4, 8])),
        "pp": draw(st.sampled_from(pps)),
        "weight_bytes": draw(st.sampled_from([1.0, 2.0])),
        "kv_bytes": draw(st.sampled_from([1.0, 2.0])),
        "mfu": rng.uniform(0.2, 1.0),
        "mbu": rng.uniform(0.2, 1.0),
        "mem_reserve": rng.uniform(0.0, 0.3),
    }
    size = StepTimes({**step, "overhead_s": 0.0})
    read_weights_s = rng.uniform(0.001, 0.1)
    flops = size.linear / read_weights_s * rng.choice([0.3, 3.0, 30.0]) * rng.uniform(0.5, 2.0)
    step["overhead_s"] = read_weights_s * rng.choice([0.0, 0.1, 1.0])
    alpha_s = read_weights_s * rng.uniform(0.01, 0.2) / model["n_layers"]
    step["link"] = {
        "alpha_s": alpha_s,
        "bandwidth_bytes_per_s": rng.uniform(1, 20) * 2 * model["d_model"] / (3 * alpha_s),
    }
    gpus = step["tp"] * step["pp"]
    kv_tokens = rng.randint(20, 300) + 0.5  # half a token: no rounding decides about the capacity
    kv_bytes = kv_tokens * size.kv * max(1, step["tp"] / model["n_kv_heads"])
    step["chip"] = {
        "name": "small",
        "bf16": flops,
        "fp8": flops * rng.choice([1.0, 2.0]),
        "mem_bw": size.weights / read_weights_s / step["mbu"] / step["tp"],
        "mem_cap": (size.n_params * step["weight_bytes"] + kv_bytes) / gpus / (1 - step["mem_reserve"]),
    }
    return step


@st.composite
def lane_cases(
    draw: st.DrawFn,
    traffics: st.SearchStrategy[Traffic] | None = None,
    policy: str | None = None,
    paged: bool | None = None,
    order: str | None = None,
) -> LaneCase:
    """Under paged memory some requests may never fit, and num_blocks may be left to the KV capacity.

    Without `order` all is as it was before there were orders: requests have no priorities.
    """
    requests = draw(traffic() if traffics is None else traffics)
    step = draw(step_times())
    policy = draw(st.sampled_from(POLICIES)) if policy is None else policy
    options: dict[str, Any] = {"policy": policy, "max_running": draw(SLOTS)}
    if draw(st.booleans()) if paged is None else paged:
        options["block_size"] = block_size = draw(st.sampled_from(BLOCK_SIZES))
        lengths_of = zip(requests.prompt_tokens, requests.output_tokens, strict=True)
        needs = [blocks_needed(prompt, output, block_size) for prompt, output in lengths_of]
        kind = draw(st.sampled_from(["tight", "tight", "tight", "roomy", "rejecting", "capacity"]))
        if kind == "rejecting":
            options["num_blocks"] = draw(st.integers(1, max(needs)))
        elif kind == "roomy":
            options["num_blocks"] = sum(needs)
        elif kind == "tight" or "seconds" in step:
            options["num_blocks"] = max(needs) + draw(SLACK)
    options |= draw(policy_options(policy, "paged" if "block_size" in options else "unlimited", options["max_running"]))
    seconds = step["seconds"] if "seconds" in step else StepTimes(step).mixed(1, 1, 0, 0)
    rate = draw(st.sampled_from([0.03, 0.3, 3.0])) / seconds
    if order is not None:
        options |= draw(order_options(order, rate))
        requests = draw(with_priorities(requests))
    return LaneCase(requests, rate, step, options)


@st.composite
def policy_options(draw: st.DrawFn, policy: str, memory: str, max_running: int = 0) -> dict[str, Any]:
    """The options that the policy has of its own. A new kind of option needs its values here."""
    values = {
        "token_budget": st.integers(max_running, max_running + 20),
        "chunk_budget": st.sampled_from([1, 2, 3, 5, 9, 30, 512]),
        "max_tokens": st.sampled_from([1, 10, 60, 4096]),
    }
    options = {name: draw(values[name]) for name in policies.POLICIES[policy].options[memory]}
    if policy == "vllm":
        options |= draw(vllm_options(memory))
    return options


@st.composite
def vllm_options(draw: st.DrawFn, memory: str) -> dict[str, Any]:
    """Some of those that the policy has beside its budget."""
    values: dict[str, st.SearchStrategy[Any]] = {
        "long_prefill_token_threshold": st.sampled_from([1, 2, 5, 20]),
        "enable_chunked_prefill": st.just(False),
        "async_scheduling": st.just(True),
        "max_model_len": st.integers(2, 60),
    }
    if memory == "paged":
        values |= {"reserve_full_isl": st.just(False), "watermark": st.sampled_from([0.1, 0.3, 0.7])}
    names = draw(st.lists(st.sampled_from(sorted(values)), unique=True, max_size=3))
    return {name: draw(values[name]) for name in names}


@st.composite
def order_options(draw: st.DrawFn, order: str, rate: float) -> dict[str, Any]:
    """A service order with or without ageing, after the time in which 0 to 10 requests or so arrive."""
    options: dict[str, Any] = {"order": order}
    if ORDERS[order].ages and draw(st.booleans()):
        waits = [0.0, 0.5, 2.0, 9.0] if rate == 1.0 else [0.0, 0.37, 1.9, 9.7]  # exact clocks have a rate of 1
        options["max_wait_s"] = draw(st.sampled_from(waits)) / rate
    return options


@st.composite
def with_priorities(draw: st.DrawFn, requests: Traffic) -> Traffic:
    n = len(requests.arrival_s)
    return replace(requests, priorities=draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)))


@st.composite
def batches(draw: st.DrawFn, max_lanes: int = 10) -> list[LaneCase]:
    """Lanes of all kinds, several of them sharing their traffic."""
    pool = draw(st.lists(traffic(), min_size=1, max_size=3))
    return draw(st.lists(lane_cases(st.sampled_from(pool)), min_size=1, max_size=max_lanes))
