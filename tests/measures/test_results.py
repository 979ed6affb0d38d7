"""`Result`: built from arrays alone, its derived times, its frame, its errors."""

import subprocess
import sys

import numpy as np
import pytest
from servesweep.measures.columns import MEASURES
from servesweep.measures.metrics import attainment, percentile
from servesweep.measures.result import Result
from servesweep.measures.slo import SLO

ARRAYS = {
    "arrival_s": [0.0, 1.0, 2.0, 3.0],
    "prompt_tokens": [10, 20, 30, 40],
    "output_tokens": [1, 5, 3, 2],
    "first_token_s": [0.5, 1.5, np.nan, 3.5],
    "finish_s": [0.5, 3.5, np.nan, np.nan],
}


def test_derived_times():
    result = Result(**ARRAYS, admitted_s=[0.0, 1.25, np.nan, 3.0])
    np.testing.assert_array_equal(result.ttft_s, [0.5, 0.5, np.nan, 0.5])
    np.testing.assert_array_equal(result.tpot_s, [0.0, 0.5, np.nan, np.nan])  # one token: 0; not finished: NaN
    np.testing.assert_array_equal(result.e2e_s, [0.5, 2.5, np.nan, np.nan])
    np.testing.assert_array_equal(result.queue_delay_s, [0.0, 0.25, np.nan, 0.0])


def test_defaults_stand_for_not_known():
    result = Result(**ARRAYS)
    assert len(result) == 4
    assert np.isnan(result.kv_ready_s).all()
    assert np.isnan(result.admitted_s).all()
    assert result.preemptions.tolist() == [0] * 4
    assert result.rejected.tolist() == [False] * 4
    assert (result.steps, result.prefill_tokens, result.recomputed_tokens, result.peak_blocks) == (0, 0, 0, 0)
    summary = result.summary(slo=SLO(ttft_s=1.0), warmup=0, cooldown=0)
    for name in ("kv_utilization_mean", "kv_utilization_peak", "batch_size_mean", "utilization", "queue_delay_p50_s"):
        assert np.isnan(summary[name]), name


def test_a_run_that_only_prefills_has_ttft_and_no_more():
    result = Result(**(ARRAYS | {"finish_s": [np.nan] * 4}))
    assert attainment(result, ttft_slo=0.5, warmup=0, cooldown=0) == 0.75
    assert attainment(result, tpot_slo=9.0, warmup=0, cooldown=0) == 0.0
    assert percentile(result, "ttft", 50, warmup=0, cooldown=0) == 0.5
    assert np.isnan(percentile(result, "tpot", 50, warmup=0, cooldown=0))
    assert np.isnan(result.summary(slo=SLO(ttft_s=1.0))["request_throughput_rps"])


def test_summary_has_every_measure_as_a_python_number():
    summary = Result(**ARRAYS).summary(slo=SLO(ttft_s=0.5), warmup=0, cooldown=0)
    assert tuple(summary) == MEASURES
    assert {type(value) for value in summary.values()} == {float, int}
    assert summary["attainment"] == summary["ttft_attainment"] == 0.75
    assert summary["duration_s"] == 3.5
    assert summary["total_throughput_tps"] == 36 / 3.5


def test_frame_has_one_row_a_request_in_the_given_order():
    result = Result(**(ARRAYS | {"arrival_s": [3.0, 1.0, 2.0, 0.0]}), rejected=[False, False, True, False])
    frame = result.to_frame()
    assert frame["request"].tolist() == [0, 1, 2, 3]
    assert frame["arrival_s"].tolist() == [3.0, 1.0, 2.0, 0.0]
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_delay_s", "rejected", "preemptions", "kv_ready_s"):
        np.testing.assert_array_equal(frame[name], getattr(result, name))


def test_frame_has_the_columns_of_the_requests_table():
    from servesweep.tables.schemas import REQUESTS_SCHEMA

    assert ["cell_id", *Result(**ARRAYS).to_frame().columns] == REQUESTS_SCHEMA.names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finish_s": [1.0]}, r"finish_s has shape \(1,\): must have 4 entries as arrival_s"),
        ({"rejected": [False] * 5}, "rejected has shape"),
        ({"arrival_s": 1.0}, r"arrival_s has shape \(\): must be one-dimensional"),
        ({"first_token_s": None}, "first_token_s=None: must be an array of 4 entries"),
    ],
)
def test_arrays_must_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        Result(**(ARRAYS | changes))


def test_repr_is_one_line():
    result = Result(**ARRAYS, steps=7, rejected=[False, False, True, False])
    assert repr(result) == "Result(4 requests, 2 finished, 1 rejected, 7 steps)"


def test_importing_results_does_not_import_pandas_or_pyarrow():
    modules = "sys, servesweep.measures.metrics, servesweep.measures.result"
    code = f"import {modules}; print({{'pandas', 'pyarrow'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
