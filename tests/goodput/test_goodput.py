"""The search for goodput: the numbers of `max_rate` on each configuration alone, every ending, and its tables."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import servesweep.runner.tasks as tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from servesweep import ConfigError, attainment, find_goodput, load, make_workload, max_rate, run_grid, run_systems
from servesweep.goodput.bisection import MOST_DOUBLINGS, Search, likely_rates, next_to_answer, walked
from servesweep.goodput.expected_rate import averages, expected_rate
from servesweep.goodput.findings import ENDINGS, wilson_interval
from servesweep.goodput.search import Question, SearchInterrupted, parse_slos, searched_plan
from servesweep.goodput.searches import rates_ahead
from servesweep.measures.metrics import SLOS
from servesweep.tables.schemas import SCHEMAS

GRID = {
    "name": "grid",
    "workload": {
        "kind": "synthetic",
        "n_requests": 200,
        "prompt": {"mean": 400, "sigma": 0.8, "lo": 16, "hi": 4000},
        "output": {"mean": 60, "sigma": 0.8, "lo": 2, "hi": 300},
    },
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {
        "policy": ["mixed", "chunked", "prefill_first"],
        "block_size": 16,
        "num_blocks": [400, 4000],
        "max_running": 64,
    },
    "slo": {"ttft_ms": [60, 200], "tpot_ms": 12},
}
SEARCH = {"lo": 0.5, "hi": 40.0}
QUIET = {"workers": 1, "progress": False}


def alone(cell, question):
    """The answer of one configuration, simulated rate by rate on its own, by the public functions alone."""
    limits = {f"{name}_slo": cell.slo[f"{name}_slo_s"] for name in ("ttft", "tpot")}

    def run(rate):
        result = run_systems([replace(cell.system(), rate=rate)]).result(0)
        return attainment(result, **limits)

    return max_rate(
        run, question.attainment, question.lo, question.hi, 14 if question.iters is None else question.iters
    )


@pytest.fixture(scope="module")
def alones():
    question = Question(**SEARCH)
    return [alone(cell, question) for cell in searched_plan(GRID, question).cells]


# -------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("look_ahead", [None, 1, 2, 7])
def test_the_rates_are_those_of_each_configuration_alone(alones, tmp_path, look_ahead):
    found = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path, look_ahead=look_ahead)
    assert found.df["max_rate_rps"].fillna(0.0).tolist() == alones
    assert len(set(alones)) > 6  # a grid whose cells all agreed would show little


@given(st.sampled_from([0.5, 0.9, 0.99]), st.floats(0.1, 5), st.floats(1, 20), st.integers(0, 12), st.integers(1, 9))
@settings(max_examples=6)
def test_any_interval_and_target(tmp_path_factory, target, lo, wide, iters, look_ahead):
    small = {**GRID, "workload": {**GRID["workload"], "n_requests": 60}, "slo": {"ttft_ms": 100, "tpot_ms": 10}}
    question = Question(target, lo, lo * wide, iters)
    expected = [alone(cell, question) for cell in searched_plan(small, question).cells]
    found = find_goodput(
        small,
        attainment=target,
        lo=lo,
        hi=lo * wide,
        iters=iters,
        **QUIET,
        out=tmp_path_factory.mktemp("any"),
        look_ahead=look_ahead,
    )
    assert found.df["max_rate_rps"].fillna(0.0).tolist() == expected


def test_the_answer_does_not_depend_on_workers_batches_or_looking_ahead(tmp_path):
    ways = [{}, {"workers": 2}, {"max_lanes": 5}, {"look_ahead": 4, "workers": 2, "max_lanes": 7}]
    bytes_of = []
    for i, way in enumerate(ways):
        find_goodput(GRID, **SEARCH, **{**QUIET, **way}, out=tmp_path / str(i))
        bytes_of.append((tmp_path / str(i) / "goodput.parquet").read_bytes())
    assert len(set(bytes_of)) == 1
    assert (tmp_path / "0" / "probes.parquet").read_bytes() == (tmp_path / "1" / "probes.parquet").read_bytes()


def test_asked_probes_are_the_same_whatever_was_simulated_ahead(tmp_path):
    tables = []
    for ahead in (1, 5):
        find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path / str(ahead), look_ahead=ahead)
        probes = load(tmp_path / str(ahead), "probes")
        tables.append(probes[probes["asked"]].drop(columns="round").reset_index(drop=True))
        assert probes["asked"].all() == (ahead == 1)
    pd.testing.assert_frame_equal(*tables)


# ------------------------------------------------------------------------------------------- the search by itself


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
    plan = searched_plan({**GRID, "workload": {**GRID["workload"], "n_requests": 2000}}, Question())
    for cell in plan.cells[:: len(plan.cells) // 6]:
        system = cell.system()
        flood = run_systems([replace(system, rate=1000.0)]).result(0)
        served = len(flood) / (np.nanmax(flood.finish_s) - flood.arrival_s[0])
        assert 0.5 * served < expected_rate(system, averages(system.workload)) < 1.3 * served


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


# --------------------------------------------------------------------------------------------------------- the endings


def searched(tmp_path, slo, search=None, **workload):
    """The only row of a search on one configuration."""
    single = {
        **GRID,
        "workload": {**GRID["workload"], **workload},
        "scheduler": {"policy": "mixed", "max_running": 64},
        "slo": {},
    }
    found = find_goodput(single, slo=slo, **{**SEARCH, **(search or {})}, **QUIET, out=tmp_path)
    assert len(found.df) == 1
    return found.df.iloc[0]


def test_converged(tmp_path):
    row = searched(tmp_path, ["ttft:35"], {"hi": 200.0})
    assert row["ending"] == "converged"
    assert pd.isna(row["reason"])
    assert row["rate_low_rps"] <= row["max_rate_rps"] < row["next_rate_rps"] <= row["rate_high_rps"]
    assert row["attainment_low"] < 0.9 <= row["attainment"] < row["attainment_high"]
    assert row["attainment_requests"] == 120
    assert row["probes"] == 16
    assert row["binding_slo"] == "ttft"
    assert pd.isna(row["tpot_attainment"])


def test_upper_end_passes(tmp_path):
    row = searched(tmp_path, ["ttft:500"], {"hi": 2.0})
    assert (row["ending"], row["max_rate_rps"], row["probes"]) == ("upper_end_passes", 2.0, 2)
    assert "100.0% at 2 req/s, the highest rate tried" in row["reason"]
    assert pd.isna(row["next_rate_rps"])
    assert pd.isna(row["binding_slo"])


def test_an_upper_end_is_found_when_asked_for(tmp_path):
    row = searched(tmp_path, ["ttft:35"], {"hi": 2.0, "find_upper": True})
    found = searched(tmp_path, ["ttft:35"], {"lo": 16.0, "hi": 32.0})  # where doubling ends
    assert row["probes"] == 2 + 4 + 14
    assert row["max_rate_rps"] == found["max_rate_rps"]


@pytest.mark.parametrize(
    ("slo", "binding", "words"),
    [
        (["tpot:5"], "tpot", r"a decode step alone takes 6\.\d+ ms, longer than the tpot SLO of 5 ms"),
        (
            ["ttft:3"],
            "ttft",
            r"the prefill of the shortest prompt alone takes 6\.\d+ ms, longer than the ttft SLO of 3 ms",
        ),
        (["e2e:10"], "e2e", r"the quickest request alone takes 13\.6 ms, longer than the e2e SLO of 10 ms"),
        (
            ["ttft:12", "tpot:50"],
            "ttft",
            r"only \d\d\.\d% of the requests could meet the ttft SLO of 12 ms with the inst",
        ),
    ],
)
def test_lower_end_fails_and_the_step_model_says_why(tmp_path, slo, binding, words):
    row = searched(tmp_path, slo)
    assert (row["ending"], row["binding_slo"], row["probes"]) == ("lower_end_fails", binding, 1)
    assert pd.Series([row["reason"]]).str.match(words).all(), row["reason"]
    assert pd.isna(row["max_rate_rps"])
    assert row["next_rate_rps"] == SEARCH["lo"]


def test_lower_end_fails_by_load(tmp_path):
    row = searched(tmp_path, ["ttft:35"], {"lo": 150.0, "hi": 200.0})
    assert row["ending"] == "lower_end_fails"
    assert "of 120 requests meet every SLO at 150 req/s, the lower end" in row["reason"]


def test_lower_end_fails_by_rejections(tmp_path):
    tiny = {**GRID, "scheduler": {"policy": "mixed", "block_size": 16, "num_blocks": 20, "max_running": 64}}
    found = find_goodput(tiny, **SEARCH, **QUIET, out=tmp_path)
    assert set(found.df["ending"]) == {"lower_end_fails"}
    assert (
        found.df["reason"]
        .str.fullmatch(r"\d+ of 200 requests are rejected: they need more KV blocks than there are")
        .all()
    )


def test_not_monotone(tmp_path):
    # Requests of one kind at equal gaps: how long each waits for the step under way depends on how gap and step fit. At
    # this rate, the first middle, each arrives just as the last step of the one before it has begun.
    search = {"lo": 8.407927902944143**2 / 40, "hi": 40.0, "iters": 5}
    row = searched(tmp_path, ["ttft:9"], search, prompt=100, output=20, arrivals="uniform")
    assert row["ending"] == "not_monotone"
    assert "which is beyond chance: higher rates that pass may exist" in row["reason"]


def test_unresolved(tmp_path):
    row = searched(tmp_path, ["ttft:35"], {"hi": 200.0}, n_requests=30)
    assert row["ending"] == "unresolved"
    assert row["reason"].startswith("no rate asked for passes beyond chance: 18 requests are too few")
    assert pd.isna(row["rate_low_rps"])
    assert row["max_rate_rps"] > 1


def test_every_ending_has_a_definition():
    definition = SCHEMAS["goodput"].field("ending").metadata[b"definition"].decode()
    assert [ending for ending in ENDINGS if ending not in definition] == []


# ------------------------------------------------------------------------------------------------- SLOs and attainment


def test_every_slo_counts_and_each_alone_is_a_column(tmp_path):
    row = searched(tmp_path, {"ttft": 60, "tpot": 10, "e2e": 900, "itl_max": 60})
    own = [row[f"{name}_attainment"] for name in SLOS]
    assert row["attainment"] <= min(own)
    assert [row[f"{name}_slo_s"] for name in SLOS] == [0.06, 0.01, 0.9, 0.06]
    probes = load(tmp_path, "probes")
    above = probes[probes["request_rate_rps"] == row["next_rate_rps"]].iloc[0]
    assert above[f"{row['binding_slo']}_attainment"] == min(above[f"{name}_attainment"] for name in SLOS)


def test_without_joint_each_slo_is_met_on_its_own(tmp_path):
    joint = searched(tmp_path / "joint", ["ttft:35", "tpot:9"], {"hi": 200.0})
    apart = searched(tmp_path / "apart", ["ttft:35", "tpot:9"], {"joint": False, "hi": 200.0})
    singles = [searched(tmp_path / slo[:4], [slo], {"hi": 200.0}) for slo in ("ttft:35", "tpot:9")]
    assert apart["max_rate_rps"] == min(single["max_rate_rps"] for single in singles)
    assert joint["max_rate_rps"] < apart["max_rate_rps"]
    assert apart["attainment"] == min(apart["ttft_attainment"], apart["tpot_attainment"])


def test_slos_replace_those_of_the_experiment_and_take_texts_or_numbers():
    assert parse_slos(["ttft:200", "e2e:5e3"]) == parse_slos({"ttft": 200, "e2e": 5000.0}) == {"ttft": 200, "e2e": 5000}
    plan = searched_plan(GRID, Question(), slo=["e2e:5000"])
    assert {tuple(cell.slo[f"{name}_slo_s"] for name in SLOS) for cell in plan.cells} == {(None, None, 5.0, None)}


def test_warmup_and_cooldown_can_be_set(tmp_path):
    single = {**GRID, "scheduler": {"policy": "mixed", "max_running": 64}}
    found = find_goodput(single, **SEARCH, warmup=0.0, cooldown=0.1, **QUIET, out=tmp_path)
    assert set(found.df["attainment_requests"]) == {180}
    assert found.df.attrs["config"]["slo"]["cooldown"] == 0.1


# ---------------------------------------------------------------------------------------------------------- the tables


def test_tables_have_a_row_a_configuration_and_a_row_a_rate(tmp_path):
    found = find_goodput(
        {**GRID, "instance": {**GRID["instance"], "chip": ["h100-sxm", "t4"]}}, **SEARCH, **QUIET, out=tmp_path
    )
    df, probes = found.df, load(tmp_path, "probes")
    assert df.columns.tolist() == SCHEMAS["goodput"].names
    assert probes.columns.tolist() == SCHEMAS["probes"].names
    assert "request_rate_rps" not in df
    assert df["status"].tolist() == ["ok"] * 12 + ["infeasible"] * 12
    assert df["error"].str.startswith("the weights of llama-3.1-8b do not fit").sum() == 12
    assert df["cell_id"].is_unique
    assert found.counts["cells"] == 24
    assert sum(count for name, count in found.counts.items() if name != "cells") == 24
    assert len(probes) == found.probes
    for row in df[df["max_rate_rps"].notna()].itertuples():
        mine = probes[probes["cell_id"] == row.cell_id].set_index("request_rate_rps")
        assert mine.index.is_monotonic_increasing
        assert mine["asked"].sum() == row.probes
        assert (mine["met"] == (mine["attainment"] >= 0.9)).all()
        assert mine.loc[row.max_rate_rps, "attainment"] == row.attainment
        assert mine.loc[row.max_rate_rps, "output_throughput_tps"] == row.output_throughput_tps
        assert row.goodput_per_gpu_rps == row.max_rate_rps
    assert df.attrs["units"]["max_rate_rps"] == "requests/s"
    assert df.attrs["config"]["goodput"] == {
        "attainment": 0.9,
        "lo": 0.5,
        "hi": 40.0,
        "iters": 14,
        "find_upper": False,
        "joint": True,
    }
    facts = json.loads((tmp_path / "goodput.json").read_text())
    assert sum(round_["probes"] for round_ in facts["rounds"]) == found.probes


def test_rates_are_per_gpu(tmp_path):
    double = {**GRID, "instance": {**GRID["instance"], "tp": 2}, "scheduler": {"policy": "mixed", "max_running": 64}}
    df = find_goodput(double, **SEARCH, **QUIET, out=tmp_path).df
    assert (df["goodput_per_gpu_rps"] == df["max_rate_rps"] / 2).all()


def test_load_says_that_there_was_no_search(tmp_path):
    with pytest.raises(
        ValueError, match=r"is not a finished search: it has no goodput\.parquet; `servesweep goodput` writes"
    ):
        load(tmp_path, "goodput")


def test_few_requests_are_warned_of(tmp_path):
    found = find_goodput(GRID, **{**SEARCH, "iters": 0}, **QUIET, out=tmp_path)
    assert found.warnings == (
        "200 requests are few for a search: with fewer than 2,000 the rate found is largely chance (docs/goodput.md)",
    )
    enough = {**GRID, "workload": {**GRID["workload"], "n_requests": 2000}}
    assert find_goodput(enough, lo=1, hi=1, iters=0, **QUIET, out=tmp_path).warnings == ()


# --------------------------------------------------------------------------------------------------------- what fails


def test_a_failure_costs_only_its_configuration(tmp_path, monkeypatch):
    def explode(lanes, **options):
        if any(lane.policy == "chunked" and lane.num_blocks == 400 and lane.rate > 5 for lane in lanes):
            raise RuntimeError("injected")
        return run_systems(lanes, **options)

    whole = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path / "whole").df
    monkeypatch.setattr(tasks, "run_systems", explode)
    found = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path)
    failed = found.df["status"] == "failed"
    assert found.counts["failed"] == failed.sum() == 2
    assert set(found.failed["error"]) == {"RuntimeError: injected"}
    assert found.df.loc[~failed, "max_rate_rps"].tolist() == whole.loc[~failed, "max_rate_rps"].tolist()
    assert found.df.loc[failed, "ending"].isna().all()


def test_ctrl_c_keeps_the_rounds_that_ended(tmp_path, monkeypatch):
    rounds = iter(range(100))

    def interrupt(lanes, **options):
        if next(rounds) == 2:  # a batch a round: in the third
            raise KeyboardInterrupt
        return run_systems(lanes, **options)

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    with pytest.raises(
        SearchInterrupted, match=r"interrupted: 2 rounds ended; the rates found so far are in"
    ) as caught:
        find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path, look_ahead=1)
    df = load(tmp_path, "goodput")
    assert set(df["ending"]) <= {"interrupted", "lower_end_fails", "upper_end_passes"}
    open_ends = df[df["ending"] == "interrupted"]
    assert len(open_ends) > 6
    assert (open_ends["max_rate_rps"] < open_ends["next_rate_rps"]).all()
    assert load(tmp_path, "probes")["round"].max() == 2
    assert caught.value.found.counts["interrupted"] == len(open_ends)


def test_ctrl_c_in_the_first_round_writes_nothing(tmp_path, monkeypatch):
    def interrupt(lanes, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    with pytest.raises(SearchInterrupted, match="interrupted: 0 rounds ended; nothing was written"):
        find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo": ["tppt:50"]}, "slo 'tppt': is unknown; did you mean \"tpot\"?"),
        ({"slo": ["ttft=200"]}, "slo 'ttft=200': is unknown"),
        ({"slo": ["ttft:fast"]}, "slo ttft:fast: must be a positive number of milliseconds, as in ttft:200"),
        ({"slo": ["ttft:-1"]}, "slo ttft:-1: must be a positive number"),
        ({"slo": ["ttft:1", "ttft:2"]}, "slo 'ttft': is given twice"),
        ({"slo": []}, "slo: must be given, as --slo ttft:200 tpot:50"),
        ({"attainment": 90}, "attainment = 90: must be a share above 0 and at most 1"),
        ({"lo": 0}, "lo = 0: must be a rate from 1e-9 to 1e9"),
        ({"lo": 5, "hi": 2}, "lo = 5: must be at most hi, which is 2"),
        ({"iters": -1}, "iters = -1: must be a whole number from 0 to 1000"),
        ({"rel_tol": 0}, "rel_tol = 0: must be a number of at least 1e-9"),
        ({"rel_tol": 0.1, "iters": 3}, "iters = 3: has no effect with rel_tol"),
        ({"warmup": 2.0}, "warmup: slo.warmup = 2.0: must be"),
        (
            {"settings": ["request_rate_rps=3"]},
            "settings 'request_rate_rps=3': has no effect: the rate is searched for",
        ),
        ({"lo": 1e-307, "hi": 1}, "lo = 1e-307: must be a rate from 1e-9 to 1e9"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        find_goodput(GRID, **options, **QUIET, out=tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_search_without_an_slo_is_refused(tmp_path):
    bare = {key: value for key, value in GRID.items() if key != "slo"}
    with pytest.raises(ConfigError, match="config: slo: must be given, as --slo ttft:200 tpot:50, or by keys of"):
        find_goodput(bare, **QUIET, out=tmp_path)


def test_what_is_to_be_expected_of_other_systems():
    def rate(**system):
        table = {key: value for key, value in GRID.items() if key != "scheduler"}
        plan = searched_plan({**table, **system}, Question())
        return [expected_rate(cell.system(), averages(cell.traffic.workload)) for cell in plan.cells]

    (one,) = rate(system={"kind": "colocated"}, slo={"ttft_ms": 100})
    (four,) = rate(system={"kind": "colocated", "n_instances": 4}, slo={"ttft_ms": 100})
    assert four == pytest.approx(4 * one)
    assert rate(system={"kind": "disaggregated"}, slo={"ttft_ms": 100}) == [None]
    (prefill,) = rate(system={"kind": "prefill_only"}, slo={"ttft_ms": 100})
    (decode,) = rate(system={"kind": "decode_only"}, slo={"tpot_ms": 100})
    assert one < min(prefill, decode)
    assert averages(make_workload(0, 1.0, 100, 10)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint": "no"}, "joint = 'no': must be True or False"),
        ({"find_upper": 5}, "find_upper = 5: must be True or False"),
        ({"progress": "yes"}, "progress='yes': must be True or False"),
        ({"attainment": None}, "attainment = None: must be a share above 0 and at most 1"),
        ({"hi": None}, "hi = None: must be a rate from 1e-9 to 1e9"),
        ({"lo": 1e-300}, "lo = 1e-300: must be a rate from 1e-9 to 1e9"),
        ({"slo": 5}, "slo=5: must be limits in ms"),
        ({"slo": "ttft:200"}, "slo='ttft:200': must be limits in ms"),
        ({"slo": {"ttft": True}}, "slo ttft:True: must be a positive number of milliseconds"),
        ({"slo": {"ttft": 10**400}}, "must be a positive number of milliseconds"),
        ({"settings": 5}, "settings=5: must be a dict of keys and values, or a list"),
        ({"out": ""}, "out='': must be a path"),
        ({"out": 5}, "out=5: must be a path"),
        ({"trace": 5}, "trace=5: must be a path"),
    ],
)
def test_wrong_kinds_of_arguments(options, message, tmp_path):
    given = {"slo": ["ttft:60"], "progress": False, "out": tmp_path / "out", **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        find_goodput(GRID, **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [5, None, [], b"quickstart", ""])
def test_wrong_kinds_of_experiments(config, tmp_path):
    message = f"config={config!r}: must be a TOML file, the name of a ready experiment"
    for function in (run_grid, find_goodput):
        with pytest.raises(ConfigError, match=re.escape(message)):
            function(config, out=tmp_path)
    with pytest.raises(ConfigError, match="config: 5 is a key: keys must be texts"):
        run_grid({"workload": {5: 5}}, out=tmp_path)


def test_wrong_kinds_of_arguments_of_a_run(tmp_path):
    config = {**GRID, "workload": {**GRID["workload"], "request_rate_rps": 5}}
    for name in ("fresh", "retry_failed", "progress"):
        with pytest.raises(ValueError, match=f"{name}='no': must be True or False"):
            run_grid(config, out=tmp_path, **{name: "no"})
    for wrong in (5, None, b"run", ""):
        with pytest.raises(ValueError, match=re.escape(f"run_directory={wrong!r}: must be a path")):
            load(wrong)
    with pytest.raises(ValueError, match="systems=5: must be a list of systems"):
        run_systems(5)
    with pytest.raises(ValueError, match="step_log=5: must be a list of places of systems"):
        run_systems([], step_log=5)
    assert list(tmp_path.iterdir()) == []
