"""Calibration: known constants come back, what cannot be told is named, and a real run is met."""

import json
from pathlib import Path

import benchmark_files as made
import numpy as np
import pytest
import servesweep as ss
from servesweep.calibration.constants import FITTED
from servesweep.calibration.searching import bounded_step
from servesweep.commands.main import command_line

LLAMA, H100 = ss.model("llama-3.1-8b"), ss.chip("h100-sxm")
START = ss.OperatorStepModel(LLAMA, H100)
TRUE = {"mfu": 0.6, "mbu": 0.7, "mbu_attention": 0.6, "mfu_attention": 0.3, "sequence_s": 2e-5}
OUTSIDE = 0.006
SHARED = Path(__file__).parents[3] / "shared/measured/llmservingsim_vllm_RTX4090_Llama-3.1-8B_requests.jsonl"


def runs(step, rates, requests, outside=OUTSIDE):
    return [
        made.simulated_run(step, ss.conversation_workload(requests, rate=rate, seed=i), outside, f"{rate:g}")
        for i, rate in enumerate(rates)
    ]


@pytest.mark.slow
def test_known_constants_come_back_within_a_percent():
    measured = runs(ss.OperatorStepModel(LLAMA, H100, **TRUE), (1.0, 10.0, 50.0), 400)
    found = ss.calibrate(measured, START, fit=[*TRUE, "first_token_s"])
    for one in found.constants:
        assert one.value == pytest.approx({**TRUE, "first_token_s": OUTSIDE}[one.name], rel=0.01), one
        assert one.told or "cannot be told from" in one.remark
    assert {one.name for one in found.constants if one.told} >= {"mfu", "mbu", "mbu_attention", "first_token_s"}
    assert max(map(abs, found.worst_error.values())) < 0.002
    assert found.step.mfu == pytest.approx(0.6, rel=0.01)


def test_few_constants_from_few_requests():
    true = ss.OperatorStepModel(LLAMA, H100, mfu=0.5, mbu=0.7)
    measured = runs(true, (2.0, 20.0), 60, outside=0.0)
    found = ss.calibrate(measured, START, fit=["mfu", "mbu"], candidates=64)
    for one in found.constants:
        assert one.told
        assert one.value == pytest.approx(getattr(true, one.name), rel=0.01)
    assert {error.n for error in found.errors} == {30}
    before = {(error.run, error.measure): abs(error.mean_before) for error in found.errors}
    assert min(before.values()) > 0.02
    again = ss.calibrate(measured, START, fit=["mfu", "mbu"], candidates=64)
    assert again.constants == found.constants  # the same seed, the same answer


def test_what_cannot_be_told_is_named():
    """One request after the other, all alike: all that decides a step is one sum."""
    n = 20
    alike = ss.Workload(5.0 * np.arange(n), np.full(n, 500), np.full(n, 50))
    measured = made.simulated_run(ss.OperatorStepModel(LLAMA, H100, mbu=0.7, overhead_s=1e-3), alike)
    found = ss.calibrate([measured], START, candidates=128)
    told = {one.name: one for one in found.constants}
    for name in ("mbu", "overhead_s", "sequence_s", "mbu_attention"):
        assert not told[name].told, told[name]
    assert "overhead_s" in told["mbu"].remark
    assert max(map(abs, found.worst_error.values())) < 0.01  # the sum is right all the same


def test_runs_can_be_held_out_whole():
    measured = runs(ss.OperatorStepModel(LLAMA, H100, mfu=0.5), (3.0, 10.0, 20.0), 40)
    found = ss.calibrate(measured, START, fit=["mfu"], hold_out="runs", candidates=64)
    assert [mask.all() for mask in found.held_out] == [False, True, False]
    assert {error.run for error in found.errors if error.requests == "held out"} == {"10"}
    with pytest.raises(ValueError, match="at least two runs"):
        ss.calibrate(measured[:1], START, hold_out="runs")


def test_all_reduces_are_looked_for_where_there_are_any():
    step = ss.OperatorStepModel(LLAMA, H100, tp=4, allreduce_s=3e-5)
    start = ss.OperatorStepModel(LLAMA, H100, tp=4)
    found = ss.calibrate(runs(step, (5.0, 50.0), 60), start, fit=["allreduce_s"], candidates=64, first_token_s=OUTSIDE)
    assert found.constants[0].value == pytest.approx(3e-5, rel=0.01)
    with pytest.raises(ValueError, match="has no effect with tp=1"):
        ss.calibrate(runs(START, (5.0,), 20), START, fit=["allreduce_s"])


@pytest.mark.parametrize("one", FITTED, ids=lambda one: one.name)
def test_places_and_values(one):
    for value in (one.low, 0.3 * one.low + 0.7 * one.high, one.high):
        assert float(one.value(one.place(value))) == pytest.approx(value)
    ss.OperatorStepModel(LLAMA, H100, **({one.name: one.low} if one.name != "first_token_s" else {}))


def test_steps_stay_within_bounds():
    matrix = np.array([[2.0, 1.9], [1.9, 2.0]])
    assert bounded_step(matrix, np.array([2.0, 1.9]), np.full(2, -5.0), np.full(2, 5.0)) == pytest.approx([1, 0])
    assert bounded_step(matrix, np.array([2.0, 1.9]), np.full(2, -5.0), np.full(2, 0.5)) == pytest.approx([0.5, 0.475])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fit": ["mfx"]}, "fit='mfx': must be names of mfu"),
        ({"fit": []}, "at least one"),
        ({"candidates": 10}, "candidates=10: must be an integer of at least 64"),
        ({"hold_out": "half"}, "hold_out='half': must be one of requests, runs"),
        ({"num_blocks": 10}, "can never fit the KV memory: num_blocks"),
        ({"policy": "chunkd"}, "policy='chunkd'"),
        ({"step": 3}, "step=3: must be an OperatorStepModel"),
        ({"benchmarks": "bench.json"}, "benchmarks='bench.json': must be a list"),
    ],
)
def test_what_is_refused(arguments, message):
    given = {"benchmarks": runs(START, (5.0,), 20), "step": START} | arguments
    with pytest.raises(ValueError, match=r".") as caught:
        ss.calibrate(given.pop("benchmarks"), given.pop("step"), **given)
    assert message in str(caught.value)


def test_the_command_writes_a_profile_that_can_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (run,) = runs(ss.OperatorStepModel(LLAMA, H100, mfu=0.5), (10.0,), 40)
    columns = (run.arrival_s, run.prompt_tokens, run.output_tokens, run.first_token_s, run.finish_s)
    rows = ["arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"]
    rows += [",".join(map(repr, (a.item() for a in row))) for row in zip(*columns, strict=True)]
    Path("bench.csv").write_text("\n".join(rows), encoding="utf-8")
    command = ["calibrate", "bench.csv", "--model", "llama-3.1-8b", "--chip", "h100-sxm", "--fit", "mfu,first_token_s"]
    assert command_line([*command, "--candidates", "64"]) == 0
    printed = capsys.readouterr().out
    assert "On requests that were not used, means are off by TTFT" in printed
    assert ": all within 3 %" in printed
    folder = Path("results/calibration")
    names = ["calibration.json", *(f"measured-simulated.{end}" for end in ("csv", "png", "svg")), "profile.toml"]
    assert sorted(path.name for path in folder.iterdir()) == names
    step = ss.load_step_times(folder / "profile.toml")
    assert step.mfu == pytest.approx(0.5, rel=0.02)
    assert step.first_token_s == pytest.approx(OUTSIDE, rel=0.1)
    report = json.loads((folder / "calibration.json").read_text("utf-8"))
    assert report["reached"]
    assert report["runs"] == [{"name": "bench.csv", "format": "CSV", "requests": 40, "skipped": 0}]
    assert command_line(["calibrate", "none.csv", "--model", "llama-3.1-8b", "--chip", "h100-sxm"]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_run_is_met_on_requests_that_were_not_used(tmp_path, monkeypatch, capsys):
    if not SHARED.exists():
        pytest.skip("the run of vLLM on an RTX 4090 is not at hand")
    monkeypatch.chdir(tmp_path)
    command = ["calibrate", str(SHARED), "--model", "llama-3.1-8b", "--chip", "rtx4090", "--num-blocks", "2588"]
    assert command_line([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    held = [error for error in report["errors"] if error["requests"] == "held out"]
    assert report["reached"]
    assert max(abs(error["mean"]) for error in held) < 0.03


@pytest.mark.parametrize(
    "server",
    [
        {"policy": "vllm", "async_scheduling": True},
        {"policy": "mixed", "token_budget": None, "block_size": None},
        {"policy": "prefill_first", "token_budget": None, "max_tokens": 1024, "max_running": 8},
    ],
    ids=lambda server: server["policy"],
)
def test_other_servers(server):
    true = ss.OperatorStepModel(LLAMA, H100, mfu=0.5)
    run = made.simulated_run(true, ss.conversation_workload(30, rate=10.0), OUTSIDE, **server)
    start = ss.OperatorStepModel(LLAMA, H100, first_token_s=OUTSIDE)
    found = ss.calibrate([run], start, fit=["mfu"], candidates=64, **server)
    assert found.constants[0].value == pytest.approx(0.5, rel=0.01)
    assert found.step.first_token_s == OUTSIDE
    assert found.server["policy"] == server["policy"]
