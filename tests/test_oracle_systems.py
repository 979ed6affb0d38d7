"""The systems' oracle is right: what holds on any run, and its schedulers are those of tests/oracle.py."""

from typing import Any

import pytest
from hypothesis import given
from invariants_systems import check_system, check_trace
from oracle import run_scheduler
from oracle_instances import Step
from parity_systems import SystemCase, answer
from strategies_systems import system_cases


@given(system_cases())
def test_what_holds(case: SystemCase) -> None:
    trace: list[Step] = []
    run, instances, requests = answer(case, trace)
    check_system(run, case)
    if case.options.get("memory", "reserve") == "reserve":
        check_trace(trace, case)
    for instance in instances:
        assert (instance.load, instance.unfinished, instance.tokens) == (0, 0, 0), "all counts are given back"
    served = [request for request in requests if request.status != "refused"]
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
    scheduler, sequences = run_scheduler(arrivals, *lengths, case.times()["step"].mixed, **limits)
    for name, expected in (("admitted_s", "admitted"), ("first_token_s", "first_token"), ("finish_s", "finish")):
        times = [getattr(seq, expected) for seq in sequences]
        assert getattr(run, name) == pytest.approx(times, rel=0, abs=0, nan_ok=True)
    assert run.preemptions == [seq.preemptions for seq in sequences]
    assert (instance.steps, instance.busy_s) == (scheduler.steps, scheduler.busy_s)
