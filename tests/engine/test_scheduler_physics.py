"""What queueing theory and the roofline say about a run, whatever the code says."""

from typing import Any

import pytest
from invariants import check_run
from parity import step_model, workload
from servesweep import ConstantStepTime, make_workload, run_scheduler
from servesweep.serving.reference_steps import StepTimes
from servesweep.serving.scheduler import Scheduler, run_schedulers
from strategies import POLICIES, Traffic, golden

LLAMA: dict[str, Any] = golden("serving/step-times")["rows"][0]["step"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_request_on_an_idle_system(policy: str) -> None:
    """TTFT is the prefill; then one decode step a token, each over one token of context more."""
    prompt, output, arrival = 3_000, 400, 2.25
    options: dict[str, Any] = {
        "policy": policy,
        "max_running": 8,
        **({"token_budget": 4_096} if policy in ("chunked", "vllm") else {}),
    }
    result = run_scheduler(workload(Traffic([arrival], [prompt], [output])), step_model(LLAMA), **options)
    step = StepTimes(LLAMA)
    decodes = sum(step.decode(1, prompt + emitted) for emitted in range(1, output))
    assert result.admitted_s[0] == arrival
    assert result.ttft_s[0] == pytest.approx(step.prefill([prompt]), rel=1e-9)
    assert result.e2e_s[0] == pytest.approx(step.prefill([prompt]) + decodes, rel=1e-9)
    assert result.tpot_s[0] == pytest.approx(decodes / (output - 1), rel=1e-9)
    assert (result.steps, result.prefill_tokens, result.running_steps) == (output, prompt, output)


@pytest.mark.parametrize("budget", [1, 7, 512, 2_999, 3_000])
def test_pieces_of_a_prompt(budget: int) -> None:
    """A prompt in pieces reads the weights once a piece and attends to just as many tokens as in one."""
    prompt = 3_000
    options: dict[str, Any] = {"policy": "chunked", "max_running": 1, "token_budget": budget}
    result = run_scheduler(workload(Traffic([0.0], [prompt], [1])), step_model(LLAMA), **options)
    step, done, seconds = StepTimes(LLAMA), 0, 0.0
    while done < prompt:
        piece = min(budget, prompt - done)
        seconds += step.mixed(0, 0, piece, piece * done + piece * (piece + 1) // 2)
        done += piece
    assert result.finish_s[0] == pytest.approx(seconds, rel=1e-9)
    assert result.steps == -(-prompt // budget)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [None, 600], ids=["unlimited", "tight"])
def test_no_step_beats_the_memory_bandwidth(policy: str, blocks: int | None) -> None:
    """Each step reads every weight once, so each token but the first costs at least that."""
    requests = make_workload(300, 20.0, 400, 150, seed=3, arrivals="bursty", cv=3.0)
    memory: dict[str, Any] = {} if blocks is None else {"block_size": 16, "num_blocks": blocks}
    budget: dict[str, Any] = {"token_budget": 512} if policy in ("chunked", "vllm") else {}
    lane = Scheduler(requests, step_model(LLAMA), policy=policy, max_running=64, **memory, **budget)
    results = run_schedulers([lane], step_log=[0])
    result, log = results.result(0), results.step_logs[0]
    step = StepTimes(LLAMA)
    floor = step.weights / step.bandwidth + step.overhead
    durations = log["end_s"] - log["start_s"]
    assert durations.min() >= floor * (1 - 1e-9)
    assert durations.min() < 1.5 * floor, "a small batch of decodes comes close"
    assert result.tpot_s.min() >= floor * (1 - 1e-9)
    check_run(result, {"policy": policy, "max_running": 64, **memory, **budget}, log)  # Little's law among others


def test_steps_do_not_overlap_and_work_is_conserved_in_overload() -> None:
    """Far beyond capacity the instance never idles: busy from the first arrival to the last finish."""
    requests = make_workload(200, 1_000.0, 400, 50, seed=1)
    result = run_scheduler(requests, step_model(LLAMA), policy="mixed", max_running=16)
    span = result.finish_s.max() - result.arrival_s.min()
    assert result.busy_s == pytest.approx(span, rel=1e-9)
    assert result.prefill_tokens == 200 * 400


def test_md1_waiting_time() -> None:
    """One-token requests served one at a time are an M/D/1 queue: mean wait = rho s / (2 (1 - rho))."""
    service, rho, n = 0.01, 0.7, 10_000
    requests = make_workload(n, rho / service, 10, 1, seed=11)
    result = run_scheduler(requests, ConstantStepTime(service), policy="mixed", max_running=1)
    wait = (result.admitted_s - result.arrival_s).mean()
    assert wait == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.08)
    assert result.busy_s == pytest.approx(n * service, rel=1e-9)
