"""Profiles of other tools: small files of their forms, with made-up numbers, and real ones where they are at hand."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from servesweep import (
    Model,
    aiconfigurator_step_times,
    distserve_step_times,
    model,
    splitwise_step_times,
    vidur_step_times,
)

SHARED = Path(__file__).parents[3] / "shared/measured"
SMALL = Model("small", 4, 512, 8, 4, 64, 1024, 4096, False, True)


def vidur_files(folder, tp=1):
    """mlp.csv, attention.csv and all_reduce.csv; a layer takes 10 us and 0.1 us a token, attention 1 ns a token."""
    rows = ["num_tokens,num_tensor_parallel_workers,time_stats.add.median"]
    parts = (
        "attn_pre_proj",
        "attn_post_proj",
        "attn_rope",
        "input_layernorm",
        "mlp_up_proj",
        "mlp_act",
        "mlp_down_proj",
    )
    rows[0] += "".join(f",time_stats.{name}.median" for name in parts)
    for tokens in (1, 8, 64, 128, 256, 512, 1024):
        rows.append(",".join(map(str, [tokens, tp] + [(0.01 + 1e-4 * tokens) / 8] * 8)))
    (folder / "mlp.csv").write_text("\n".join(rows), encoding="utf-8")
    head = "batch_size,prefill_chunk_size,kv_cache_size,is_prefill,num_tensor_parallel_workers"
    rows = [f"{head},time_stats.attn_prefill.median,time_stats.attn_decode.median"]
    for batch, cached in itertools.product((1, 4, 16, 64, 128), (128, 1024)):
        rows.append(f"{batch},0,{cached},False,{tp},,{1e-6 * batch * cached}")
    for chunk, cached in itertools.product((64, 128, 256, 512, 1024), (0, 512)):
        rows.append(f"1,{chunk},{cached},True,{tp},{1e-8 * (chunk * cached + chunk * (chunk + 1) / 2)},")
    (folder / "attention.csv").write_text("\n".join(rows), encoding="utf-8")
    rows = ["size,num_workers,collective,time_stats.all_reduce.median"]
    rows += [f"{size},{tp},all_reduce,{0.005 + 1e-8 * size}" for size in (1024, 2**16, 2**20)]
    (folder / "all_reduce.csv").write_text("\n".join(rows), encoding="utf-8")


def test_vidur(tmp_path):
    vidur_files(tmp_path)
    found = vidur_step_times(tmp_path / "mlp.csv", tmp_path / "attention.csv", model=SMALL)
    assert found.measured.p95_error < 1e-6
    assert found.step_time(64, 64 * 1000) == pytest.approx(4 * (1e-5 + 1e-7 * 64 + 1e-9 * 64000))
    assert found.step_time(0, 0, 256, 256 * 257 // 2, 0, 1) == pytest.approx(
        4 * (1e-5 + 1e-7 * 256 + 1e-11 * 256 * 257 / 2)
    )


def test_vidur_leaves_other_models_out(tmp_path):
    vidur_files(tmp_path)
    files = tmp_path / "mlp.csv", tmp_path / "attention.csv"
    alone = vidur_step_times(*files, model=SMALL)
    for path, name, own, other in ((files[0], "n_embd", 512, 1024), (files[1], "n_q_head", 8, 16)):
        head, *rows = path.read_text("utf-8").splitlines()
        doubled = [f"{row.replace('0.0', '0.5')},{other}" for row in rows]
        text = "\n".join([f"{head},{name}", *(f"{row},{own}" for row in rows), *doubled])
        path.write_text(text, encoding="utf-8")
    assert vidur_step_times(*files, model=SMALL) == alone
    with pytest.raises(ValueError, match=r"mlp\.csv: has no row with n_embd 4096; it has 512, 1024"):
        vidur_step_times(*files, model=model("llama-3.1-8b"))


def test_vidur_with_all_reduces(tmp_path):
    vidur_files(tmp_path, tp=2)
    files = tmp_path / "mlp.csv", tmp_path / "attention.csv"
    found = vidur_step_times(*files, model=SMALL, tp=2, all_reduce=tmp_path / "all_reduce.csv")
    reduces = 2 * (5e-6 + 1e-11 * 64 * 512 * 2)
    assert found.step_time(64, 0) == pytest.approx(4 * (1e-5 + 1e-7 * 64 + reduces), rel=1e-3)
    assert found.n_gpus == 2
    with pytest.raises(ValueError, match="must be given if tp is above 1"):
        vidur_step_times(*files, model=SMALL, tp=2)
    with pytest.raises(ValueError, match=r"mlp\.csv: has no row with num_tensor_parallel_workers 4; it has 2"):
        vidur_step_times(*files, model=SMALL, tp=4, all_reduce=tmp_path / "all_reduce.csv")
    with pytest.raises(ValueError, match=r"attention\.csv, line 1: has no columns num_tokens"):
        vidur_step_times(files[1], files[0], model=SMALL)


def aiconfigurator_files(folder):
    """Tables in which a product takes 2 us and 1 ps for each 100 multiplications."""
    rows = ["gemm_dtype,m,n,k,latency"]
    for m, n, k in itertools.product((1, 16, 64, 256, 1024), (256, 1024, 4096), (256, 1024, 4096)):
        rows.append(f"bfloat16,{m},{n},{k},{2e-3 + 1e-9 * m * n * k / 100}")
    rows.append("fp8,1,256,256,1000")
    (folder / "gemm.csv").write_text("\n".join(rows), encoding="utf-8")
    head = "batch_size,isl,step,num_heads,num_key_value_heads,head_dim,latency"
    rows = [head]
    rows += [f"{b},1,{s},8,4,64,{1e-3 + 1e-6 * b * s}" for b, s in itertools.product((1, 16, 64, 256), (127, 1023))]
    (folder / "generation.csv").write_text("\n".join(rows), encoding="utf-8")
    rows = [head]
    rows += [f"{b},{n},0,8,4,64,{1e-3 + 1e-8 * b * n * n}" for b, n in itertools.product((1, 2, 4), (64, 128, 256))]
    (folder / "context.csv").write_text("\n".join(rows), encoding="utf-8")
    rows = ["op_name,nccl_dtype,num_gpus,message_size,latency"]
    rows += [
        f"{op},half,2,{size},{0.004 + 1e-8 * size}" for op, size in itertools.product(("all_reduce", "x"), (256, 2**20))
    ]
    (folder / "nccl.csv").write_text("\n".join(rows), encoding="utf-8")
    return [folder / f"{name}.csv" for name in ("gemm", "context", "generation")]


def test_aiconfigurator(tmp_path):
    files = aiconfigurator_files(tmp_path)
    found = aiconfigurator_step_times(*files, model=SMALL)
    assert found.measured.p95_error < 0.02
    sizes = ((512 + 2 * 256) * 512, 512 * 512, 2 * 1024 * 512, 512 * 1024)
    products = sum(2e-6 + 1e-14 * 64 * size for size in sizes)
    wanted = 4 * (products + 1e-6 + 1e-9 * 64 * 1000) + 2e-6 + 1e-14 * 64 * 4096 * 512
    assert found.step_time(64, 64 * 1000) == pytest.approx(wanted, rel=0.05)  # sizes in between are not measured
    with pytest.raises(ValueError, match="must be given if tp is above 1"):
        aiconfigurator_step_times(*files, model=SMALL, tp=2)
    with pytest.raises(ValueError, match=r"generation\.csv: has no row with num_heads 4; it has 8"):
        aiconfigurator_step_times(*files, model=SMALL, tp=2, nccl=tmp_path / "nccl.csv")
    with pytest.raises(ValueError, match=r"nccl\.csv: has no row with num_gpus 4"):
        aiconfigurator_step_times(*files, model=SMALL, tp=4, nccl=tmp_path / "nccl.csv")


def distserve_file(folder):
    entry = {"decoding_large_small_bs_threshold": 95, "prefill": [20.0, 0.1, 1e-5]}
    entry |= {"decoding_smallbs": [20.0, 5e-4, 0.06], "decoding_largebs": [20.0, 5e-4, 0.06]}
    path = folder / "fit_params.json"
    path.write_text(json.dumps({"opt": {"2": entry}}), encoding="utf-8")
    return path


def test_distserve(tmp_path):
    path = distserve_file(tmp_path)
    prefill, decode = (distserve_step_times(path, model="opt", tp=2, role=role) for role in ("prefill", "decode"))
    squares = 2 * 512**2
    pairs = 2 * 512 * 513 // 2
    assert prefill.step_time(0, 0, 1024, pairs, 0, 2) == pytest.approx(0.02 + 1e-4 * 1024 + 1e-8 * squares)
    assert decode.step_time(30, 30 * 700) == pytest.approx(0.02 + 5e-7 * 30 * 700 + 6e-5 * 30)
    both = distserve_step_times(path, model="opt", tp=2)
    assert both.step_time(30, 30 * 700) == pytest.approx(decode.step_time(30, 30 * 700), rel=0.05)
    for arguments, message in (
        ({"model": "opt", "tp": 4}, "has no tp '4'; it has 2"),
        ({"model": "llama", "tp": 2}, "has no model 'llama'; it has opt"),
        ({"model": "opt", "tp": 2, "role": "both"}, "role='both': must be one of prefill, decode"),
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            distserve_step_times(path, **arguments)
        assert message in str(caught.value)
    path.write_text('{"opt": {"2": {"prefill": [1, 2]}}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"fit_params\.json: prefill=\[1, 2\]: must be three numbers"):
        distserve_step_times(path, model="opt", tp=2)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is not JSON"):
        distserve_step_times(path, model="opt", tp=2)


def test_splitwise(tmp_path):
    rows = ["model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"]
    for batch, prompt, _ in itertools.product((1, 2, 8, 16), (128, 512, 1024), range(2)):
        first = 30 + 0.05 * batch * prompt
        rows.append(f"m,chip,{prompt},{batch},128,{first},{25 + 0.1 * batch + 1e-4 * batch * (prompt + 64)},4")
    path = tmp_path / "perf_model.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    found = splitwise_step_times(path, model="m", hardware="chip", tp=4)
    assert found.measured.steps == 24  # the median of those that were measured twice
    assert found.measured.p95_error < 0.01
    assert found.step_time(8, 8 * 576) == pytest.approx((25 + 0.8 + 1e-4 * 8 * 576) / 1e3, rel=0.01)
    for arguments, message in (
        ({"model": "n", "hardware": "chip", "tp": 4}, "has no model 'n'; it has m"),
        ({"model": "m", "hardware": "chop", "tp": 4}, "has no hardware 'chop'; it has chip"),
        ({"model": "m", "hardware": "chip", "tp": 8}, "has no tensor_parallel 8; it has 4"),
    ):
        with pytest.raises(ValueError, match=r"perf_model\.csv") as caught:
            splitwise_step_times(path, **arguments)
        assert message in str(caught.value)


@pytest.mark.parametrize("chip", ["a100", "h100", "h200"])
def test_real_tables_give_the_steps_that_were_put_together_from_them(chip):
    folder = SHARED / "aiconfigurator"
    if not folder.exists():
        pytest.skip("AIConfigurator's tables are not at hand")
    names = ("gemm", "context_attention", "generation_attention")
    files = [folder / f"{chip}_sxm_{name}_bf16.csv.gz" for name in names]
    found = aiconfigurator_step_times(*files, model=model("qwen3-32b"), tp=2, nccl=folder / f"{chip}_sxm_nccl.csv.gz")
    steps = pd.read_csv(SHARED / "step_times/aiconfigurator.steps.csv")
    steps = steps[steps.chip.str.startswith(chip) & (steps.model == "qwen3-32b") & (steps.tp == 2)]
    errors = []
    for row in steps.itertuples():
        tokens = row.batch * row.tokens_each
        if row.kind == "decode":
            seconds = found.step_time(row.batch, tokens)
        else:
            seconds = found.step_time(0, 0, tokens, tokens * (row.tokens_each + 1) // 2, 0, row.batch)
        errors.append(abs(seconds / (row.step_s - row.elementwise_estimated_s) - 1))
    assert np.median(errors) < 0.015
    assert np.quantile(errors, 0.95) < 0.06


def test_published_fits_and_measurements():
    if not SHARED.exists():
        pytest.skip("what DistServe and Splitwise published is not at hand")
    found = distserve_step_times(SHARED / "distserve_profiler-a100-80g.distserve.json", model="facebook/opt-13b")
    assert found.measured.median_error < 0.02
    table = SHARED / "splitwise_perf_model.csv"
    found = splitwise_step_times(table, model="llama2-70b", hardware="h100-80gb", tp=8)
    assert found.measured.median_error < 0.03
