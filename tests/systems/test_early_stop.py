"""Verdicts before the end: those of the whole run, told by the requests that decide them, in a batch and alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_systems import assert_identical, systems_of
from servesweep import (
    Colocated,
    DecodeOnly,
    Disaggregated,
    OperatorStepModel,
    PrefillOnly,
    Scheduler,
    StepModel,
    Workload,
    chip,
    lognormal_len,
    make_workload,
    model,
    run_systems,
)
from servesweep.measures.slo import SLOS
from servesweep.serving.early_stop import EarlyStopCriterion, EarlyStopRequest
from strategies_steps import added_systems
from strategies_systems import system_batches

STEP = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
OPERATORS = OperatorStepModel(STEP.model, STEP.chip, first_token_s=0.05)
CHAT = make_workload(200, 1.0, lognormal_len(400, 0.8, 16, 4000), lognormal_len(60, 0.8, 2, 300), seed=3)
Z = 1.959963984540054


def wilson(share, n):
    """The textbook formula."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def misses(result, limits, joint):
    """By condition, which requests miss it."""
    n = len(result)
    gaps = result.output_tokens - 1
    seconds = {
        "ttft": result.first_token_s - result.arrival_s + result.outside_s,
        "tpot": np.where(gaps > 0, (result.finish_s - result.first_token_s) / np.maximum(gaps, 1), 0.0),
        "e2e": result.finish_s - result.arrival_s + result.outside_s,
        "itl_max": result.itl_max_s,
    }
    each = [~(seconds[name] <= limits[name]) for name in SLOS if not math.isnan(limits[name])]
    each = each or [np.zeros(n, bool)]
    each = [missed | result.rejected for missed in each]
    return [np.logical_or.reduce(each)] if joint else each


def verdict(result, limits, criterion, on_pass, on_fail):
    """(D, share of them, least, most), of the whole run, or None: the requests of the window one after the other."""
    n = len(result)
    order = sorted(range(n), key=lambda i: (result.arrival_s[i], i))
    window = order[int(n * criterion.warmup) : n - int(n * criterion.cooldown)]
    size = len(window)
    missed = misses(result, limits, criterion.joint)
    for d in range(1, size + 1):
        most = [int(condition[window[:d]].sum()) for condition in missed]
        if result.rejected[window[d - 1]]:
            continue  # it is not served; the next one is counted with it
        best, worst = (size - max(most)) / size, (d - max(most)) / size
        fails = best < criterion.target and wilson(best, size)[1] < criterion.target
        passes = worst >= criterion.target and wilson(worst, size)[0] >= criterion.target
        if (fails and on_fail) or (passes and on_pass):
            return d, (d - max(most)) / d, worst, best
    return None


def check(systems, limits, criterion, on_pass, on_fail, followed=lambda system: True):
    """Compare verdicts with those of the whole runs; returns how many there were of passes and of fails."""
    count = len(systems)
    columns = {name: np.full(count, limits.get(name, math.nan)) for name in SLOS}
    verdicts = EarlyStopRequest(criterion, columns, np.full(count, on_pass), np.full(count, on_fail))
    itl = "itl_max" in limits
    whole = run_systems(systems, itl=itl)
    early = run_systems(systems, itl=itl, early_stop=verdicts)
    one = EarlyStopRequest(
        criterion, {name: column[:1] for name, column in columns.items()}, verdicts.on_pass[:1], verdicts.on_fail[:1]
    )
    alone = {i: run_systems([systems[i]], itl=itl, early_stop=one) for i in range(0, count, 4)}
    found = []
    for i, system in enumerate(systems):
        expected = None
        if followed(system):
            limit = {name: column[i] for name, column in columns.items()}
            expected = verdict(whole.result(i), limit, criterion, on_pass, on_fail)
        for decided, place in ((early.early_stop, i), *([(alone[i].early_stop, 0)] if i in alone else [])):
            assert decided.stopped[place] == (expected is not None)
            if expected is not None:
                numbers = (decided.requests, decided.attainment, decided.low, decided.high)
                assert tuple(float(values[place]) for values in numbers) == expected
        if expected is None:
            assert_identical(early, i, whole, i)
        else:
            found.append(expected[2] >= criterion.target)
    return found.count(True), found.count(False)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(("on_pass", "on_fail"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("itl_max", [{}, {"itl_max": 0.08}])
@pytest.mark.parametrize("step", [STEP, OPERATORS], ids=["roofline", "operators"])
def test_verdicts_of_schedulers_under_every_load(joint, on_pass, on_fail, itl_max, step):
    small = {"max_running": 32, "block_size": 16}
    kinds = [
        {"policy": "mixed", **small, "num_blocks": 300},
        {"policy": "chunked", **small, "num_blocks": 2000, "token_budget": 300},
        {"policy": "prefill_first", **small, "num_blocks": 300},
        {"policy": "prefill_first", "max_running": 32},
        {"policy": "mixed", **small, "num_blocks": 60},  # where long requests are rejected
    ]
    systems = [Scheduler(CHAT, step, rate=rate, **kind) for kind in kinds for rate in (1.0, 8.0, 14.0, 20.0, 60.0)]
    limits = {"ttft": 0.2, "tpot": 0.02, "e2e": 3.0, **itl_max}
    passes, fails = check(systems, limits, EarlyStopCriterion(0.8, 0.2, 0.2, joint), on_pass, on_fail)
    assert (passes > 3) == on_pass
    assert (fails > 3) == on_fail


@pytest.mark.parametrize("router", ["least_loaded", "least_outstanding", "least_tokens", "power_of_two"])
def test_verdicts_of_groups_that_a_router_ties_together(router):
    systems = [
        Colocated(CHAT, STEP, n_instances=3, policy=policy, rate=rate, router=router)
        for policy in ("prefill_first", "chunked")
        for rate in (3.0, 60.0, 300.0)
    ]
    passes, fails = check(systems, {"ttft": 0.1, "tpot": 0.012}, EarlyStopCriterion(0.8, 0.1, 0.1, True), True, True)
    assert passes > 1
    assert fails > 1


def test_systems_that_are_not_followed_run_to_their_end():
    systems = [
        Disaggregated(CHAT, STEP, STEP, rate=60.0),
        PrefillOnly(CHAT, STEP, rate=200.0),
        Colocated(CHAT, STEP, n_instances=2, rate=200.0, router="round_robin"),
        DecodeOnly(CHAT, STEP, memory="paged", max_running=16, block_size=16, num_blocks=200, rate=90.0),
    ]
    assert check(systems, {"ttft": 0.001}, EarlyStopCriterion(0.5, 0, 0, True), True, True, lambda system: False) == (
        0,
        0,
    )
    followed = [DecodeOnly(CHAT, STEP, rate=rate) for rate in (1.0, 500.0)]
    assert sum(check(followed, {"tpot": 0.012}, EarlyStopCriterion(0.5, 0, 0, True), True, True)) == 2


@pytest.mark.parametrize("loops", [1, 2, 32, 200])
def test_requests_of_one_token_are_done_when_they_come_to_a_lane_that_is_full(loops, monkeypatch):
    """Every second request fills the memory of the lane, so that the next one waits; its only token came before."""
    monkeypatch.setattr("servesweep.kernels.engine._LOOK", loops)
    n, capacity = 400, STEP.kv_capacity_tokens()
    outputs = np.where(np.arange(n) % 2 == 0, 100, 1)
    workload = Workload(np.arange(n) * 1.0, np.full(n, capacity - 100), outputs)
    assert check([DecodeOnly(workload, STEP)], {"e2e": 0.5}, EarlyStopCriterion(0.45, 0, 0, True), True, True) == (1, 0)
    systems = [DecodeOnly(workload, STEP, rate=rate) for rate in (1.0, 0.5, 2.0)]
    assert sum(check(systems, {"e2e": 0.5}, EarlyStopCriterion(0.3, 0, 0, True), True, True)) > 0


def test_a_stopped_group_adds_nothing_to_the_instances_of_another():
    groups = [Colocated(CHAT, STEP, n_instances=2, rate=rate) for rate in (2.0, 500.0)]
    limits = {name: np.full(2, 0.1 if name == "ttft" else math.nan) for name in SLOS}
    stopping = EarlyStopRequest(
        EarlyStopCriterion(0.9, 0, 0, True), limits, np.array([False, False]), np.array([True, True])
    )
    found = run_systems(groups, early_stop=stopping)
    assert found.early_stop.stopped.tolist() == [False, True]
    alone = run_systems(groups[:1])
    assert found.instances.of(0).requests.tolist() == alone.instances.of(0).requests.tolist()
    assert sum(alone.instances.of(0).requests) == len(CHAT)


def test_arrivals_in_any_order_and_no_window():
    rng = np.random.default_rng(5)
    order = rng.permutation(len(CHAT))
    shuffled = Workload(CHAT.arrival_s[order], CHAT.prompt_tokens[order], CHAT.output_tokens[order])
    systems = [Scheduler(shuffled, STEP, policy="mixed", max_running=32, rate=rate) for rate in (1.0, 30.0)]
    assert sum(check(systems, {"ttft": 0.1}, EarlyStopCriterion(0.8, 0.2, 0.3, True), True, True)) == 2
    assert check(systems, {"ttft": 0.1}, EarlyStopCriterion(0.8, 0.5, 0.5, True), True, True) == (0, 0)


def test_a_hopeless_system_costs_little():
    lane = Scheduler(CHAT, STEP, policy="mixed", max_running=32, block_size=16, num_blocks=300, rate=60.0)
    nothing = {name: np.array([math.nan]) for name in SLOS}
    yes = np.array([True])
    found = run_systems(
        [lane],
        early_stop=EarlyStopRequest(
            EarlyStopCriterion(0.9, 0.2, 0.2, True), {**nothing, "ttft": np.array([0.3])}, yes, yes
        ),
    )
    assert found.early_stop.stopped[0]
    # The first late requests say that it fails, long before they are served.
    assert np.isnan(found.first_token_s).sum() > 0.6 * len(CHAT)
    assert found.early_stop.requests[0] < 40


@given(
    st.one_of(system_batches(max_systems=5), added_systems()),
    st.sampled_from([0.3, 0.5, 0.7]),
    st.sampled_from([(0.0, 0.0), (0.2, 0.2), (0.1, 0.4)]),
    st.booleans(),
    st.tuples(st.booleans(), st.booleans()),
    st.floats(0.1, 30.0),
)
@settings(max_examples=60)
def test_verdicts_of_any_systems(cases, target, shares, joint, stops, scale):
    systems = systems_of(cases)
    limits = {"ttft": scale, "tpot": scale / 5, "e2e": 4 * scale, "itl_max": scale}
    count = len(systems)
    columns = {name: np.full(count, limit) for name, limit in limits.items()}
    criterion = EarlyStopCriterion(target, *shares, joint)
    verdicts = EarlyStopRequest(criterion, columns, np.full(count, stops[0]), np.full(count, stops[1]))
    whole = run_systems(systems, itl=True)
    early = run_systems(systems, itl=True, early_stop=verdicts)
    for i in range(count):
        if early.early_stop.stopped[i]:
            expected = verdict(whole.result(i), limits, criterion, *stops)
            decided = early.early_stop
            assert expected == (decided.requests[i], decided.attainment[i], decided.low[i], decided.high[i])
        else:
            assert_identical(early, i, whole, i)
