"""The paged scheduler in seconds, one run or many lanes: golden cases, the reference, batch independence."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import assert_identical, check_against_reference, lanes_of, run, workload
from reference_runs import simulate as simulate_reference
from servesweep import ConstantStepTime, Request, run_scheduler, simulate
from servesweep.serving.scheduler import run_schedulers
from strategies import PAGED, POLICIES, LaneCase, StepCase, Traffic, batches, golden, lane_cases, step_cases

# Golden cases


@pytest.mark.parametrize("name", PAGED)
def test_golden(name: str) -> None:
    inputs, outputs = golden(f"paged/{name}")["inputs"], golden(f"paged/{name}")["outputs"]
    traffic = Traffic(inputs["arrival_s"], inputs["prompt_tokens"], inputs["output_tokens"])
    case = LaneCase(traffic, 1.0, inputs["step"], {"policy": inputs["policy"], **inputs["options"]})
    result = run(case)
    for measure in ("preemptions", "rejected", "steps", "prefill_tokens", "recomputed_tokens", "peak_blocks"):
        np.testing.assert_array_equal(getattr(result, measure), outputs[measure], err_msg=measure)
    for measure in ("first_token_s", "finish_s"):
        expected = np.array(outputs[measure], dtype=float)  # null becomes NaN
        np.testing.assert_allclose(getattr(result, measure), expected, rtol=1e-9, err_msg=measure)
    check_against_reference(result, case)


# Against the reference


@pytest.mark.parametrize("paged", [False, True], ids=["unlimited", "paged"])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_and_memory_against_reference(policy: str, paged: bool) -> None:
    @given(lane_cases(policy=policy, paged=paged))
    def check(case: LaneCase) -> None:
        check_against_reference(run(case), case)

    check()


@given(batches())
def test_batches_and_logs_against_reference(cases: list[LaneCase]) -> None:
    results = run_schedulers(lanes_of(cases), step_log=range(len(cases)))
    assert set(results.step_logs) == set(range(len(cases)))
    for i, case in enumerate(cases):
        check_against_reference(results.result(i), case, results.step_logs[i])


def crowd(rng: Random, n_traffics: int, lanes_each: int) -> list[LaneCase]:
    """Chat-like lanes on one llama-3.1-8b, at every load from idle to hopeless, in memories small and large."""
    step = golden("serving/step-times")["rows"][0]["step"]
    cases = []
    for _ in range(n_traffics):
        n = rng.choice([30, 60, 61])
        gaps = [rng.expovariate(1.0) for _ in range(n)]
        lengths = [[max(1, int(rng.lognormvariate(mu, 0.9))) for _ in range(n)] for mu in (5.0, 4.0)]
        traffic = Traffic(np.cumsum(gaps).tolist(), *lengths)
        longest = max(map(sum, zip(*lengths, strict=True)))
        for _ in range(lanes_each):
            policy = rng.choice(POLICIES)
            options: dict[str, Any] = {"policy": policy, "max_running": rng.choice([1, 4, 16, 64])}
            if rng.random() < 0.8:
                options["block_size"] = rng.choice([1, 3, 16, 64])
                options["num_blocks"] = int(longest * rng.choice([0.7, 1.1, 2, 8])) // options["block_size"] + 1
            if policy in ("chunked", "vllm"):
                options["token_budget"] = options["max_running"] + rng.choice([0, 1, 30, 500])
            elif policy == "prefill_first":
                options["max_tokens"] = rng.choice([1, 500, 4096])
            cases.append(LaneCase(traffic, rng.choice([0.5, 5.0, 20.0, 100.0]), step, options))
    return cases


@pytest.mark.parametrize("seed", range(3))
def test_large_batch_against_reference(seed: int) -> None:
    cases = crowd(Random(seed), n_traffics=8, lanes_each=30)
    logged = range(0, len(cases), 7)
    results = run_schedulers(lanes_of(cases), step_log=logged)
    assert list(results.n_requests) == [len(case.traffic.arrival_s) for case in cases]
    assert results.preemptions.sum() > 300, "the memories are meant to be small"
    assert results.rejected.any()
    for i, case in enumerate(cases):
        check_against_reference(results.result(i), case, results.step_logs.get(i))


@given(step_cases())
def test_unit_steps_give_section_one_exactly(case: StepCase) -> None:
    """A token stamped s + 1 is one of step s. Positions stand in for rids: the list is put in rid order first."""
    requests = sorted(case.requests)
    _, arrivals, prompts, outputs = (list(column) for column in zip(*requests, strict=True))
    traffic = Traffic(arrivals, prompts, outputs)
    policy = "chunked" if "token_budget" in case.limits else "mixed"
    result = run_scheduler(workload(traffic), ConstantStepTime(1.0), policy=policy, **case.limits)
    steps = simulate([Request(*request) for request in case.requests], **case.limits)
    assert steps == simulate_reference(case.requests, **case.limits)[0]
    for i, (rid, *_) in enumerate(requests):
        assert result.first_token_s[i] == steps[rid]["first_token"] + 1
        assert result.finish_s[i] == steps[rid]["finish"] + 1
        assert result.preemptions[i] == steps[rid]["preemptions"]


# Batch independence


@settings(max_examples=50)
@given(batches(), st.randoms(use_true_random=False))
def test_together_alone_and_in_any_order(cases: list[LaneCase], rng: Random) -> None:
    lanes = lanes_of(cases)
    together = run_schedulers(lanes)
    for i, lane in enumerate(lanes):
        assert_identical(together, i, run_schedulers([lane]), 0)
    order = rng.sample(range(len(lanes)), len(lanes))
    shuffled = run_schedulers([lanes[i] for i in order], step_log=order[:1])
    for j, i in enumerate(order):
        assert_identical(together, i, shuffled, j)


def test_large_batch_is_its_lanes() -> None:
    lanes = lanes_of(crowd(Random(7), n_traffics=5, lanes_each=40))
    together = run_schedulers(lanes)
    backwards = run_schedulers(lanes[::-1])
    for i in range(len(lanes)):
        assert_identical(together, i, backwards, len(lanes) - 1 - i)
    for i in range(0, len(lanes), 13):
        assert_identical(together, i, run_schedulers([lanes[i]]), 0)


def test_padding_and_shapes() -> None:
    short, long = Traffic([0.0], [5], [2]), Traffic([0.0, 1.0, 1.5], [5, 1, 1], [2, 1, 3])
    options = {"policy": "mixed", "max_running": 2}
    cases = [LaneCase(traffic, 1.0, {"seconds": 0.3}, options) for traffic in (short, long)]
    results = run_schedulers(lanes_of(cases))
    assert results.arrival_s.shape == (2, 3)
    assert np.isnan(results.finish_s[0, 1:]).all()
    assert not results.rejected[0].any()
    assert list(results.prompt_tokens[0]) == [5, 0, 0]
    assert list(results.output_tokens[0]) == [2, 0, 0]
    assert len(results.result(0)) == 1
    assert len(results.result(1)) == 3
    assert results.num_blocks.shape == (2,)


def test_no_lanes() -> None:
    results = run_schedulers([])
    assert len(results.n_requests) == 0
