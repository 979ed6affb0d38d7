"""Measures: golden results, the plain definitions, and percentiles to the bit."""

import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_measures import EXACT, batch, plain_measures, random_result, same
from servesweep.measures import columns
from servesweep.measures.columns import MEASURES, measures
from servesweep.measures.latencies import LATENCIES, PERCENTILES
from servesweep.measures.metrics import attainment, percentile
from servesweep.measures.result import Result, one_system
from servesweep.measures.slo import SLO
from servesweep.measures.window import row_means, row_percentiles

GOLDEN = Path(__file__).parents[1] / "golden" / "serving"
RUNS = [path for path in sorted(GOLDEN.glob("*.json")) if "attainment_whole_run" in path.read_text()]


# ---------------------------------------------------------------------------------------------------- golden results


def golden_result(path: Path) -> tuple[Result, dict]:
    case = json.loads(path.read_text())
    inputs, outputs = case["inputs"], case["outputs"]
    times = {name: np.array(outputs[name], dtype=float) for name in ("first_token_s", "finish_s", "kv_ready_s")}
    return Result(inputs["arrival_s"], inputs["prompt_tokens"], inputs["output_tokens"], **times), outputs


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_golden_attainment_and_percentiles(path):
    result, expected = golden_result(path)
    slo = expected["slo"]
    assert attainment(result, slo["ttft_s"], slo["tpot_s"]) == expected["attainment"]
    assert attainment(result, slo["ttft_s"]) == expected["attainment_ttft_only"]
    assert attainment(result, slo["ttft_s"], slo["tpot_s"], warmup=0, cooldown=0) == expected["attainment_whole_run"]
    for name in ("ttft", "tpot"):
        for q in (50, 99):
            if f"{name}_p{q}_s" in expected:
                assert percentile(result, name, q) == expected[f"{name}_p{q}_s"]


def test_golden_results_are_there():
    assert len(RUNS) >= 4


def measured_alone(result, limits, warmup, cooldown, n_gpus):
    """Every measure of one result, as Python numbers; unlike in an SLO, a limit may be 0 or infinite."""
    found = measures(one_system(result), limits=limits, warmup=warmup, cooldown=cooldown, n_gpus=n_gpus)
    return {name: column[0].item() for name, column in found.items()}


slos = st.none() | st.sampled_from([0.0, 0.1, 0.5, 2.0, math.inf])
shares = st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9])


@given(
    st.integers(0, 2**32),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
    slos,
    slos,
    slos,
    shares,
    shares,
    st.integers(1, 8),
)
def test_measures_are_the_plain_definitions(
    seed, n, shuffled, ticks, ttft_slo, tpot_slo, e2e_slo, warmup, cooldown, n_gpus
):
    result = random_result(np.random.default_rng(seed), n, shuffled=shuffled, ticks=ticks)
    limits = {name: x for name, x in (("ttft", ttft_slo), ("tpot", tpot_slo), ("e2e", e2e_slo)) if x is not None}
    summary = measured_alone(result, limits, warmup, cooldown, n_gpus)
    expected = plain_measures(result, {"ttft": ttft_slo, "tpot": tpot_slo, "e2e": e2e_slo}, warmup, cooldown, n_gpus)
    assert tuple(summary) == tuple(expected) == MEASURES
    for name, value in expected.items():
        if name in EXACT or isinstance(value, int):
            assert same(summary[name], value), name
        else:
            assert summary[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True), name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing is checked
        limits.pop("e2e", None)
        both = measured_alone(result, limits, warmup, cooldown, 1)["attainment"]
        assert same(attainment(result, ttft_slo, tpot_slo, warmup, cooldown), both)
        if all(0 < limit < math.inf for limit in limits.values()):
            slo = SLO(ttft_s=ttft_slo, tpot_s=tpot_slo)
            assert same(attainment(result, warmup=warmup, cooldown=cooldown, slo=slo), both)
            if e2e_slo is None or 0 < e2e_slo < math.inf:
                slo = SLO(ttft_s=ttft_slo, tpot_s=tpot_slo, e2e_s=e2e_slo)
                public = result.summary(slo=slo, warmup=warmup, cooldown=cooldown, n_gpus=n_gpus)
                assert public.keys() == summary.keys()
                assert all(same(public[name], value) for name, value in summary.items())
    for name in LATENCIES:
        for q in PERCENTILES:
            assert same(percentile(result, name, q, warmup=warmup, cooldown=cooldown), summary[f"{name}_p{q}_s"])


@given(st.integers(0, 2**32), st.lists(st.integers(0, 25), min_size=1, max_size=8), st.integers(1, 60))
def test_a_system_is_alone_in_its_batch(seed, lengths, chunk):
    rng = np.random.default_rng(seed)
    results = [random_result(rng, n, shuffled=rng.random() < 0.3, ticks=rng.random() < 0.3) for n in lengths]
    ttft, tpot = (np.where(rng.random(len(results)) < 0.3, np.nan, rng.random(len(results))) for _ in range(2))
    gpus = rng.integers(1, 5, len(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_CHUNK_ELEMENTS", chunk)
        limits = {"ttft": ttft, "tpot": tpot}
        together = measures(batch(results), limits=limits, warmup=0.2, cooldown=0.1, n_gpus=gpus)
    for at, result in enumerate(results):
        slo = SLO(*(None if np.isnan(x[at]) else x[at] for x in (ttft, tpot)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where nothing is checked
            alone = result.summary(slo=slo, warmup=0.2, cooldown=0.1, n_gpus=gpus[at])
        for name in MEASURES:
            assert same(together[name][at].item(), alone[name]), name


def test_measures_leave_the_results_alone():
    lanes = batch([random_result(np.random.default_rng(3), n, shuffled=n == 7) for n in (7, 20)])
    arrays = {name: value for name, value in vars(lanes).items() if isinstance(value, np.ndarray)}
    before = {name: value.copy() for name, value in arrays.items()}
    for value in arrays.values():
        value.flags.writeable = False
    found = measures(lanes, limits={"ttft": 1.0}, warmup=0.2, cooldown=0.2, n_gpus=1)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(lanes, name), value)
    assert {name: column.dtype.kind for name, column in found.items() if column.dtype.kind != "f"} == dict.fromkeys(
        (
            "attainment_requests",
            "preemptions",
            "cached_tokens",
            "recomputed_tokens",
            "prefill_tokens",
            "peak_blocks",
            "steps",
            "finished",
            "rejected",
        ),
        "i",
    )


def test_no_systems_give_empty_columns():
    empty = random_result(np.random.default_rng(0), 5)
    others = {"instances": None, "itl_max_s": None, "itl_counts": None, "counters": {}}
    arrays = {name: value[:0] for name, value in vars(batch([empty])).items() if name not in others}
    lanes = SimpleNamespace(**arrays, **others)
    found = measures(lanes, limits={}, warmup=0.2, cooldown=0.2, n_gpus=1)
    assert tuple(found) == MEASURES
    assert {column.shape for column in found.values()} == {(0,)}


# ---------------------------------------------------------------------------------------------- percentiles, to the bit


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 1201])
def test_row_percentiles_are_numpys_to_the_bit(n):
    rng = np.random.default_rng(n)
    rows = rng.lognormal(0, 3, (200, n))
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[0] = np.nan
    rows[1] = 0.1
    q = np.concatenate([[0, 50, 90, 95, 99, 100], rng.random(20) * 100])
    ordered = np.sort(rows, axis=1)
    count = np.count_nonzero(~np.isnan(ordered), axis=1)
    found = row_percentiles(ordered, count, q)
    for row, points in zip(rows, found, strict=True):
        have = row[~np.isnan(row)]
        expected = np.percentile(have, q) if len(have) else np.full(len(q), np.nan)
        assert points.tobytes() == expected.tobytes()


def test_row_means_do_not_depend_on_padding():
    rows = np.random.default_rng(1).lognormal(0, 2, (50, 300))
    wide = np.concatenate([rows, np.full((50, 1000), np.nan)], axis=1)
    count = np.full(50, 300)
    assert row_means(rows, count).tobytes() == row_means(wide, count).tobytes()
    np.testing.assert_allclose(row_means(rows, count), rows.mean(axis=1), rtol=1e-13)
