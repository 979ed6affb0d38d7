"""What holds on every run, as functions for tests and for debugging. They take plain sequences or arrays."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from servesweep.serving.reference_queue import ORDERS, RequestState
from servesweep.serving.reference_vllm import longest_of

Log = Mapping[str, Any]  # columns start_s, end_s, running, emitted, tokens, blocks_used: one entry a step


ROUNDING = 1e-12
COLUMNS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "admitted_s",
    "first_token_s",
    "finish_s",
    "preemptions",
    "rejected",
)


class Run(Protocol):
    """The outcome of one scheduler: servesweep.Result, or the reference's in the same words."""

    arrival_s: Any
    prompt_tokens: Any
    output_tokens: Any
    admitted_s: Any
    first_token_s: Any
    finish_s: Any
    preemptions: Any
    rejected: Any
    steps: int
    prefill_tokens: int
    recomputed_tokens: int
    peak_blocks: int
    running_steps: float
    block_steps: float
    busy_s: float


def check_run(
    run: Run, limits: Mapping[str, Any], log: Log | None = None, priorities: Sequence[int] | None = None
) -> None:
    """Every invariant of a run in seconds. `limits`: the arguments of run_scheduler, with num_blocks if paged."""
    requests = _requests(run)
    for position, r in enumerate(requests):
        r |= {"position": position, "priority": 0 if priorities is None else priorities[position]}
    served = [r for r in requests if not r["rejected"]]
    check_every_request_ends(requests)
    # vLLM may let a younger prompt end first, preempts by priority, and under async scheduling sees arrivals later.
    in_list = limits.get("long_prefill_token_threshold") or limits.get("async_scheduling")
    in_list = in_list or (limits.get("policy") == "vllm" and limits.get("order") == "priority")
    if not in_list:
        if limits.get("order", "arrival") == "arrival":
            check_first_come_first_served(served)
            check_oldest_is_never_preempted(served)
        check_service_order(served, limits.get("order", "arrival"), limits.get("max_wait_s", math.inf))
    check_rejections(requests, limits)
    check_totals(run, served, limits)
    if log is not None:
        check_log(run, served, limits, log)


def _requests(run: Run) -> list[dict[str, Any]]:
    columns = [getattr(run, name) for name in COLUMNS]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]


def check_every_request_ends(requests: Iterable[Mapping[str, Any]]) -> None:
    """CellStore, in the order of events, or rejected without any time. Nothing is lost."""
    for r in requests:
        times = (r["admitted_s"], r["first_token_s"], r["finish_s"])
        if r["rejected"]:
            assert all(math.isnan(t) for t in times), r
            assert r["preemptions"] == 0, r
        else:
            assert r["arrival_s"] <= r["admitted_s"] < r["first_token_s"] <= r["finish_s"] < math.inf, r
            assert (r["first_token_s"] == r["finish_s"]) == (r["output_tokens"] == 1), r
            assert r["preemptions"] >= 0, r


def check_first_come_first_served(served: Iterable[Mapping[str, Any]]) -> None:
    """Admissions and first tokens come in the order of arrival and position: nobody skips ahead."""
    ordered = sorted(served, key=lambda r: r["arrival_s"])  # stable
    for name in ("admitted_s", "first_token_s"):
        times = [r[name] for r in ordered]
        assert times == sorted(times), name


def check_service_order(served: Sequence[Mapping[str, Any]], order: str, max_wait_s: float) -> None:
    """Nobody is admitted while another who is there, and was never admitted, comes before in the order of service.

    First tokens come in the order of first admission, and whoever was admitted first of all is never preempted.
    """

    def place(r: Mapping[str, Any], now: float) -> tuple[Any, ...]:
        arrived = (r["arrival_s"], r["position"])
        if r["arrival_s"] + max_wait_s <= now:
            return (0, *arrived)
        own = {"arrival": (), "shortest_prompt": (r["prompt_tokens"],), "priority": (r["priority"],)}
        if order not in own:  # one that was registered since: what the reference compares
            request = RequestState(r["position"], r["arrival_s"], r["prompt_tokens"], r["output_tokens"], r["priority"])
            return (1, *ORDERS[order].key(request))
        return (1, *own[order], *arrived)

    for r in served:
        now = r["admitted_s"]
        there = [other for other in served if other["arrival_s"] <= now < other["admitted_s"]]
        assert all(place(r, now) < place(other, now) for other in there), r
    ordered = sorted(served, key=lambda r: (r["admitted_s"], *place(r, r["admitted_s"])))
    firsts = [r["first_token_s"] for r in ordered]
    assert firsts == sorted(firsts)
    assert not ordered or ordered[0]["preemptions"] == 0


def check_oldest_is_never_preempted(served: Iterable[Mapping[str, Any]]) -> None:
    oldest = min(served, key=lambda r: r["arrival_s"], default={"preemptions": 0})
    assert oldest["preemptions"] == 0, oldest


def check_rejections(requests: Iterable[Mapping[str, Any]], limits: Mapping[str, Any]) -> None:
    """Exactly those that could never fit are refused."""
    for r in requests:
        never_fits = limits.get("block_size") is not None and (
            r["prompt_tokens"] + r["output_tokens"] - 1 > limits["num_blocks"] * limits["block_size"]
        )
        never_fits |= r["prompt_tokens"] + r["output_tokens"] > longest_of(dict(limits))
        assert r["rejected"] == never_fits, r


def check_totals(run: Run, served: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> None:
    prompts, outputs = (sum(r[name] for r in served) for name in ("prompt_tokens", "output_tokens"))
    preemptions = sum(r["preemptions"] for r in served)
    assert run.prefill_tokens - run.recomputed_tokens <= prompts <= run.prefill_tokens
    if preemptions == 0:
        assert run.prefill_tokens == prompts
        assert run.recomputed_tokens == 0
    elif not limits.get("async_scheduling"):  # there the step under way may send a victim's last token
        assert run.recomputed_tokens > 0
    assert (run.steps > 0) == bool(served)
    assert run.steps <= run.prefill_tokens + outputs, "each step processes a token"
    assert run.steps <= run.running_steps <= run.steps * limits["max_running"]
    if limits.get("block_size") is None:
        assert run.peak_blocks == run.block_steps == preemptions == 0
    else:
        assert run.peak_blocks <= limits["num_blocks"]
        assert run.running_steps <= run.block_steps <= run.steps * run.peak_blocks
    if served:
        span = max(r["finish_s"] for r in served) - min(r["arrival_s"] for r in served)
        assert 0 < run.busy_s <= span * (1 + 1e-9)


def check_log(run: Run, served: Sequence[Mapping[str, Any]], limits: Mapping[str, Any], log: Log) -> None:
    """One row a step that is not idle. Times agree to rounding: an engine that leaps adds them up in another order."""
    columns = (log[name] for name in ("start_s", "end_s", "running", "emitted", "tokens", "blocks_used"))
    rows = list(zip(*columns, strict=True))
    assert len(rows) == run.steps
    clock = 0.0
    for start, end, running, emitted, tokens, blocks in rows:
        assert clock * (1 - ROUNDING) <= start < end, "a step begins when the last one has ended"
        clock = end
        check_step(running, emitted, tokens, blocks, limits)
    assert sum(row[2] for row in rows) == run.running_steps
    assert sum(row[3] for row in rows) == sum(r["output_tokens"] for r in served), "every token is sent once"
    assert sum(row[5] for row in rows) == run.block_steps
    assert max((row[5] for row in rows), default=0) == run.peak_blocks
    assert math.isclose(sum(row[1] - row[0] for row in rows), run.busy_s, rel_tol=1e-9)
    for r in served:
        assert is_among(r["admitted_s"], log["start_s"])
        assert is_among(r["first_token_s"], log["end_s"])
        assert is_among(r["finish_s"], log["end_s"])
    check_littles_law(rows, served)


def is_among(time: float, ordered: Sequence[float]) -> bool:
    i = bisect_left(ordered, time * (1 - ROUNDING))
    return i < len(ordered) and ordered[i] <= time * (1 + ROUNDING)


def check_step(running: int, emitted: int, tokens: int, blocks: int, limits: Mapping[str, Any]) -> None:
    """A step that is not idle."""
    assert 1 <= running <= limits["max_running"]
    assert 0 <= emitted <= min(running, tokens)
    assert tokens >= 1
    if limits.get("token_budget") is not None:
        assert tokens <= limits["token_budget"]
    if limits.get("block_size") is not None:
        assert running <= blocks <= limits["num_blocks"]
    else:
        assert blocks == 0


def check_littles_law(rows: Iterable[Sequence[Any]], served: Sequence[Mapping[str, Any]]) -> None:
    """Running requests integrated over time = time from admission to finish, less the waits after preemption."""
    area = sum(running * (end - start) for start, end, running, *_ in rows)
    residence = sum(r["finish_s"] - r["admitted_s"] for r in served)
    assert area <= residence * (1 + 1e-9)
    if not any(r["preemptions"] for r in served):
        assert math.isclose(area, residence, rel_tol=1e-9)


def check_simulation(
    requests: Sequence[tuple[str, int, int, int]],
    limits: Mapping[str, Any],
    result: Mapping[str, Mapping[str, Any]],
    log: Sequence[tuple[int, ...]],
) -> None:
    """Every invariant of a run on whole steps. The log is rows of step, running, emitted, tokens, blocks_used."""
    assert list(result) == [rid for rid, *_ in requests]
    for rid, arrival, _, output in requests:
        r = result[rid]
        assert arrival <= r["first_token"]
        assert r["finish"] - r["first_token"] >= output - 1
        if r["preemptions"] == 0:
            assert r["finish"] - r["first_token"] == output - 1, "a decoding request emits in every step"
    ordered = sorted(requests, key=lambda q: (q[1], q[0]))
    firsts = [result[rid]["first_token"] for rid, *_ in ordered]
    assert firsts == sorted(firsts), "first come, first served"
    if ordered:
        assert result[ordered[0][0]]["preemptions"] == 0
    assert [row[0] for row in log] == list(range(len(log)))
    assert len(log) == max((r["finish"] for r in result.values()), default=-1) + 1
    for step, running, emitted, tokens, blocks in log:
        unfinished = sum(q[1] <= step <= result[q[0]]["finish"] for q in requests)
        if unfinished:
            check_step(running, emitted, tokens, blocks, limits)
            assert running <= unfinished
        else:
            assert (running, emitted, tokens, blocks) == (0, 0, 0, 0)
    assert sum(row[2] for row in log) == sum(q[3] for q in requests)
