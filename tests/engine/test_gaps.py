"""Times between tokens against a scheduler that steps one token at a time, and against the reference systems."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import lanes_of
from parity_systems import SystemCase, Trace, answer, systems_of
from servesweep import SLO, Colocated, ConstantStepTime, Workload, percentile, run_schedulers, run_systems
from servesweep.kernels.itl_bins import BINS, bin_of, middles_s
from servesweep.serving.reference import Observer, Step, schedule
from strategies import LaneCase, batches, lane_cases
from strategies_steps import added_lanes, added_systems
from strategies_systems import system_cases


class Recorder(Observer):
    """Notes when each request emits a token."""

    def __init__(self) -> None:
        self.times: dict[int, list[float]] = defaultdict(list)

    def on_step(self, source: Any, step: Step) -> None:
        for request in step.emitters():
            self.times[request.key].append(step.end)


def emission_times(case: LaneCase) -> dict[int, list[float]]:
    recorder = Recorder()
    lengths = case.traffic.prompt_tokens, case.traffic.output_tokens
    schedule(case.arrivals(), *lengths, case.step_time(), **case.limits(), observer=recorder)
    return recorder.times


def check(longest: np.ndarray, counts: np.ndarray, times: dict[int, list[float]], served: np.ndarray) -> None:
    gaps = {key: np.diff(values) for key, values in times.items()}
    expected = [gaps[i].max(initial=0.0) if ok else math.nan for i, ok in enumerate(served)]
    np.testing.assert_allclose(longest, expected, rtol=1e-7, atol=1e-12)
    every = np.sort(np.concatenate([np.zeros(0), *gaps.values()]))
    assert counts.sum() == every.size
    # In order, each gap lies in its bin, but for a rounding at an edge.
    middles = np.repeat(middles_s(), counts.astype(int))
    np.testing.assert_allclose(middles, np.maximum(every, 1e-6), rtol=0.01001)


@given(st.one_of(batches(), added_lanes()))
def test_gaps_of_schedulers_are_those_of_single_steps(cases: list[LaneCase]) -> None:
    results = run_schedulers(lanes_of(cases))
    kept = run_systems(lanes_of(cases), itl=True)
    np.testing.assert_array_equal(kept.finish_s, results.finish_s)
    assert kept.itl_max_s is not None
    assert kept.itl_counts is not None
    for row, case in enumerate(cases):
        n = results.n_requests[row]
        served = ~results.rejected[row, :n]
        check(kept.itl_max_s[row, :n], kept.itl_counts[row], emission_times(case), served)


@given(lane_cases(policy="prefill_first"))
def test_a_gap_spans_the_prefill_steps_of_others(case: LaneCase) -> None:
    kept = run_systems(lanes_of([case]), itl=True)
    assert kept.itl_max_s is not None
    served = ~kept.rejected[0]
    longest = kept.itl_max_s[0][served]
    output = kept.output_tokens[0][served]
    mean = (kept.finish_s[0] - kept.first_token_s[0])[served] / np.maximum(output - 1, 1)
    assert (longest >= mean * (1 - 1e-9)).all()


@given(st.one_of(system_cases(), added_systems(memory="reserve").map(lambda cases: cases[0])))
def test_gaps_of_systems_are_those_of_the_reference(case: SystemCase) -> None:
    if case.system == "prefill_only" or case.options.get("memory", "reserve") != "reserve":
        return
    trace = Trace()
    run, _, requests = answer(case, trace)
    kept = run_systems(systems_of([case]), itl=True)
    assert kept.itl_max_s is not None
    assert kept.itl_counts is not None
    ends: dict[Any, list[float]] = defaultdict(list)
    for unit, step in trace.reserved:
        if step.decoding:
            ends[unit].append(step.end)
    times = {}
    for i, request in enumerate(requests):
        times[i] = [run.first_token_s[i]]
        if request.output > 1:
            number = request.served_by[-1]
            units = [unit for unit in ends if unit.instance.number == number and request.finish in ends[unit]]
            fitting = {
                tuple(ends[unit][max(0, ends[unit].index(request.finish) - request.output + 2) :][: request.output - 1])
                for unit in units
            }
            if len(fitting) > 1:
                return  # two lanes of one instance in step: the trace cannot tell which served it
            times[i] += fitting.pop()
    check(kept.itl_max_s[0], kept.itl_counts[0], times, np.ones(len(requests), bool))


@given(lane_cases())
def test_measures_of_gaps(case: LaneCase) -> None:
    kept = run_systems(lanes_of([case]), itl=True)
    times = emission_times(case)
    gaps = np.sort(np.concatenate([np.zeros(0), *(np.diff(values) for values in times.values())]))
    longest = np.array([np.diff(values).max(initial=0.0) for values in times.values()])
    slo = float(np.median(longest)) * 1.001 + 1e-9 if longest.size else 1.0
    summary = kept.result(0).summary(slo=SLO(itl_max_s=slo), warmup=0, cooldown=0)
    assert summary["itl_max_attainment"] == pytest.approx((longest <= slo).sum() / len(case.traffic.arrival_s))
    if not gaps.size:
        assert math.isnan(summary["itl_p99_s"])
        return
    assert summary["itl_mean_s"] == pytest.approx(gaps.mean(), rel=1e-6)
    for q in (50, 90, 95, 99):
        exact = max(gaps[math.ceil(gaps.size * q / 100) - 1], 1e-6)
        assert summary[f"itl_p{q}_s"] == pytest.approx(exact, rel=0.0101)


def test_measuring_leaves_the_gaps_alone() -> None:
    work = Workload(np.zeros(3), np.full(3, 4), np.array([3, 1, 2]))
    results = run_systems([Colocated(work, ConstantStepTime(1.0))], itl=True)
    result = results.result(0)
    assert result.itl_max_s is not None
    for _ in range(2):
        percentile(result, "itl_max", 50)
        result.summary(slo=SLO(itl_max_s=1.5))
        np.testing.assert_array_equal(result.itl_max_s, [2.0, 0.0, 1.0])


def test_nothing_is_kept_unless_asked() -> None:
    results = run_schedulers([])
    assert results.itl_max_s is None
    assert results.itl_counts is None


@pytest.mark.parametrize("gap", [1e-7, 1e-6, 0.0123, 3.5, 1e6, 1e9])
def test_a_bin_is_two_percent_wide(gap: float) -> None:
    place = int(bin_of(np.array([gap]))[0])
    assert 0 <= place < BINS
    if 1e-6 <= gap <= 1e6:
        assert middles_s()[place] == pytest.approx(gap, rel=0.01)
