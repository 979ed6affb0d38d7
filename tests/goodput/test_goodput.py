"""The search for goodput: the numbers of `max_rate` on each configuration alone, SLOs, and its tables."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from goodput_cases import GRID, QUIET, SEARCH, searched
from hypothesis import given, settings
from hypothesis import strategies as st
from servesweep import SLO, attainment, find_goodput, load, max_rate, run_systems
from servesweep.goodput.options import GoodputOptions
from servesweep.goodput.search import searched_plan
from servesweep.measures.slo import SLOS
from servesweep.tables.schemas import SCHEMAS


def alone(cell, options):
    """The answer of one configuration, simulated rate by rate on its own, by the public functions alone."""
    slo = SLO(ttft_s=cell.slo["ttft_slo_s"], tpot_s=cell.slo["tpot_slo_s"])

    def run(rate):
        result = run_systems([replace(cell.system(), rate=rate)]).result(0)
        return attainment(result, slo=slo)

    return max_rate(run, options.attainment, options.lo, options.hi, 14 if options.iters is None else options.iters)


@pytest.fixture(scope="module")
def alones():
    options = GoodputOptions(**SEARCH)
    return [alone(cell, options) for cell in searched_plan(GRID, options).cells]


# -------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", [None, 1, 2, 7])
def test_the_rates_are_those_of_each_configuration_alone(alones, tmp_path, look_ahead):
    found = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path, look_ahead=look_ahead)
    assert found.df["max_rate_rps"].fillna(0.0).tolist() == alones
    assert len(set(alones)) > 6  # a grid whose cells all agreed would show little


@given(st.sampled_from([0.5, 0.9, 0.99]), st.floats(0.1, 5), st.floats(1, 20), st.integers(0, 12), st.integers(1, 9))
@settings(max_examples=6)
def test_any_interval_and_target(tmp_path_factory, target, lo, wide, iters, look_ahead):
    small = {**GRID, "workload": {**GRID["workload"], "n_requests": 60}, "slo": {"ttft_ms": 100, "tpot_ms": 10}}
    options = GoodputOptions(attainment=target, lo=lo, hi=lo * wide, iters=iters)
    expected = [alone(cell, options) for cell in searched_plan(small, options).cells]
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


@pytest.mark.process
def test_the_answer_does_not_depend_on_workers_batches_or_looking_ahead(tmp_path):
    ways = [{}, {"workers": 2}, {"max_batch_cells": 5}, {"look_ahead": 4, "workers": 2, "max_batch_cells": 7}]
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


# ------------------------------------------------------------------------------------------------- SLOs and attainment


def test_every_slo_counts_and_each_alone_is_a_column(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 60, "tpot_ms": 10, "e2e_ms": 900, "itl_max_ms": 60})
    own = [row[f"{name}_attainment"] for name in SLOS]
    assert row["attainment"] <= min(own)
    assert [row[f"{name}_slo_s"] for name in SLOS] == [0.06, 0.01, 0.9, 0.06]
    probes = load(tmp_path, "probes")
    above = probes[probes["request_rate_rps"] == row["next_rate_rps"]].iloc[0]
    assert above[f"{row['binding_slo']}_attainment"] == min(above[f"{name}_attainment"] for name in SLOS)


def test_without_joint_each_slo_is_met_on_its_own(tmp_path):
    slo = {"ttft_ms": 35, "tpot_ms": 9}
    joint = searched(tmp_path / "joint", slo, {"hi": 200.0})
    apart = searched(tmp_path / "apart", slo, {"joint": False, "hi": 200.0})
    singles = [searched(tmp_path / name, {name: limit}, {"hi": 200.0}) for name, limit in slo.items()]
    assert apart["max_rate_rps"] == min(single["max_rate_rps"] for single in singles)
    assert joint["max_rate_rps"] < apart["max_rate_rps"]
    assert apart["attainment"] == min(apart["ttft_attainment"], apart["tpot_attainment"])


@pytest.mark.parametrize("slo", [{"e2e_ms": 5e3}, {"e2e_ms": 5000, "ttft_ms": None}, SLO(e2e_s=5.0)])
def test_slos_replace_those_of_the_experiment_in_milliseconds_or_seconds(slo):
    plan = searched_plan(GRID, GoodputOptions(), slo=slo)
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
        "200 requests are few for a search: with fewer than 2,000 the rate found is largely chance "
        "(docs/goodput-endings.md)",
    )
    enough = {**GRID, "workload": {**GRID["workload"], "n_requests": 2000}}
    assert find_goodput(enough, lo=1, hi=1, iters=0, **QUIET, out=tmp_path / "enough").warnings == ()
