"""The reference scheduler is right: every golden case, the worked examples, and what holds on any run."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from invariants import check_run, check_simulation
from reference_runs import simulate
from servesweep.serving.reference import ReferenceScheduler, RequestState, blocks_of
from servesweep.serving.reference_steps import StepTimes
from strategies import EXAMPLES, PAGED, LaneCase, StepCase, Traffic, golden, lane_cases, step_cases

PARTS = (
    "reference",
    "reference_queue",
    "reference_vllm",
    "reference_cache",
    "reference_instances",
    "reference_systems",
    "reference_steps",
)


@pytest.mark.parametrize("part", PARTS)
def test_it_imports_nothing_of_the_package_but_its_own_parts_and_no_numpy(part: str) -> None:
    tree = ast.parse(Path(import_module(f"servesweep.serving.{part}").__file__ or "").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1
            assert node.module in PARTS
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(("limits", "requests", "times", "preemptions"), EXAMPLES)
def test_examples(limits: Any, requests: Any, times: Any, preemptions: Any) -> None:
    result, _ = simulate(requests, **limits)
    assert {rid: (r["first_token"], r["finish"]) for rid, r in result.items()} == times
    assert {rid: r["preemptions"] for rid, r in result.items() if r["preemptions"]} == preemptions


def test_golden_steps() -> None:
    for case in golden("paged/steps"):
        requests = [tuple(request) for request in case.pop("requests")]
        expected, expected_log = case.pop("result"), [tuple(row) for row in case.pop("log")]
        result, log = simulate(requests, **case)
        assert (result, log) == (expected, expected_log)
        check_simulation(requests, case, result, log)


@pytest.mark.parametrize("name", PAGED)
def test_golden_paged(name: str) -> None:
    case = golden(f"paged/{name}")
    inputs, expected = case["inputs"], case["outputs"]
    traffic = Traffic(inputs["arrival_s"], inputs["prompt_tokens"], inputs["output_tokens"])
    lane = LaneCase(traffic, 1.0, inputs["step"], {"policy": inputs["policy"], **inputs["options"]})
    run, log = lane.reference()
    for measure in ("preemptions", "rejected", "steps", "prefill_tokens", "recomputed_tokens", "peak_blocks"):
        assert getattr(run, measure) == expected[measure], measure
    for measure in ("first_token_s", "finish_s"):
        assert getattr(run, measure) == pytest.approx(
            [float("nan") if t is None else t for t in expected[measure]], rel=1e-9, abs=0, nan_ok=True
        )
    check_run(run, lane.limits(), log)


@pytest.mark.parametrize("row", golden("serving/step-times")["rows"])
def test_golden_step_times(row: dict[str, Any]) -> None:
    step = StepTimes(row["step"])
    pairs = row["chunk_attention_flops"] / step.attn
    assert step.prefill(row["prompts"]) == pytest.approx(row["prefill_time_s"], rel=1e-9)
    assert step.decode(row["batch"], row["context_tokens"]) == pytest.approx(row["decode_time_s"], rel=1e-9)
    mixed = step.mixed(row["batch"], row["context_tokens"], row["chunk_tokens"], pairs)
    assert mixed == pytest.approx(row["mixed_time_s"], rel=1e-9)
    assert step.kv_capacity == row["kv_capacity_tokens"]
    assert step.n_params == row["n_params"]
    assert step.weights == row["weight_bytes"]


@given(step_cases())
def test_what_holds_on_whole_steps(case: StepCase) -> None:
    check_simulation(case.requests, case.limits, *simulate(case.requests, **case.limits))


@given(lane_cases())
def test_what_holds_in_seconds(case: LaneCase) -> None:
    run, log = case.reference()
    check_run(run, case.limits(), log)


@given(step_cases())
def test_state_at_every_boundary(case: StepCase) -> None:
    requests = [RequestState(*request) for request in case.requests]
    for state in ReferenceScheduler(requests, lambda *_: 1, "mixed", **case.limits).boundaries():
        check_state(state)
        unfinished = [request for request in requests if request.status != "finished" and request.arrival <= state.time]
        # the running are a prefix of the unfinished that have arrived, so one pointer could be the queue
        assert [*state.running, *state.waiting] == sorted(
            unfinished, key=lambda request: (request.arrival, request.key)
        )


def check_state(state: ReferenceScheduler) -> None:
    assert sum(request.blocks for request in state.running) + state.free == state.num_blocks
    assert state.free >= 0
    assert len(state.running) <= state.max_running
    for request in state.waiting:
        assert (request.status, request.blocks, request.done) == ("waiting", 0, 0)
    for request in state.running:
        assert request.emitted < request.output
        if request.status == "prefill":
            assert request.done < request.prompt + request.emitted
            assert request.blocks == blocks_of(request.prompt + request.emitted, state.block_size)
        else:
            assert request.status == "decode"
            assert request.blocks == blocks_of(request.prompt + request.emitted - 1, state.block_size), (
                "grown for the next token only when asked"
            )
    # prompts are filled in order of admission, so those that decode are a prefix of the running
    statuses = [request.status for request in state.running]
    assert statuses == sorted(statuses)
