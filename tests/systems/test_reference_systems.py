"""The reference systems are right: what holds on any run, and that their schedulers are the reference scheduler."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from invariants_systems import check_system, check_trace
from parity_systems import SystemCase, Trace, answer, rounding_decides, systems_of
from servesweep import run_systems
from servesweep.serving import reference_answers
from servesweep.serving.reference import schedule
from servesweep.serving.reference_instances import Instance
from servesweep.serving.reference_systems import Router
from strategies import Traffic
from strategies_systems import system_cases


@given(system_cases())
def test_what_holds(case: SystemCase) -> None:
    trace = Trace()
    run, instances, requests = answer(case, trace)
    check_system(run, case)
    if case.options.get("memory", "reserve") == "reserve":
        check_trace(trace.reserved, case)
    for instance in instances:
        assert (instance.load, instance.unfinished, instance.tokens) == (0, 0, 0), "all counts are given back"
    served = [request for request in requests if request.status != "rejected"]
    first_stage = [i for i in instances if i.role == instances[0].role]
    if case.system != "decode_only":
        assert sum(instance.requests for instance in first_stage) == len(served)
    for number, instance in enumerate(first_stage):
        assert instance.number == number
        assert instance.requests == sum(request.served_by[:1] == [number] for request in served)


@given(system_cases(system="colocated", memory="paged") | system_cases(system="colocated", memory="unlimited"))
def test_one_scheduler_is_the_scheduler(case: SystemCase) -> None:
    case.options |= {"n_instances": 1, "router": "least_loaded"}
    run, (instance,), _ = answer(case)
    skipped = ("n_instances", "router", "router_seed", "memory")
    limits: dict[str, Any] = {name: value for name, value in case.options.items() if name not in skipped}
    arrivals = [arrival / case.rate for arrival in case.traffic.arrival_s]
    lengths = (case.traffic.prompt_tokens, case.traffic.output_tokens)
    scheduler, served = schedule(arrivals, *lengths, case.times()["step"].mixed, **limits)
    for name, expected in (("admitted_s", "admitted"), ("first_token_s", "first_token"), ("finish_s", "finish")):
        times = [getattr(seq, expected) for seq in served]
        assert getattr(run, name) == pytest.approx(times, rel=0, abs=0, nan_ok=True)
    assert run.preemptions == [seq.preemptions for seq in served]
    assert (instance.steps, instance.busy_s) == (scheduler.steps, scheduler.busy_s)


# Which instance serves a request, by hand. Every step takes a second; prefill at 4,096 tokens a batch.

A_SECOND = {
    "model": {"name": "one", "n_layers": 1, "d_model": 1, "n_heads": 1, "n_kv_heads": 1}
    | {"head_dim": 1, "d_ff": 1, "vocab": 1},
    "chip": {"name": "fast", "bf16": 2.0**80, "fp8": 0.0, "mem_bw": 2.0**80, "mem_cap": 2.0**30},
    "link": {"alpha_s": 1.0, "bandwidth_bytes_per_s": 1.0},
    **{"tp": 1, "pp": 1, "weight_bytes": 2.0, "kv_bytes": 2.0, "mfu": 1.0, "mbu": 1.0},
    **{"overhead_s": 1.0, "mem_reserve": 0.0},
}
# system, options, requests as (arrival, prompt, output), instance of each request
ROUTED: list[tuple[str, dict[str, Any], list[tuple[float, int, int]], list[int]]] = [
    # blind to the prefill step that runs, and it sees who waits behind it
    ("colocated", {"router": "least_loaded"}, [(0, 9, 3), (0.5, 9, 3), (0.75, 9, 3)], [0, 0, 1]),
    ("colocated", {"router": "least_outstanding"}, [(0, 9, 3), (0.5, 9, 3), (0.75, 9, 3)], [0, 1, 0]),
    # at the very time a step ends, it has not ended yet
    ("colocated", {"router": "least_outstanding"}, [(0, 9, 1), (1, 9, 1), (1.5, 9, 1)], [0, 1, 0]),
    ("colocated", {"router": "least_loaded"}, [(0, 9, 3), (1, 9, 3), (1, 9, 3)], [0, 0, 1]),
    # a prefilled request counts again, in the lane, when the step has ended
    ("colocated", {"router": "least_loaded"}, [(0, 9, 3), (1.5, 9, 3)], [0, 1]),
    ("colocated", {"router": "least_tokens"}, [(0, 9, 9), (0, 1, 1), (0.5, 1, 1), (0.5, 20, 1)], [0, 1, 1, 1]),
    # part-way through a chunked prefill: not in the load, but not done
    ("colocated", {"policy": "chunked", "chunk_budget": 4}, [(0, 9, 1), (1.5, 9, 1), (1.5, 1, 1)], [0, 0, 1]),
    (
        "colocated",
        {"policy": "chunked", "chunk_budget": 4, "router": "least_outstanding"},
        [(0, 9, 1), (1.5, 9, 1), (1.5, 1, 1)],
        [0, 1, 0],
    ),
    # prompt tokens queued, without the batch in progress
    ("prefill_only", {"router": "least_loaded"}, [(0, 9, 1), (0.5, 9, 1), (0.5, 5, 1), (0.5, 3, 1)], [0, 0, 1, 1]),
    ("prefill_only", {"router": "least_tokens"}, [(0, 9, 1), (0.5, 3, 99), (0.5, 3, 1), (0.5, 9, 1)], [0, 1, 1, 1]),
    (
        "decode_only",
        {"router": "least_loaded"},
        [(0, 9, 2), (0, 9, 3), (0.5, 9, 2), (1, 9, 2), (1.5, 9, 2)],
        [0, 1, 0, 1, 0],
    ),
    ("decode_only", {"router": "round_robin"}, [(5, 9, 2), (0, 9, 3), (1, 9, 2)], [0, 0, 1]),
    # idle instances all the same, but turns and draws go on
    ("colocated", {"router": "round_robin"}, [(0, 9, 1), (10, 9, 1), (20, 9, 1)], [0, 1, 0]),
    (
        "colocated",
        {"memory": "unlimited", "policy": "mixed", "max_running": 1},
        [(0, 9, 2), (0, 9, 1), (1, 9, 1), (1.5, 9, 1)],
        [0, 1, 0, 1],
    ),
]


@pytest.mark.parametrize(("system", "options", "requests", "instances"), ROUTED)
def test_routing_by_hand(system: str, options: Any, requests: Any, instances: Any) -> None:
    arrivals, prompts, outputs = (list(column) for column in zip(*requests, strict=True))
    case = SystemCase(
        system, Traffic(arrivals, prompts, outputs), 1.0, {"step": A_SECOND}, {**options, "n_instances": 2}
    )
    _, _, served = answer(case)
    assert [request.served_by for request in served] == [[instance] for instance in instances]


def test_draws_by_hand() -> None:
    instances = [Instance("prefill", i, []) for i in range(3)]
    picked = [Router("random", instances, [u]).pick().number for u in (0.0, 0.33, 0.34, 0.99)]
    assert picked == [0, 0, 1, 2]
    instances[1].unfinished = 1
    pairs = {(0.0, 0.0): 0, (0.0, 0.5): 0, (0.4, 0.0): 0, (0.4, 0.6): 2, (0.9, 0.0): 2, (0.9, 0.6): 2}
    for pair, number in pairs.items():
        assert Router("power_of_two", instances, [pair]).pick().number == number, pair
    for instance in instances:
        instance.unfinished = 5
    assert Router("power_of_two", instances, [(0.9, 0.0)]).pick().number == 2, "the first drawn on a tie"
    assert Router("power_of_two", instances[:1], [(0.9, 0.9)]).pick().number == 0


@given(system_cases())
def test_a_system_of_the_package_is_answered_as_the_case_that_it_came_from(case: SystemCase) -> None:
    expected, _, requests = answer(case)
    (system,) = systems_of([case])
    answered = reference_answers.answer(system)
    assert [request.preemptions for request in answered] == expected.preemptions
    assert [request.status == "rejected" for request in answered] == expected.rejected
    for name, column in (("admitted", "admitted_s"), ("first_token", "first_token_s"), ("finish", "finish_s")):
        times = [getattr(request, name) for request in answered]
        np.testing.assert_allclose(times, getattr(expected, column), rtol=1e-9, err_msg=name)
    if not rounding_decides(case, requests):
        assert reference_answers.disagreement(run_systems([system]).result(0), answered) is None


def test_a_disagreement_is_told() -> None:
    case = SystemCase("colocated", Traffic([0.0, 0.5], [9, 9], [3, 3]), 1.0, {"step": A_SECOND}, {})
    (system,) = systems_of([case])
    result, answered = run_systems([system]).result(0), reference_answers.answer(system)
    assert reference_answers.disagreement(result, answered) is None
    answered[1].finish *= 1 + 1e-8
    words = reference_answers.disagreement(result, answered)
    assert words is not None
    assert words.startswith("request 1: finish_s ")
    answered[1].preemptions = 1
    assert reference_answers.disagreement(result, answered) == "request 1: preemptions 0, the reference's 1"
