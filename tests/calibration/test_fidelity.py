"""How far predictions are off: on small files made up here, and on the measurements where they are at hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import servesweep as ss
from servesweep.calibration import fidelity
from servesweep.commands.main import command_line

SHARED = Path(__file__).parents[3] / "shared/measured"
LLAMA, H100 = ss.model("llama-3.1-8b"), ss.chip("h100-sxm")
ALONE = {"overhead_s": 0.0, "sequence_s": 0.0}


def kernels(path, factor):
    """Steps that take `factor` times what operators say."""
    lines = [",".join(fidelity.KERNELS)]
    for tp, latency in ((1, None), (2, 8e-6)):
        step = ss.OperatorStepModel(LLAMA, H100, tp=tp, allreduce_s=latency, **ALONE)
        for batch, each in ((1, 500), (8, 100), (64, 2000)):
            times = {"decode": step.decode_time(batch, batch * each), "prefill": step.prefill_time([each] * batch)}
            lines += [f"h100-sxm,llama-3.1-8b,{tp},{kind},{batch},{each},{factor * s!r}" for kind, s in times.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def steps(path):
    """Steps of operators with noise of a percent."""
    rng, step = np.random.default_rng(1), ss.OperatorStepModel(LLAMA, H100)
    lines = ["decodes,context_tokens,prefill_tokens,prefill_done_tokens,prefill_pairs,step_s"]
    for b in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64):
        for n in (0, 64, 512):
            pairs = n * (n + 1) // 2
            s = step.step_time(b, 600 * b, n, pairs, 0, b + (n > 0)) * rng.normal(1, 0.01)
            lines.append(f"{b},{600 * b},{n},0,{pairs},{s!r}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_kernels_are_compared_by_chip_and_those_held_out_apart(tmp_path):
    rows = fidelity.kernel_fidelity(kernels(tmp_path / "k.csv", 1.25))
    found = {(row.what, row.step_times): row for row in rows}
    every, held = found["kernels", "operators"], found["kernels held out", "operators"]
    assert (every.number, held.number) == (12, 6)
    assert every.median == every.p95 == pytest.approx(20)
    assert (held.bar, held.bar_p95, every.bar) == (3.0, 25.0, None)
    assert fidelity.missed(rows) == [held]
    assert found["kernels held out", "roofline"].bar is None


def test_steps_and_runs_are_predicted_by_halves_that_were_not_seen(tmp_path):
    path = steps(tmp_path / "s.csv")
    even, odd, operators = fidelity.step_fidelity(path, "llama-3.1-8b", "h100-sxm")
    assert (even.number, odd.number, operators.number) == (15, 15, 30)
    assert 0.3 < operators.median < 1.5
    assert max(even.median, odd.median) < 10
    traffic = ss.conversation_workload(60, rate=5.0)
    step = ss.OperatorStepModel(LLAMA, H100, first_token_s=0.002)
    options = {"max_running": 256, "token_budget": 2048, "block_size": 16, "num_blocks": 5000}
    run = ss.run_scheduler(traffic, step, policy="vllm", **options)
    table = {name: getattr(run, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", "finish_s")}
    pd.DataFrame({**table, "first_token_s": run.first_token_s}).to_csv(tmp_path / "r.csv", index=False)
    rows = fidelity.run_fidelity(tmp_path / "r.csv", "llama-3.1-8b", "h100-sxm", steps=path, num_blocks=5000)
    assert [row.step_times for row in rows[::3]] == ["operators", "roofline", "measured steps"]
    assert [abs(row.median) < 0.01 for row in rows[:3]] == [True] * 3
    assert all(abs(row.median) > 1 for row in rows[3:6])


def test_the_command_prints_a_table_and_writes_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = kernels(tmp_path / "k.csv", 1.01)
    assert command_line(["validate", "--kernels", "k.csv"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 bars are reached." in out
    assert len(pd.read_parquet("results/fidelity/fidelity.parquet")) == 4
    assert command_line(["validate", "--kernels", "k.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missed"] == []
    assert command_line(["validate"]) == 2
    assert "--kernels, --steps or --run must name a file" in capsys.readouterr().err
    text = path.read_text()
    for wrong, words in (
        (text.replace("decode", "dekode", 1), "k.csv, line 2: kind='dekode': must be decode or prefill"),
        (text.replace("llama-3.1-8b", "llama-9", 1), "k.csv, line 2: model='llama-9': is unknown"),
        (text.replace("step_s", "s", 1), "k.csv, line 1: has no column step_s"),
    ):
        path.write_text(wrong)
        assert command_line(["validate", "--kernels", "k.csv"]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.exists(), reason="the measurements are not at hand")
def test_bars_on_what_was_measured():
    named = SHARED / "step_times/rtx4090-llama-3.1-8b-tp1.steps.csv"
    rows = fidelity.kernel_fidelity(SHARED / "step_times/aiconfigurator.steps.csv")
    rows += fidelity.run_fidelity(
        SHARED / "llmservingsim_vllm_RTX4090_Llama-3.1-8B_requests.jsonl",
        "llama-3.1-8b",
        "rtx4090",
        steps=named,
        num_blocks=2588,
    )
    assert sum(row.number for row in rows if (row.what, row.step_times) == ("kernels", "operators")) == 1293
    assert sum(row.bar is not None for row in rows) == 6
    assert fidelity.missed(rows) == []
