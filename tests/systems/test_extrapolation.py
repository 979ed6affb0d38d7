"""Steps beyond what step times were measured for are told of once a system, with how far."""

import warnings

import numpy as np
import pytest
import servesweep as ss
from servesweep.serving.extrapolation import MOST_TOLD, _most_at_once

RANGE = {"source": "mine.csv", "steps": 9, "median_error": 0.0, "p95_error": 0.0}


def steps(decodes=1000, context=10**7, prefill=10**5):
    measured = ss.MeasuredSteps(
        **RANGE,
        most_decodes=decodes,
        most_context_tokens=context,
        most_prefill_tokens=prefill,
        most_tokens=prefill,
    )
    return ss.TableStepTimes([(1, 0.01), (1000, 0.02)], measured=measured)


def scheduler(step, n=20):
    traffic = ss.Workload(np.zeros(n), np.full(n, 100), np.full(n, 50))
    return ss.Scheduler(traffic, step, policy="chunked", max_running=64, token_budget=512)


def told(systems):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ss.run_systems(systems)
    return [str(one.message) for one in caught]


def test_within_the_range_nothing_is_told():
    assert told([scheduler(steps()), scheduler(ss.ConstantStepTime(0.1))]) == []


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (steps(decodes=8), "up to 20 decoding requests in a step, measured were at most 8, 2.5 times as many"),
        (steps(context=1500), "up to 3,000 tokens in caches in a step, measured were at most 1,500, 2 times as many"),
        (steps(prefill=128), "up to 512 prompt tokens in a step, measured were at most 128, 4 times as many"),
        (steps(prefill=0), "up to 512 prompt tokens in a step, measured were at most 0"),
    ],
)
def test_how_far_is_told_once(step, message):
    assert told([scheduler(steps()), scheduler(step)]) == [f"system 1: steps are extrapolated: {message}"]


def test_of_many_systems_the_first_are_told():
    found = told([scheduler(steps(decodes=8))] * (MOST_TOLD + 3))
    assert len(found) == MOST_TOLD + 1
    assert found[-1] == "... and 3 more go beyond what their step times were measured for"


def test_each_role_has_its_own_steps():
    traffic = ss.Workload(np.zeros(20), np.full(20, 100), np.full(20, 50))
    # Prefill instances decode nothing; two decode instances have ten requests each.
    assert told([ss.Disaggregated(traffic, steps(decodes=1), steps(prefill=1, decodes=10), n_decode=2)]) == []
    (text,) = told([ss.Disaggregated(traffic, steps(prefill=50), steps(decodes=9), n_decode=2)])
    assert "2,000 prompt tokens" in text
    assert "10 decoding requests" in text


def test_most_at_once():
    begin, end = np.array([0.0, 1.0, 2.0, np.nan]), np.array([2.0, 3.0, 4.0, 5.0])
    assert _most_at_once(begin, end, np.array([1.0, 10.0, 100.0, 1e9])) == 110


def test_sweeps_and_searches_tell_of_each_cell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ss.save_step_times(steps(decodes=2), "mine.toml")
    config = {
        "workload": {"n_requests": 60, "request_rate_rps": [0.01, 5.0]},
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm", "step_times": "mine.toml"},
        "scheduler": {"policy": "chunked", "max_running": 32},
        "slo": {"ttft_ms": 2000},
    }
    with pytest.warns(UserWarning, match="extrapolated") as caught:
        run = ss.run_grid(config, workers=1, out="run", progress=False)
    cell = run.df.set_index("request_rate_rps").cell_id[5.0]
    texts = [str(one.message) for one in caught]
    assert [text for text in texts if "extrapolated" in text and text.startswith(f"cell {cell}: ")] == texts
    assert len(texts) == 1
    found = ss.find_goodput(config, workers=1, out="search", progress=False)
    (line,) = [line for line in found.warnings if "extrapolated" in line]
    assert "at the rate found: steps are extrapolated: up to" in line
