"""What queueing theory, the roofline and a pencil say about serving systems. Reference and package both comply."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from invariants_systems import check_system
from parity_systems import SystemCase, reference_result, systems_of
from servesweep import Result, run_systems
from servesweep.serving.reference_steps import StepTimes
from strategies import Traffic, golden
from strategies_systems import holding

LLAMA: dict[str, Any] = golden("serving/step-times")["rows"][0]["step"]
STEP = StepTimes(LLAMA)
Solve = Callable[..., Any]


def reference_results(cases: Sequence[SystemCase]) -> list[Result]:
    return [reference_result(case) for case in cases]


def package_results(cases: Sequence[SystemCase]) -> list[Result]:
    results = run_systems(systems_of(cases))
    return [results.result(i) for i in range(len(cases))]


@pytest.fixture(params=[reference_results, package_results], ids=["reference", "package"])
def solve(request: pytest.FixtureRequest) -> Solve:
    """The result of one case, or those of several."""

    def checked(*cases: SystemCase) -> Any:
        results = request.param(cases)
        for case, result in zip(cases, results, strict=True):
            check_system(result, case)
        return results[0] if len(cases) == 1 else results

    return checked


def poisson(n: int, rate: float, prompt: int, output: int, seed: int) -> Traffic:
    rng, clock, arrivals = Random(seed), 0.0, []
    for _ in range(n):
        clock += rng.expovariate(rate)
        arrivals.append(clock)
    return Traffic(arrivals, [prompt] * n, [output] * n)


def at_once(n: int, prompt: int, output: int) -> Traffic:
    return Traffic([0.0] * n, [prompt] * n, [output] * n)


def decodes(prompt: int, output: int) -> float:
    """A request that decodes alone, each step over one token of context more."""
    return sum(STEP.decode(1, prompt + emitted) for emitted in range(1, output))


# One request on an idle system


PROMPT, OUTPUT = 3_000, 400


def alone(system: str, **options: Any) -> SystemCase:
    names = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
    return SystemCase(system, Traffic([2.25], [PROMPT], [OUTPUT]), 1.0, dict.fromkeys(names, LLAMA), options)


@pytest.mark.parametrize("instances", [1, 3])
def test_a_single_request_colocated(solve: Solve, instances: int) -> None:
    result = solve(alone("colocated", n_instances=instances))
    assert result.ttft_s[0] == pytest.approx(STEP.prefill([PROMPT]), rel=1e-12)
    assert result.tpot_s[0] == pytest.approx(decodes(PROMPT, OUTPUT) / (OUTPUT - 1), rel=1e-12)


@pytest.mark.parametrize("budget", [7, 512, 3_000])
def test_a_single_request_in_pieces(solve: Solve, budget: int) -> None:
    result = solve(alone("colocated", policy="chunked", chunk_budget=budget))
    pieces = 0.0
    for done in range(0, PROMPT, budget):
        piece = min(budget, PROMPT - done)
        pieces += STEP.mixed(0, 0, piece, piece * done + piece * (piece + 1) // 2)
    assert result.ttft_s[0] == pytest.approx(pieces, rel=1e-12)
    assert result.tpot_s[0] == pytest.approx(decodes(PROMPT, OUTPUT) / (OUTPUT - 1), rel=1e-12)


def test_a_single_request_disaggregated(solve: Solve) -> None:
    """Prefill, transfer, decode, one after the other: nothing is lost at the hand-over and nothing is free."""
    link = {"alpha_s": 0.125, "bandwidth_bytes_per_s": 1e9}
    result = solve(alone("disaggregated", n_prefill=2, n_decode=3, link=link))
    transfer = 0.125 + PROMPT * STEP.kv / 1e9
    assert transfer > 0.5
    assert result.ttft_s[0] == pytest.approx(STEP.prefill([PROMPT]), rel=1e-12)
    assert result.kv_ready_s[0] - result.first_token_s[0] == pytest.approx(transfer, rel=1e-9)
    whole = STEP.prefill([PROMPT]) + transfer + decodes(PROMPT, OUTPUT)
    assert result.e2e_s[0] == pytest.approx(whole, rel=1e-12)
    assert result.tpot_s[0] == pytest.approx((transfer + decodes(PROMPT, OUTPUT)) / (OUTPUT - 1), rel=1e-12)


def test_a_single_request_in_one_stage_alone(solve: Solve) -> None:
    prefilled, decoded = solve(alone("prefill_only")), solve(alone("decode_only"))
    assert prefilled.ttft_s[0] == pytest.approx(STEP.prefill([PROMPT]), rel=1e-12)
    assert np.isnan(prefilled.finish_s[0])
    assert decoded.ttft_s[0] == 0
    assert decoded.e2e_s[0] == pytest.approx(decodes(PROMPT, OUTPUT), rel=1e-12)


# Queues


def check_md1(waits: Sequence[Any], service: float, rho: float) -> None:
    """Pollaczek-Khinchine for deterministic service: the mean wait is rho s / (2 (1 - rho)).

    `waits` are of independent runs, so that the standard error of the mean is that of their means.
    """
    means = [float(np.mean(part[len(part) // 10 :])) for part in waits]  # the queue was empty at first
    expected = rho * service / (2 * (1 - rho))
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    assert abs(np.mean(means) - expected) < 3 * error, (means, error, expected)
    assert error < 0.05 * expected, "the interval says something"


@pytest.mark.parametrize("rho", [0.4, 0.8])
@pytest.mark.parametrize(("system", "pp"), [("prefill_only", 1), ("prefill_only", 4), ("colocated", 1)])
def test_md1_waiting_time(solve: Solve, system: str, pp: int, rho: float) -> None:
    """One-token outputs, one request a batch. A pipeline of pp stages takes the next batch after D / pp."""
    duration = STEP.prefill([500])
    service = duration / pp
    traffics = [poisson(1_000, rho / service, 500, 1, seed) for seed in range(40)]
    results = solve(*(SystemCase(system, t, 1.0, {"step": {**LLAMA, "pp": pp}}, {"max_tokens": 1}) for t in traffics))
    check_md1([result.ttft_s - duration for result in results], service, rho)
    for result in results:
        firsts = np.sort(result.first_token_s)
        assert np.diff(firsts).min() >= service * (1 - 1e-6), "no batch starts before the last one makes room"


def test_random_routing_gives_independent_queues(solve: Solve) -> None:
    """A Poisson stream split by draws is n Poisson streams."""
    rho, service = 0.6, STEP.prefill([500])
    traffics = [poisson(1_000, 3 * rho / service, 500, 1, seed) for seed in range(40)]
    options = {"max_tokens": 1, "n_instances": 3, "router": "random"}
    results = solve(
        *(
            SystemCase("prefill_only", t, 1.0, {"step": LLAMA}, {**options, "router_seed": seed})
            for seed, t in enumerate(traffics)
        )
    )
    check_md1([result.ttft_s - service for result in results], service, rho)


def test_routers_in_order_of_their_waits(solve: Solve) -> None:
    """Service that is always the same makes turns as good as one common queue, exactly; two choices beat one draw."""
    prompt, n, instances = 500, 4_000, 4
    service = STEP.prefill([prompt])
    traffic = poisson(n, instances * 0.9 / service, prompt, 1, seed=7)
    routers = ("round_robin", "random", "power_of_two", "least_outstanding")
    options = {"max_tokens": 1, "n_instances": instances}
    results = solve(
        *(SystemCase("prefill_only", traffic, 1.0, {"step": LLAMA}, {**options, "router": r}) for r in routers)
    )
    waits = {router: result.ttft_s - service for router, result in zip(routers, results, strict=True)}
    starts = [-math.inf] * instances
    for i, arrival in enumerate(traffic.arrival_s):
        starts.append(max(arrival, starts[i] + service))
        assert waits["round_robin"][i] == pytest.approx(starts[-1] - arrival, rel=1e-9, abs=1e-9)
    means = {router: float(wait.mean()) for router, wait in waits.items()}
    assert means["random"] > 1.5 * means["power_of_two"] > 1.5 * means["least_outstanding"]
    assert means["least_outstanding"] < 1.5 * means["round_robin"]


def test_littles_law(solve: Solve) -> None:
    """Requests inside, as a clock at Poisson times sees them, are arrival rate times time inside."""
    n, rate = 3_000, 18.0
    traffic = poisson(n, rate, 300, 100, seed=8)
    result = solve(SystemCase("colocated", traffic, 1.0, {"step": LLAMA}, {"policy": "chunked", "chunk_budget": 256}))
    begin, end = traffic.arrival_s[400], traffic.arrival_s[-400]
    rng = Random(9)
    clocks = [rng.uniform(begin, end) for _ in range(4_000)]
    arrived = np.searchsorted(np.sort(result.arrival_s), clocks)
    gone = np.searchsorted(np.sort(result.finish_s), clocks)
    inside = float((arrived - gone).mean())
    window = (result.arrival_s >= begin) & (result.arrival_s < end)
    measured_rate = window.sum() / (end - begin)
    assert inside == pytest.approx(measured_rate * result.e2e_s[window].mean(), rel=0.03)


# Capacity of an overloaded instance


@pytest.mark.parametrize("pp", [1, 4])
def test_capacity_of_a_prefill_instance(solve: Solve, pp: int) -> None:
    """Full batches of 8 prompts, one every D / pp. The first request, which woke the instance, went alone."""
    step = {**LLAMA, "pp": pp}
    result = solve(SystemCase("prefill_only", at_once(8 * 40 + 1, 512, 1), 1.0, {"step": step}, {"max_tokens": 4_100}))
    one, eight = STEP.prefill([512]), STEP.prefill([512] * 8)
    assert result.first_token_s[0] == pytest.approx(one, rel=1e-12)
    expected = one / pp + eight / pp * np.repeat(np.arange(40), 8) + eight
    np.testing.assert_allclose(result.first_token_s[1:], expected, rtol=1e-12)


@pytest.mark.parametrize("pp", [1, 2])
def test_capacity_of_a_decode_instance(solve: Solve, pp: int) -> None:
    """The memory holds K requests a lane, so K finish in the time of output - 1 steps at a batch of K.

    Memory-bound steps are affine in the context, whose mean over the life of a request is prompt + output / 2.
    """
    prompt, output, k = 1_000, 101, 12
    step = holding(pp * (k * (prompt + output) + 17), {**LLAMA, "pp": pp})
    n = pp * k * 20
    result = solve(SystemCase("decode_only", at_once(n, prompt, output), 1.0, {"step": step}, {}))
    cycle = (output - 1) * STEP.decode(k, k * (prompt + output // 2) + k // 2)
    assert STEP.linear * k / STEP.peak < STEP.weights / STEP.bandwidth, "memory-bound"
    finishes = np.sort(result.finish_s)
    steady = finishes[pp * k * 2 : -pp * k * 2]
    np.testing.assert_allclose(steady[pp * k :] - steady[: -pp * k], cycle, rtol=1e-9)


@pytest.mark.parametrize("batch", [1, 4])
def test_capacity_of_a_colocated_instance(solve: Solve, batch: int) -> None:
    """The memory holds one request. A batch is prefilled when the lane is empty, then its requests decode in turn."""
    prompt, output, n = 800, 60, 41
    step = holding(prompt + output + 100, LLAMA)
    case = SystemCase("colocated", at_once(n, prompt, output), 1.0, {"step": step}, {"max_tokens": batch * prompt})
    result = solve(case)
    turn = decodes(prompt, output)
    clock = STEP.prefill([prompt]) + turn  # the request that woke the instance
    assert result.finish_s[0] == pytest.approx(clock, rel=1e-12)
    for i in range(1, n, batch):
        clock += STEP.prefill([prompt] * batch)
        np.testing.assert_allclose(result.first_token_s[i : i + batch], clock, rtol=1e-12)
        expected = clock + turn * np.arange(1, batch + 1)
        np.testing.assert_allclose(result.finish_s[i : i + batch], expected, rtol=1e-12)
        clock += turn * batch


def test_capacity_under_chunks(solve: Solve) -> None:
    """Every step is full: a request costs prompt + output - 1 tokens of the budget. Steps are compute-bound."""
    prompt, output, budget, n = 700, 101, 512, 2_000
    options = {"policy": "chunked", "chunk_budget": budget}
    result = solve(SystemCase("colocated", at_once(n, prompt, output), 1.0, {"step": LLAMA}, options))
    per_step = budget / (prompt + output - 1)
    decoding = per_step * (output - 1)  # Little's law, in steps
    attended = decoding * (prompt + output / 2) + per_step * prompt * (prompt + 1) / 2
    duration = (budget * STEP.linear + STEP.attn * attended) / STEP.peak + STEP.overhead
    finishes = np.sort(result.finish_s)
    rate = (n // 2) / (finishes[n // 4 + n // 2] - finishes[n // 4])
    assert rate == pytest.approx(per_step / duration, rel=0.002)


# Memory, transfers, hand-over


def test_reserved_memory_is_never_exceeded(solve: Solve) -> None:
    """From admission to finish a request holds prompt + output tokens; only one alone may hold more than there is."""
    rng, n, capacity = Random(10), 400, 3_000
    lengths = [(rng.randint(1, 1_500), rng.randint(2, 300)) for _ in range(n - 1)] + [(5_000, 50)]
    rng.shuffle(lengths)
    prompts, outputs = (list(column) for column in zip(*lengths, strict=True))
    traffic = Traffic(poisson(n, 5.0, 1, 1, seed=11).arrival_s, prompts, outputs)
    result = solve(SystemCase("decode_only", traffic, 1.0, {"step": holding(capacity, LLAMA)}, {}))
    events = []
    for i in range(n):
        size = prompts[i] + outputs[i]
        events += [(result.admitted_s[i], 1, size), (result.finish_s[i], 0, -size)]  # at one time they leave first
    held = running = most = 0
    for _, joins, size in sorted(events):
        held += size
        running += 1 if joins else -1
        assert held <= capacity or running == 1
        most = max(most, held if running > 1 else 0)
    assert most > 0.95 * capacity, "the memory was the limit"


def test_transfers_take_time_and_hold_nobody_up(solve: Solve) -> None:
    """A link a thousand times slower changes no first token, and each KV arrives a thousand times later."""
    traffic = poisson(300, 20.0, 900, 40, seed=12)
    links = [{"alpha_s": 1e-5 * scale, "bandwidth_bytes_per_s": 25e9 / scale} for scale in (1, 1_000)]
    steps = {"prefill_step": LLAMA, "decode_step": LLAMA}
    fast, slow = solve(*(SystemCase("disaggregated", traffic, 1.0, steps, {"link": link}) for link in links))
    np.testing.assert_array_equal(fast.first_token_s, slow.first_token_s)
    transfer = 1e-5 + 900 * STEP.kv / 25e9
    np.testing.assert_allclose(fast.kv_ready_s - fast.first_token_s, transfer, rtol=1e-6)
    np.testing.assert_allclose(slow.kv_ready_s - slow.first_token_s, 1_000 * transfer, rtol=1e-9)
    assert (slow.finish_s - slow.first_token_s).min() > 1_000 * transfer


def test_a_system_of_stages_is_its_stages(solve: Solve) -> None:
    """Prefill does not depend on decode, and decode sees the arrivals of KV: run apart they give the same times."""
    rng = Random(13)
    n = 400
    lengths = ([rng.randint(1, 2_000) for _ in range(n)], [rng.randint(2, 200) for _ in range(n)])
    traffic = Traffic(poisson(n, 25.0, 1, 1, seed=14).arrival_s, *lengths)
    steps = {"prefill_step": {**LLAMA, "pp": 2}, "decode_step": {**LLAMA, "tp": 2, "pp": 2}}
    whole = solve(SystemCase("disaggregated", traffic, 1.0, steps, {"n_prefill": 2, "n_decode": 2}))
    prefill = solve(SystemCase("prefill_only", traffic, 1.0, {"step": steps["prefill_step"]}, {"n_instances": 2}))
    np.testing.assert_array_equal(whole.first_token_s, prefill.first_token_s)
    handed_over = Traffic(whole.kv_ready_s.tolist(), *lengths)
    decode = solve(SystemCase("decode_only", handed_over, 1.0, {"step": steps["decode_step"]}, {"n_instances": 2}))
    np.testing.assert_allclose(whole.finish_s, decode.finish_s, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"policy": "chunked", "chunk_budget": 128}], ids=["prefill_first", "chunked"])
def test_no_step_beats_the_memory_bandwidth(solve: Solve, options: dict[str, Any]) -> None:
    """Each step reads every weight once, so each token but the first costs at least that."""
    result = solve(SystemCase("colocated", poisson(500, 20.0, 400, 150, seed=15), 1.0, {"step": LLAMA}, options))
    floor = STEP.weights / STEP.bandwidth + STEP.overhead
    assert result.tpot_s.min() >= floor
    assert result.tpot_s.min() < 2 * floor, "a small batch of decodes comes close"
