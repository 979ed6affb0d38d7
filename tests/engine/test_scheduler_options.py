"""`run_scheduler` as its users see it: order and types of results, empty workloads, rejections, refused options."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from parity import COUNTERS, check_against_reference, lanes_of, run, step_model, workload
from servesweep import ConstantStepTime, run_scheduler
from servesweep.serving.scheduler import Scheduler, run_schedulers
from strategies import POLICIES, LaneCase, Traffic, golden, lane_cases


@given(lane_cases())
def test_workload_is_untouched_and_results_are_in_its_order(case: LaneCase) -> None:
    traffic = workload(case.traffic, case.rate)
    before = traffic.arrival_s.copy(), traffic.prompt_tokens.copy(), traffic.output_tokens.copy()
    result = run_scheduler(traffic, step_model(case.step), **case.options)
    after = traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens
    for old, new, got in zip(
        before, after, (result.arrival_s, result.prompt_tokens, result.output_tokens), strict=True
    ):
        np.testing.assert_array_equal(old, new)
        np.testing.assert_array_equal(old, got)
    assert all(type(getattr(result, name)) is int for name in COUNTERS)


@pytest.mark.parametrize("policy", POLICIES)
def test_empty_workload(policy: str) -> None:
    options: dict[str, Any] = {
        "policy": policy,
        "max_running": 4,
        **({"token_budget": 8} if policy in ("chunked", "vllm") else {}),
    }
    for memory in ({}, {"block_size": 16, "num_blocks": 3}):
        case = LaneCase(Traffic([], [], []), 1.0, {"seconds": 0.5}, {**options, **memory})
        result = run(case)
        assert len(result) == 0
        assert len(result.finish_s) == 0
        assert [getattr(result, name) for name in COUNTERS] == [0, 0, 0, 0]


def test_empty_workload_among_others() -> None:
    options: dict[str, Any] = {"policy": "mixed", "max_running": 2}
    cases = [LaneCase(Traffic([], [], []), 1.0, {"seconds": 0.3}, options)]
    cases += [LaneCase(Traffic([0.0, 0.1], [5, 2], [2, 3]), 1.0, {"seconds": 0.3}, options)]
    results = run_schedulers(lanes_of(cases))
    assert len(results.result(0)) == 0
    check_against_reference(results.result(1), cases[1])


def test_memory_may_be_named() -> None:
    case = LaneCase(Traffic([0.0, 0.1], [5, 2], [2, 3]), 1.0, {"seconds": 0.3}, {"policy": "mixed", "max_running": 2})
    check_against_reference(run(case, memory="unlimited"), case)
    case.options.update(block_size=4, num_blocks=3)
    check_against_reference(run(case, memory="paged"), case)


def test_rejections() -> None:
    """3 blocks of 4 hold 12 tokens: 11 + 2 - 1 fit, 11 + 3 - 1 don't."""
    traffic = Traffic([0.0, 1.0, 1.0, 9.0], [11, 11, 30, 1], [2, 3, 1, 1])
    options = {"policy": "mixed", "max_running": 4, "block_size": 4, "num_blocks": 3}
    case = LaneCase(traffic, 1.0, {"seconds": 0.5}, options)
    result = run(case)
    assert list(result.rejected) == [False, True, True, False]
    check_against_reference(result, case)
    np.testing.assert_array_equal(run(case, on_reject="reject").finish_s, result.finish_s)
    with pytest.raises(ValueError, match="1") as caught:  # the first of them, by position
        run(case, on_reject="error")
    assert "num_blocks" in str(caught.value)
    case.options["num_blocks"] = 8
    check_against_reference(run(case, on_reject="error"), case)


def test_all_rejected() -> None:
    traffic = Traffic([0.0, 1.0], [11, 12], [2, 3])
    case = LaneCase(
        traffic, 1.0, {"seconds": 0.5}, {"policy": "mixed", "max_running": 4, "block_size": 4, "num_blocks": 1}
    )
    result = run(case)
    assert result.rejected.all()
    check_against_reference(result, case)


ONE = workload(Traffic([0.0], [4], [2]))
MIXED: dict[str, Any] = {"policy": "mixed", "max_running": 4}
CHUNKED: dict[str, Any] = {"policy": "chunked", "max_running": 4, "token_budget": 8}
FIRST: dict[str, Any] = {"policy": "prefill_first", "max_running": 4}
PAGES: dict[str, Any] = {"block_size": 16, "num_blocks": 10}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        # an option that the policy does not use
        ({**MIXED, "token_budget": 8}, ["token_budget", "mixed"]),
        ({**FIRST, "token_budget": 8}, ["token_budget", "prefill_first"]),
        ({**MIXED, "max_tokens": 100}, ["max_tokens", "mixed"]),
        ({**CHUNKED, "max_tokens": 100}, ["max_tokens", "chunked"]),
        # an option that the memory does not use
        ({**MIXED, "num_blocks": 10}, ["num_blocks"]),
        ({**MIXED, **PAGES, "memory": "unlimited"}, ["block_size", "unlimited"]),
        ({**MIXED, "num_blocks": 10, "memory": "unlimited"}, ["num_blocks", "unlimited"]),
        # an option that is missing
        ({**MIXED, "memory": "paged"}, ["block_size"]),
        ({**MIXED, "num_blocks": 10, "memory": "paged"}, ["block_size"]),
        ({"policy": "chunked", "max_running": 4}, ["token_budget"]),
        # names
        ({**MIXED, "policy": "fifo"}, ["fifo", "mixed", "chunked", "prefill_first"]),
        ({**MIXED, "memory": "swap"}, ["swap", "paged", "unlimited"]),
        ({**MIXED, **PAGES, "on_reject": "ignore"}, ["on_reject", "ignore", "reject", "error"]),
        # numbers
        ({**MIXED, "max_running": 0}, ["max_running", "0"]),
        ({**MIXED, **PAGES, "block_size": 0}, ["block_size", "0"]),
        ({**MIXED, **PAGES, "num_blocks": -1}, ["num_blocks", "-1"]),
        ({**MIXED, **PAGES, "num_blocks": 0}, ["num_blocks", "0"]),
        ({**CHUNKED, "token_budget": 3}, ["token_budget", "3", "max_running"]),
        ({**FIRST, "max_tokens": 0}, ["max_tokens", "0"]),
        # a constant step time has no memory to derive num_blocks from
        ({**MIXED, "block_size": 16}, ["num_blocks"]),
    ],
)
def test_refused_options(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ValueError, match=named[0]) as caught:
        run_scheduler(ONE, ConstantStepTime(1.0), **options)
    for name in named:
        assert name in str(caught.value)


@pytest.mark.parametrize("value", [True, 2.5, float("nan"), "4"], ids=repr)
@pytest.mark.parametrize("name", ["max_running", "block_size", "num_blocks", "token_budget", "max_tokens"])
def test_refused_types(name: str, value: Any) -> None:
    options = {"token_budget": CHUNKED, "max_tokens": FIRST}.get(name, {**MIXED, **PAGES})
    with pytest.raises((TypeError, ValueError), match=name):
        run_scheduler(ONE, ConstantStepTime(1.0), **{**options, name: value})


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_refused_rates(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        run_schedulers([Scheduler(ONE, ConstantStepTime(1.0), policy="mixed", max_running=4, rate=rate)])


def test_weights_that_do_not_fit_leave_no_blocks() -> None:
    rows = golden("serving/step-times")["rows"]
    too_large = next(row["step"] for row in rows if row["kv_capacity_tokens"] == 0)
    with pytest.raises(ValueError, match=r"num_blocks|fit"):
        run_scheduler(ONE, step_model(too_large), **MIXED, block_size=16)


def test_one_bad_lane_stops_the_batch_before_it_runs() -> None:
    good = Scheduler(ONE, ConstantStepTime(1.0), policy="mixed", max_running=4)
    with pytest.raises(ValueError, match="max_running"):
        run_schedulers([good, Scheduler(ONE, ConstantStepTime(1.0), policy="mixed", max_running=0)])
