"""Serving systems, one or many in a batch, against the reference; and a batch is its systems, bit for bit."""

from random import Random
from typing import Any

import numpy as np
import pytest
import servesweep
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import assert_identical as assert_identical_lanes
from parity import lanes_of
from parity_systems import SystemCase, assert_identical, check_log, check_result, check_results, run, systems_of
from strategies import LaneCase, Traffic, batches, golden
from strategies_systems import ROUTERS, SYSTEMS, exact_step, holding, system_batches, system_cases

PAGED = [("colocated", "paged"), ("colocated", "unlimited"), ("disaggregated", "paged"), ("decode_only", "paged")]

fewer = settings(max_examples=settings.default.max_examples // 5)  # an example is a batch

# Against the reference


@pytest.mark.parametrize("exact", [False, True], ids=["random", "exact"])
@pytest.mark.parametrize(("system", "memory"), [(system, "reserve") for system in SYSTEMS] + PAGED)
def test_each_system_and_memory(system: str, memory: str, exact: bool) -> None:
    @fewer
    @given(system_batches(system=system, memory=memory, exact=exact))
    def check(cases: list[SystemCase]) -> None:
        check_results(servesweep.run_systems(systems_of(cases)), cases)

    check()


@pytest.mark.parametrize("router", ROUTERS)
def test_each_router(router: str) -> None:
    @fewer
    @given(system_batches(router=router))
    def check(cases: list[SystemCase]) -> None:
        check_results(servesweep.run_systems(systems_of(cases)), cases)

    check()


@fewer
@given(system_cases())
def test_each_function(case: SystemCase) -> None:
    check_result(run(case), case)


@fewer
@given(system_batches())
def test_step_logs(cases: list[SystemCase]) -> None:
    results = servesweep.run_systems(systems_of(cases), step_log=range(len(cases)))
    assert set(results.step_logs) == set(range(len(cases)))
    for i, case in enumerate(cases):
        check_log(results.step_logs[i], case)
        check_steps(results, i)


def check_steps(results: Any, i: int) -> None:
    """The log of a system and its totals say the same."""
    log, system = results.step_logs[i], results.result(i)
    assert len(log["start_s"]) == system.steps
    roles = {role for role, owner in zip(results.instances.role, results.instances.system, strict=True) if owner == i}
    served = ~system.rejected
    sent = {"prefill": served.sum(), "decode": (system.output_tokens - 1)[served].sum()}
    sent["colocated"] = sent["prefill"] + sent["decode"]
    assert log["emitted"].sum() == sum(sent[role] for role in roles)


def crowd(rng: Random, n_traffics: int, systems_each: int) -> list[SystemCase]:
    """Chat-like systems of one llama-3.1-8b, at every load from idle to hopeless, in memories small and large."""
    step = golden("serving/step-times")["rows"][0]["step"]
    cases = []
    for _ in range(n_traffics):
        n = rng.choice([60, 150, 151])
        clock, arrivals = 0.0, []
        for _ in range(n):
            clock += rng.choice([0.0, 1.0, 1.0]) * rng.expovariate(1.0)
            arrivals.append(clock)
        lengths = [[max(1, int(rng.lognormvariate(mu, 0.9))) for _ in range(n)] for mu in (5.5, 4.0)]
        traffic = Traffic(arrivals, *lengths)
        for _ in range(systems_each):
            system = rng.choice(SYSTEMS)
            roles = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
            memory = 18.5e9 + rng.choice([1e8, 3e8, 1e9, 60e9])  # 16 GB of weights, a tenth kept free
            chip = {**step["chip"], "mem_cap": memory}
            steps = {role: {**step, "tp": rng.choice([1, 2]), "pp": rng.choice([1, 1, 2, 4])} for role in roles}
            for one in steps.values():
                one["chip"] = {**chip, "mem_cap": memory / one["tp"] / one["pp"]}
            options: dict[str, Any] = {"router": rng.choice(ROUTERS)}
            for name in ("n_prefill", "n_decode") if system == "disaggregated" else ("n_instances",):
                options[name] = rng.choice([1, 1, 2, 3, 8])
            if options["router"] in ("random", "power_of_two"):
                options["router_seed"] = rng.randrange(5)
            if system == "colocated" and rng.random() < 0.5:
                options |= {"policy": "chunked", "chunk_budget": rng.choice([16, 64, 512])}
            elif system != "decode_only":
                options["max_tokens"] = rng.choice([1, 500, 4096])
            cases.append(SystemCase(system, traffic, rng.choice([0.5, 5.0, 20.0, 100.0]), steps, options))
    return cases


def exact_crowd(rng: Random, n_traffics: int, systems_each: int) -> list[SystemCase]:
    """Hundreds of arrivals on a grid, on clocks whose steps end there too."""
    cases = []
    for _ in range(n_traffics):
        n = rng.choice([100, 250])
        span = n * rng.choice([0, 1, 4, 10])
        lengths = [[rng.randint(1, top) for _ in range(n)] for top in rng.choice([(6, 6), (30, 4), (3, 30)])]
        traffic = Traffic([float(rng.randint(0, span)) for _ in range(n)], *lengths)
        for _ in range(systems_each):
            system = rng.choice(SYSTEMS)
            roles = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
            options: dict[str, Any] = {"router": rng.choice(ROUTERS)}
            for name in ("n_prefill", "n_decode") if system == "disaggregated" else ("n_instances",):
                options[name] = rng.choice([1, 2, 3, 8])
            if system == "colocated" and rng.random() < 0.5:
                options |= {"policy": "chunked", "chunk_budget": rng.choice([3, 10, 100])}
            elif system != "decode_only":
                options["max_tokens"] = rng.choice([1, 10, 100])
            if system == "disaggregated":
                options["link"] = {
                    "alpha_s": rng.choice([0.0, 1.0]),
                    "bandwidth_bytes_per_s": rng.choice([8.0, 2.0**80]),
                }
            steps = {role: holding(rng.choice([20, 60, 300]), exact_step(rng)) for role in roles}
            cases.append(SystemCase(system, traffic, 1.0, steps, options, exact=True))
    return cases


@pytest.mark.parametrize("seed", range(2))
def test_large_batch_of_ties(seed: int) -> None:
    cases = exact_crowd(Random(seed), n_traffics=5, systems_each=20)
    check_results(servesweep.run_systems(systems_of(cases)), cases)


@pytest.mark.parametrize("seed", range(2))
def test_large_batch(seed: int) -> None:
    cases = crowd(Random(seed), n_traffics=5, systems_each=20)
    check_results(servesweep.run_systems(systems_of(cases)), cases)


# Batch independence


@pytest.mark.parametrize("at_once", [1, 9])
def test_how_many_finishes_are_passed_at_once_makes_no_difference(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor that none is, where a step log is kept. A third is real chat traffic, in which many finishes are passed."""
    chat = {
        "workload": servesweep.make_workload(
            60, 1.0, servesweep.lognormal_len(300, 0.8, 16, 2000), servesweep.lognormal_len(60, 0.8, 1, 400), seed=3
        ),
        "step": servesweep.StepModel(servesweep.model("llama-3.1-8b"), servesweep.chip("h100-sxm")),
    }
    real = [
        servesweep.Colocated(**chat, n_instances=2, rate=rate, **kind)
        for rate in (3.0, 20.0)
        for kind in (
            {"policy": "prefill_first"},
            {"policy": "chunked"},
            {"policy": "mixed", "memory": "paged", "block_size": 8, "num_blocks": 130, "max_running": 16},
        )
    ]
    real += [servesweep.DecodeOnly(**chat, n_instances=n, rate=20.0) for n in (1, 2)]

    @fewer
    @given(system_batches())
    def check(cases: list[SystemCase]) -> None:
        systems = systems_of(cases) + real
        usual = servesweep.run_systems(systems)
        logged = servesweep.run_systems(systems, step_log=[0])
        with monkeypatch.context() as patch:
            patch.setattr("servesweep.kernels.finishing_ahead._EARLIER", np.arange(float(at_once))[:, None])
            other = servesweep.run_systems(systems)
        for i in range(len(systems)):
            assert_identical(usual, i, other, i)
            assert_identical(usual, i, logged, i)

    check()


@fewer
@given(system_batches(), st.randoms(use_true_random=False))
def test_together_alone_and_in_any_order(cases: list[SystemCase], rng: Random) -> None:
    systems = systems_of(cases)
    together = servesweep.run_systems(systems)
    for i, system in enumerate(systems):
        assert_identical(together, i, servesweep.run_systems([system]), 0)
    order = rng.sample(range(len(systems)), len(systems))
    shuffled = servesweep.run_systems([systems[i] for i in order])
    for j, i in enumerate(order):
        assert_identical(together, i, shuffled, j)


def test_large_batch_is_its_systems() -> None:
    systems = systems_of(crowd(Random(7), n_traffics=5, systems_each=30))
    together = servesweep.run_systems(systems)
    backwards = servesweep.run_systems(systems[::-1])
    for i in range(len(systems)):
        assert_identical(together, i, backwards, len(systems) - 1 - i)
    for i in range(0, len(systems), 13):
        assert_identical(together, i, servesweep.run_systems([systems[i]]), 0)


@fewer
@given(system_batches(max_systems=4), batches(max_lanes=4))
def test_lanes_among_systems(cases: list[SystemCase], lane_cases: list[LaneCase]) -> None:
    """A scheduler of its own beside serving systems is what it is without them."""
    systems, lanes = systems_of(cases), lanes_of(lane_cases)
    mixed = servesweep.run_systems([*systems, *lanes])
    alone = servesweep.run_schedulers(lanes)
    for i in range(len(lanes)):
        assert_identical_lanes(mixed, len(systems) + i, alone, i)
    check_results(mixed, cases)
