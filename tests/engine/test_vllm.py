"""Policy `vllm` in the engine: recorded decisions of vLLM, the reference, and what it has in common with others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import assert_identical, check_against_reference, lanes_of, run, workload
from servesweep import ConstantStepTime, Workload, run_scheduler
from servesweep.serving.scheduler import Scheduler, run_schedulers
from strategies import LaneCase, lane_cases, traffic
from vllm_decisions import tokens_of

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm"
OPTIONS = (
    "reserve_full_isl",
    "watermark",
    "enable_chunked_prefill",
    "max_model_len",
    "long_prefill_token_threshold",
    "enable_prefix_caching",
)
CASES = [
    case
    for name in ("fcfs", "options", "more", "prefix-caching")
    for case in json.loads((GOLDEN / f"{name}.json").read_text())
]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_recorded_decisions(case: dict[str, Any]) -> None:
    """What a log of the engine shows of each step, and the outcome of each request."""
    inputs, outputs = case["inputs"], case["outputs"]
    requests = inputs["requests"]
    prompts = [r["prompt"] if isinstance(r["prompt"], int) else [(*pair,) for pair in r["prompt"]] for r in requests]
    scheduler = Scheduler(
        Workload(
            np.array([r["arrival"] for r in requests]),
            np.array([tokens_of(prompt) for prompt in prompts]),
            np.array([r["output"] for r in requests]),
            priority=np.array([r.get("priority", 0) for r in requests]),
            prompts=prompts,
        ),
        ConstantStepTime(1.0),
        policy="vllm",
        max_running=inputs["max_num_seqs"],
        token_budget=inputs["max_num_batched_tokens"],
        block_size=inputs["block_size"],
        num_blocks=inputs["num_blocks"],
        order="priority" if inputs.get("policy") == "priority" else "arrival",
        **{name: inputs[name] for name in OPTIONS if name in inputs},
    )
    results = run_schedulers([scheduler], step_log=[0])
    result, log = results.result(0), results.step_logs[0]
    steps = outputs["steps"]
    np.testing.assert_array_equal(result.first_token_s - 1, outputs["first_token"])
    np.testing.assert_array_equal(result.finish_s - 1, outputs["finish"])
    np.testing.assert_array_equal(result.preemptions, outputs["preemptions"])
    np.testing.assert_array_equal(result.cached_tokens, outputs["cached_tokens"])
    np.testing.assert_array_equal(log["start_s"], [step["step"] for step in steps])
    np.testing.assert_array_equal(log["tokens"], [sum(n for _, n in step["tokens"]) for step in steps])
    np.testing.assert_array_equal(inputs["num_blocks"] - log["blocks_used"], [step["free_run"] for step in steps])


@st.composite
def batches(draw: st.DrawFn) -> list[LaneCase]:
    """Half of the lanes are of this policy."""
    policies = st.sampled_from(["vllm", "vllm", "vllm", "mixed", "chunked", "prefill_first"])
    orders = st.sampled_from([None, "arrival", "shortest_prompt", "priority"])
    return [draw(lane_cases(policy=draw(policies), order=draw(orders))) for _ in range(draw(st.integers(1, 4)))]


@given(batches())
def test_beside_other_policies(cases: list[LaneCase]) -> None:
    """As the reference, and each lane as it is alone, to the last bit."""
    results = run_schedulers(lanes_of(cases), step_log=range(0, len(cases), 2))
    without_log = run_schedulers(lanes_of(cases))
    for i, case in enumerate(cases):
        check_against_reference(results.result(i), case, results.step_logs.get(i))
        assert_identical(run_schedulers(lanes_of([case])), 0, without_log, i)


def outcome(case: LaneCase, **options: Any) -> list[Any]:
    result = run(LaneCase(case.traffic, case.rate, case.step, {**case.options, **options}))
    return [result.first_token_s, result.finish_s, result.preemptions]


@given(lane_cases(policy="mixed", paged=True))
def test_without_a_budget_it_is_mixed(case: LaneCase) -> None:
    expected = outcome(case)
    for got, want in zip(outcome(case, policy="vllm", token_budget=10**9), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


@given(traffic(), st.integers(1, 8), st.integers(0, 20))
def test_with_plentiful_memory_it_is_chunked(requests: Any, max_running: int, more: int) -> None:
    common = {"max_running": max_running, "token_budget": max_running + more, "block_size": 4, "num_blocks": 10**6}
    served = workload(requests)
    a, b = (
        run_schedulers([Scheduler(served, ConstantStepTime(0.7), policy=policy, **common)]).result(0)
        for policy in ("vllm", "chunked")
    )
    np.testing.assert_allclose(a.first_token_s, b.first_token_s, rtol=1e-12)
    np.testing.assert_allclose(a.finish_s, b.finish_s, rtol=1e-12)


def test_names_of_vllm() -> None:
    served = Workload(np.array([0.0, 0, 1]), np.array([5, 9, 2]), np.array([4, 3, 6]))
    ours = run_scheduler(
        served, ConstantStepTime(1.0), policy="vllm", max_running=2, token_budget=4, block_size=2, num_blocks=7
    )
    common: dict[str, Any] = {"policy": "vllm", "block_size": 2, "num_gpu_blocks": 8, "max_num_batched_tokens": 4}
    theirs = run_scheduler(served, ConstantStepTime(1.0), max_num_seqs=2, **common)
    np.testing.assert_array_equal(ours.finish_s, theirs.finish_s)
    with pytest.raises(ValueError, match="max_num_seqs=2: must not be given beside max_running=2"):
        run_scheduler(served, ConstantStepTime(1.0), max_num_seqs=2, max_running=2, **common)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1: must be an integer of at least 0"),
        ({"enable_chunked_prefill": None}, "enable_chunked_prefill=None: must be True or False"),
        ({"watermark": 1.5}, "watermark=1.5: must be a finite number of at least 0 and at most 1"),
        ({"max_model_len": 1}, "max_model_len=1: must be an integer of at least 2"),
        ({"policy": "chunked", "watermark": 0.1}, "watermark=0.1: has no effect under policy 'chunked'"),
        ({"policy": "mixed", "token_budget": None, "async_scheduling": True}, "async_scheduling=True: has no effect"),
        ({"block_size": None, "num_blocks": None, "watermark": 0.1}, "watermark=0.1: has no effect under unlimited"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    served = Workload(np.zeros(2), np.ones(2, int), np.ones(2, int))
    given = {"policy": "vllm", "max_running": 2, "token_budget": 4, "block_size": 2, "num_blocks": 7} | options
    with pytest.raises(ValueError, match=message):
        Scheduler(served, ConstantStepTime(1.0), **given)
