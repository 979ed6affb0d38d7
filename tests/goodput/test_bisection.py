"""The search by itself: the rates that it asks for, what it simulates ahead, and where it seeks."""

import math
from dataclasses import replace

import numpy as np
import pytest
from goodput_cases import GRID
from hypothesis import given
from hypothesis import strategies as st
from servesweep import make_workload, max_rate, run_systems
from servesweep.goodput.bisection import MOST_DOUBLINGS, Search, likely_rates, next_to_answer, walked
from servesweep.goodput.expected_rate import averages, rate_by_averages
from servesweep.goodput.options import GoodputOptions
from servesweep.goodput.search import searched_plan
from servesweep.goodput.searches import rates_ahead
from servesweep.measures.intervals import wilson_interval


def bisected(pass_below, search):
    """The end of a search whose rates pass below a boundary, and the rates that it asked for."""
    asked = []
    while not search.ended:
        asked.append(search.rate)
        search = search.after(search.rate <= pass_below)
    return search, asked


@given(st.floats(0.01, 100), st.floats(0.01, 10), st.floats(1, 100), st.integers(0, 30))
def test_a_search_asks_for_the_rates_of_max_rate(boundary, lo, wide, iters):
    rates = []

    def run(rate):
        rates.append(rate)
        return float(rate <= boundary)

    expected = max_rate(run, 0.5, lo, lo * wide, iters)
    search, asked = bisected(boundary, Search(lo, lo * wide, iters))
    assert asked == rates
    assert (0.0 if search.phase == "lower_end_fails" else search.lo) == expected


@given(
    st.floats(0.01, 100),
    st.integers(1, 40),
    st.integers(0, 14),
    st.none() | st.floats(0.01, 100),
    st.sampled_from([0.0, 0.02, 0.3]),
)
def test_what_is_simulated_ahead_contains_what_is_asked_next(boundary, count, iters, expected, least):
    start = search = Search(0.05, 64.0, iters)
    attained = {}
    while not search.ended:
        ahead = likely_rates(search, attained, 0.9, count, expected=expected, least=least)
        rates = [rate for _, rate, _ in ahead]
        assert rates[0] == search.rate
        assert len(rates) == len(set(rates)) <= count + 1
        assert not set(rates) & set(attained)
        chances = [chance for chance, _, _ in ahead]
        assert chances[0] == 1
        assert chances == sorted(chances, reverse=True)
        assert min(chances) >= least
        assert all(state.rate == rate for _, rate, state in ahead)
        attained |= {rate: 0.95 if rate <= boundary else 0.6 for rate in rates}
        search, asked = walked(start, attained, 0.9)
    assert (search, asked) == bisected(boundary, start)
    passing, failing = next_to_answer(search, asked, attained, 0.9)
    assert passing is None or attained[passing] >= 0.9
    assert failing is None or attained[failing] < 0.9


@given(st.floats(0.01, 100), st.sampled_from([3, 6, 12, 30]), st.integers(1, 40), st.integers(0, 14))
def test_where_attainment_falls_smoothly_looking_ahead_takes_no_more_rounds_than_without_guesses(
    boundary, steepness, count, iters
):
    def attainment(rate):
        return 1 / (1 + math.exp(min(steepness * math.log(rate / boundary) - math.log(9), 700)))  # 0.9 at the boundary

    start = search = Search(0.05, 64.0, iters)
    attained = {}
    rounds = 0
    while not search.ended:
        attained |= {rate: attainment(rate) for _, rate, _ in likely_rates(search, attained, 0.9, count)}
        search, _ = walked(start, attained, 0.9)
        rounds += 1
    assert rounds <= 2 + -(-iters // int(math.log2(count + 1)))  # 2^j - 1 rates are j halvings


def test_seven_rates_are_three_halvings():
    halving = Search(1.0, 256.0, 14).after(True).after(False)
    rates = [rate for _, rate, _ in likely_rates(halving, {}, 0.9, 7)]
    assert sorted(rates) == pytest.approx([2, 4, 8, 16, 32, 64, 128])
    rates = [rate for _, rate, _ in likely_rates(Search(1.0, 256.0, 14), {}, 0.9, 8)]
    assert sorted(rates) == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256])


def test_rates_are_sought_where_the_answer_should_be():
    # 90 % lies a quarter of the way between 99 % and 50 % in log-odds: 2 to 1 below the middle of the interval.
    near = Search(10.0, 12.0, 8, phase="halving")
    place = (math.log(99) - math.log(9)) / math.log(99)
    rates = [rate for _, rate, _ in likely_rates(near, {10.0: 0.99, 12.0: 0.5}, 0.9, 7)]
    assert rates[0] == near.rate
    closest = min(abs(math.log(rate / 10) / math.log(1.2) - place) for rate in rates)
    assert closest < 0.03
    # In a wide interval it is about where it is expected.
    wide = Search(0.05, 64.0, 14, phase="halving")
    rates = [rate for _, rate, _ in likely_rates(wide, {0.05: 1.0, 64.0: 0.0}, 0.9, 10, expected=20.0)]
    assert sum(14 < rate < 28 for rate in rates) >= 5


def test_what_a_system_is_expected_to_serve_is_about_what_it_serves():
    plan = searched_plan({**GRID, "workload": {**GRID["workload"], "n_requests": 2000}}, GoodputOptions())
    for cell in plan.cells[:: len(plan.cells) // 6]:
        system = cell.system()
        flood = run_systems([replace(system, rate=1000.0)]).result(0)
        served = len(flood) / (np.nanmax(flood.finish_s) - flood.arrival_s[0])
        assert 0.5 * served < rate_by_averages(system, averages(system.workload)) < 1.3 * served


def test_rates_ahead_fall_with_the_number_of_searches():
    assert rates_ahead(1, 1000) == 31
    assert [rates_ahead(n, 1000) for n in (10, 24, 100, 1000)] == [31, 15, 7, 1]
    assert rates_ahead(100, 50) == 1


def test_a_tolerance_takes_as_many_halvings_as_it_needs():
    search, asked = bisected(7.0, Search(0.05, 64.0, 0, rel_tol=0.01))
    assert search.hi / search.lo - 1 <= 0.01
    assert math.sqrt(64 / 0.05) ** (0.5 ** (len(asked) - 4)) - 1 > 0.01  # one halving less would not do
    assert search.lo <= 7.0 < search.hi


def test_an_upper_end_that_passes_is_doubled_until_it_fails():
    search, asked = bisected(50.0, Search(1.0, 4.0, 3, doublings=MOST_DOUBLINGS))
    assert asked[:6] == [1, 4, 8, 16, 32, 64]
    assert (search.phase, search.halvings) == ("converged", 0)
    endless, asked = bisected(math.inf, Search(1.0, 4.0, 3, doublings=MOST_DOUBLINGS))
    assert (endless.phase, endless.lo) == ("upper_end_passes", 4.0 * 2**MOST_DOUBLINGS)


def test_wilson_intervals_are_those_of_the_literature():
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson_interval(hits / n, n)
        assert [float(x) for x in found] == pytest.approx([low, high], abs=5e-5)
    assert float(wilson_interval(1.0, 50)[1]) == 1.0
    assert all(np.isnan(x) for x in wilson_interval(math.nan, 0))


def test_what_is_to_be_expected_of_other_systems():
    def rate(**system):
        table = {key: value for key, value in GRID.items() if key != "scheduler"}
        plan = searched_plan({**table, **system}, GoodputOptions())
        return [rate_by_averages(cell.system(), averages(cell.traffic.workload)) for cell in plan.cells]

    (one,) = rate(system={"kind": "colocated"}, slo={"ttft_ms": 100})
    (four,) = rate(system={"kind": "colocated", "n_instances": 4}, slo={"ttft_ms": 100})
    assert four == pytest.approx(4 * one)
    assert rate(system={"kind": "disaggregated"}, slo={"ttft_ms": 100}) == [None]
    (prefill,) = rate(system={"kind": "prefill_only"}, slo={"ttft_ms": 100})
    (decode,) = rate(system={"kind": "decode_only"}, slo={"tpot_ms": 100})
    assert one < min(prefill, decode)
    assert averages(make_workload(0, 1.0, 100, 10)) is None
