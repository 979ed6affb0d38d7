"""Closed loops against the reference: when requests arrive depends on when others are answered."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_systems import SystemCase, arguments, assert_identical, check_counters, draws, facts_of
from servesweep import Colocated, ConstantStepTime, PrefillOnly, Scheduler, Workload, run_scheduler
from servesweep.serving import orders, policies
from servesweep.serving.reference_answers import disagreement
from servesweep.serving.reference_systems import run_system
from servesweep.serving.run import run_systems
from strategies_systems import system_cases

few = settings(max_examples=settings.default.max_examples // 2)
CASES = [
    (memory, row.name, order)
    for memory in ("reserve", "paged", "unlimited")
    for row in policies.POLICIES.values()
    if memory in row.memories
    for order in orders.ORDERS
    if (row.name, order) != ("vllm", "priority")  # refused
]


@dataclass
class Loop:
    case: SystemCase
    concurrency: int
    think_time_s: float

    def system(self) -> Colocated:
        traffic = self.case.traffic
        work = Workload(
            np.zeros(len(traffic.prompt_tokens)),
            np.array(traffic.prompt_tokens),
            np.array(traffic.output_tokens),
            priority=None if traffic.priorities is None else np.array(traffic.priorities),
            concurrency=self.concurrency,
            think_time_s=self.think_time_s,
        )
        return Colocated(workload=work, **arguments(self.case))


@st.composite
def loops(draw: st.DrawFn, memory: str, policy: str, order: str) -> Loop:
    exact = draw(st.sampled_from([True, True, False]))
    case = draw(system_cases(system="colocated", memory=memory, policy=policy, order=order, exact=exact))
    # Who thinks as long as another comes at the end of a step that began with the other: to rounding, if not exact.
    thinks = st.sampled_from([0.0, 0.0, 0.25, 1.0, 3.0]) if exact else st.just(0.0)
    case.options.pop("async_scheduling", None)  # refused
    # Several are refused under reserved memory; steps of instances that do the same would end together, to rounding.
    if memory == "reserve" or not exact:
        case = replace(case, options={**case.options, "n_instances": 1})
    return Loop(case, draw(st.integers(1, 4) | st.sampled_from([8, 50])), draw(thinks))


@pytest.mark.parametrize(("memory", "policy", "order"), CASES)
def test_closed_loops(memory: str, policy: str, order: str) -> None:
    """Batches of systems; each has the bits that it has alone."""

    @few
    @given(st.lists(loops(memory, policy, order), min_size=1, max_size=4))
    def check(batch: list[Loop]) -> None:
        systems = [loop.system() for loop in batch]
        results = run_systems(systems, step_log=range(0, len(systems), 2))
        for i, loop in enumerate(batch):
            options = dict(loop.case.options)
            seed, traffic = options.pop("router_seed", 0), loop.case.traffic
            n = len(traffic.prompt_tokens)
            requests, instances = run_system(
                "colocated",
                [0.0] * n,
                traffic.prompt_tokens,
                traffic.output_tokens,
                loop.case.times(),
                priorities=traffic.priorities,
                draws=[draws(options["router"], seed, stage, n) for stage in (0, 1)],
                concurrency=loop.concurrency,
                think_time_s=loop.think_time_s,
                **options,
            )
            result = results.result(i)
            assert disagreement(result, requests) is None
            np.testing.assert_allclose(result.arrival_s, [request.arrival for request in requests], rtol=1e-9)
            assert facts_of(results, i)["requests"] == [instance.requests for instance in instances]
            assert facts_of(results, i)["steps"] == [instance.steps for instance in instances]
            check_counters(result, instances)
            assert_identical(results, i, run_systems([systems[i]]), 0)

    check()


def work(prompts: list[int], outputs: list[int], concurrency: int, think_time_s: float = 0.0) -> Workload:
    requests = Workload(np.zeros(len(prompts)), np.array(prompts), np.array(outputs))
    return requests.at_concurrency(concurrency, think_time_s=think_time_s)


def test_by_hand() -> None:
    """The first answer ends at 2: its client sends at 2.5, which the step from 3 is the first to see."""
    loop = work([1, 1, 1, 1], [2, 3, 1, 2], 2, 0.5)
    result = run_scheduler(loop, ConstantStepTime(1.0), policy="mixed", max_running=2)
    np.testing.assert_array_equal(result.arrival_s, [0, 0, 2.5, 3.5])
    np.testing.assert_array_equal(result.finish_s, [2, 3, 4, 6])


def test_refused_requests_cost_no_time() -> None:
    """A refused one comes with the next that its client sends; the last, when the first client is free."""
    options = {"policy": "mixed", "max_running": 2, "block_size": 4, "num_blocks": 4}
    result = run_scheduler(work([1, 90, 1, 1, 90], [2, 3, 1, 2, 1], 2, 0.5), ConstantStepTime(1.0), **options)
    np.testing.assert_array_equal(result.rejected, [False, True, False, False, True])
    np.testing.assert_array_equal(result.arrival_s, [0, 0, 0, 1.5, 2.5])
    np.testing.assert_array_equal(result.finish_s, [2, np.nan, 1, 4, np.nan])


def test_as_many_clients_as_requests_are_a_batch() -> None:
    prompts, outputs = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3]
    step, options = ConstantStepTime(1.0), {"policy": "mixed", "max_running": 3}
    batch = run_scheduler(Workload(np.zeros(5), np.array(prompts), np.array(outputs)), step, **options)
    loop = run_scheduler(work(prompts, outputs, 9), step, **options)
    np.testing.assert_array_equal(loop.finish_s, batch.finish_s)


def test_what_is_refused() -> None:
    step, loop = ConstantStepTime(1.0), work([1], [1], 1)
    with pytest.raises(ValueError, match=r"arrival_s\[1\]=2.0: must be 0 under concurrency=3"):
        Workload(np.array([0, 2.0]), np.array([1, 1]), np.array([1, 1]), concurrency=3)
    with pytest.raises(ValueError, match=r"think_time_s=1.0: has no effect without concurrency"):
        Workload(np.zeros(1), np.array([1]), np.array([1]), think_time_s=1.0)
    with pytest.raises(ValueError, match=r"concurrency=0: must be"):
        work([1], [1], 0)
    with pytest.raises(ValueError, match=r"rate_rps=1.0: must not be given beside concurrency=1"):
        Workload(np.zeros(1), np.array([1]), np.array([1]), concurrency=1, rate_rps=1.0)
    with pytest.raises(ValueError, match=r"has no rate: concurrency=1 decides its arrivals"):
        loop.at_rate(2.0)
    with pytest.raises(ValueError, match=r"rate=2.0: has no effect under concurrency=1"):
        Scheduler(loop, step, policy="mixed", max_running=1, rate=2.0)
    with pytest.raises(ValueError, match=r"workload: has concurrency=1: must be a rate under PrefillOnly"):
        PrefillOnly(loop, step)
    with pytest.raises(ValueError, match=r"memory='reserve': must be another under concurrency=1"):
        Colocated(loop, step, n_instances=2)
    first = Workload(np.zeros(1), np.array([1]), np.array([1]), concurrency=1, priority=np.array([0]))
    with pytest.raises(ValueError, match=r"order='priority': must be another under policy 'vllm'"):
        Scheduler(first, step, policy="vllm", max_running=1, token_budget=8, order="priority")
    with pytest.raises(ValueError, match=r"async_scheduling=True: must be False under concurrency=1"):
        Scheduler(loop, step, policy="vllm", max_running=1, token_budget=8, async_scheduling=True)
