"""`first_token_s`: time outside the engine, part of TTFT and of end-to-end latency and of nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import servesweep as ss
from servesweep.serving.early_stop import EarlyStopCriterion, EarlyStopRequest
from servesweep.serving.reference_answers import answer
from servesweep.serving.run import run_quietly

LLAMA, H100 = ss.model("llama-3.1-8b"), ss.chip("h100-sxm")
STEP = ss.OperatorStepModel(LLAMA, H100)
LATE = replace(STEP, first_token_s=0.125)
FLAT = ss.TableStepTimes([(0, 0.01), (100, 0.02)])
TRAFFIC = ss.conversation_workload(80, rate=20.0, seed=3)


def systems_with(step):
    return {
        "scheduler": ss.Scheduler(TRAFFIC, step, policy="chunked", token_budget=64, max_running=16, block_size=16),
        "colocated": ss.Colocated(TRAFFIC, step, n_instances=2, policy="prefill_first"),
        "disaggregated": ss.Disaggregated(TRAFFIC, step, STEP, n_prefill=2, n_decode=2),
        "prefill_only": ss.PrefillOnly(TRAFFIC, step, n_instances=2),
        "decode_only": ss.DecodeOnly(TRAFFIC, step, n_instances=2),
    }


@pytest.mark.parametrize("kind", list(systems_with(STEP)))
def test_it_is_part_of_two_latencies_and_delays_nobody(kind):
    both = ss.run_systems([systems_with(STEP)[kind], systems_with(LATE)[kind]])
    without, late = both.result(0), both.result(1)
    for name in ("admitted_s", "first_token_s", "finish_s", "kv_ready_s"):
        np.testing.assert_array_equal(getattr(late, name), getattr(without, name), err_msg=name)
    more = 0.0 if kind == "decode_only" else 0.125
    np.testing.assert_array_equal(late.ttft_s, without.ttft_s + more)
    np.testing.assert_array_equal(late.e2e_s, without.e2e_s + more)
    for name in ("tpot_s", "queue_delay_s", "kv_transfer_s"):
        np.testing.assert_array_equal(getattr(late, name), getattr(without, name))
    slo = ss.SLO(ttft_s=0.2)
    summary = late.summary(slo=slo)
    window = slice(16, 64)
    if kind != "decode_only":
        assert summary["attainment"] == np.mean(without.ttft_s[window] + more <= 0.2)
        assert summary["ttft_p50_s"] == pytest.approx(np.median(without.ttft_s[window]) + more)


@pytest.mark.parametrize("kind", ["scheduler", "colocated", "disaggregated"])
def test_clients_of_the_reference_wait_as_long(kind):
    system = systems_with(LATE)[kind]
    result = ss.run_systems([system]).result(0)
    due = np.array([(one.first_token, one.finish) for one in answer(system)]) - TRAFFIC.arrival_s[:, None] + 0.125
    np.testing.assert_allclose(np.stack([result.ttft_s, result.e2e_s], axis=1), due, rtol=1e-9)


def test_searches_that_stop_early_count_it():
    traffic = ss.conversation_workload(400, rate=1.0, seed=1)
    rates = np.linspace(2, 40, 12)
    options = {"policy": "mixed", "max_running": 64, "block_size": 16}
    systems = [ss.Scheduler(traffic, step, rate=rate, **options) for rate in rates for step in (STEP, LATE)]
    limits = {"ttft": np.full(24, 0.17), "e2e": np.full(24, 4.0)}
    ask = EarlyStopRequest(EarlyStopCriterion(0.9, 0.2, 0.2, True), limits, np.ones(24, bool), np.ones(24, bool))
    stopped = run_quietly(systems, early_stop=ask).early_stop
    whole = run_quietly(systems)
    assert stopped.stopped.sum() > 5
    passes = [whole.result(i).summary(slo=ss.SLO(ttft_s=0.17, e2e_s=4.0))["attainment"] >= 0.9 for i in range(24)]
    assert passes[::2] != passes[1::2]
    for i in np.flatnonzero(stopped.stopped):
        assert (stopped.attainment[i] >= 0.9) == passes[i], i


def test_tables_have_it_too_and_files_keep_it(tmp_path):
    flat = replace(FLAT, first_token_s=0.004)
    result = ss.run_scheduler(TRAFFIC, flat, policy="mixed", max_running=8)
    assert result.outside_s == 0.004
    assert flat.content_id != FLAT.content_id
    for step in (flat, LATE):
        ss.save_step_times(step, tmp_path / "step.toml")
        assert ss.load_step_times(tmp_path / "step.toml") == step
    with pytest.raises(ValueError, match="first_token_s=-1: must be"):
        replace(FLAT, first_token_s=-1)


def test_experiments_say_it_for_an_instance_or_a_role(tmp_path):
    ss.save_step_times(FLAT, tmp_path / "flat.toml")
    config = {
        "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 20, "request_rate_rps": 1},
        "instance": {
            **{"model": "llama-3.1-8b", "chip": "h100-sxm", "first_token_s": [0.004, 0.25]},
            "step_times": ["operators", "roofline", str(tmp_path / "flat.toml")],
        },
    }
    df = ss.run_grid(config, out=tmp_path / "run", progress=False).df
    found = df.set_index(["step_times", "first_token_s"])["ttft_p50_s"]
    assert len(found) == 5
    for step in ("operators", "flat.toml"):
        assert found[step, 0.25] - found[step, 0.004] == pytest.approx(0.246)
    assert df.loc[df["step_times"] == "roofline", "first_token_s"].isna().all()
    config["system"] = {"kind": "disaggregated"}
    config["prefill_instance"], config["scheduler"] = {"first_token_s": 0.5}, {"memory": "reserve"}
    config["instance"] |= {"step_times": "operators", "first_token_s": 0.004}
    df = ss.run_grid(config, out=tmp_path / "run2", progress=False).df
    assert df["ttft_p50_s"].min() > 0.5
    assert (df["prefill_first_token_s"].item(), df["decode_first_token_s"].item()) == (0.5, 0.004)
