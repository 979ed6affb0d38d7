"""Step times and KV capacity: golden values, the formulas' properties, and what is refused."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servesweep.hardware import catalogue
from servesweep.hardware.parts import IB_NDR, NVLINK_4, Chip, Link, Model
from servesweep.hardware.step_times import ConstantStepTime, StepModel, kv_transfer_time
from servesweep.kernels.steptime import StepCoefficients, step_seconds

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/serving/step-times.json").read_text())["rows"]
LLAMA = catalogue.model("llama-3.1-8b")
H100 = catalogue.chip("h100-sxm")
NO_OVERHEAD = {"overhead_s": 0.0, "mfu": 1.0, "mbu": 1.0}


def close(value):
    return pytest.approx(value, rel=1e-9, abs=0)


def golden_step(row):
    given_step = dict(row["step"])
    chip, link = given_step.pop("chip"), given_step.pop("link")
    return StepModel(
        model=Model(**given_step.pop("model")),
        chip=Chip(chip["name"], chip["bf16"], chip["fp8"], chip["mem_bw"], chip["mem_cap"]),
        link=Link("link", link["alpha_s"], link["bandwidth_bytes_per_s"]),
        **given_step,
    )


@pytest.mark.parametrize("row", GOLDEN, ids=range(len(GOLDEN)))
def test_golden(row):
    step = golden_step(row)
    batch, ctx = row["batch"], row["context_tokens"]
    assert step.prefill_time(row["prompts"]) == close(row["prefill_time_s"])
    assert step.decode_time(batch, ctx) == close(row["decode_time_s"])
    mixed = step.mixed_time(batch, ctx, row["chunk_tokens"], row["chunk_attention_flops"])
    assert mixed == close(row["mixed_time_s"])
    assert step.kv_capacity_tokens() == row["kv_capacity_tokens"]
    assert type(step.kv_capacity_tokens()) is int
    assert step.model.n_params() == row["n_params"]
    assert step.model.matmul_params() * step.weight_bytes == row["weight_bytes"]
    # Golden transfers are of the first prompt.
    transfer = kv_transfer_time(step.model, row["prompts"][0], IB_NDR, step.kv_bytes)
    assert transfer == close(row["kv_transfer_s"])


def test_golden_covers_what_matters():
    assert any(row["kv_capacity_tokens"] == 0 for row in GOLDEN)
    assert {row["step"]["tp"] for row in GOLDEN} >= {1, 2, 3, 8, 16}
    assert {row["step"]["pp"] for row in GOLDEN} == {1, 2}
    assert {row["step"]["weight_bytes"] for row in GOLDEN} == {1.0, 2.0}


steps = st.builds(
    StepModel,
    model=st.sampled_from(["llama-3.1-8b", "llama-3.2-1b", "opt-13b", "gemma-2-9b"]).map(catalogue.model),
    chip=st.sampled_from(["h100-sxm", "l4", "mi300x", "a100-80-sxm"]).map(catalogue.chip),
    tp=st.integers(1, 17),
    pp=st.integers(1, 3),
    weight_bytes=st.sampled_from([1.0, 2.0, 4.0]),
    kv_bytes=st.sampled_from([1.0, 2.0]),
    mfu=st.floats(0.1, 1.0),
    mbu=st.floats(0.1, 1.0),
    overhead_s=st.floats(0.0, 0.01),
    link=st.sampled_from([NVLINK_4, IB_NDR, Link("slow", 1e-4, 1e9)]),
)


def formula(step, tokens, flops, kv_tokens):
    """docs/models.md, written out once more with all-reduces as a list of messages."""
    chip, p = step.chip, step.tp
    peak = chip.bf16_flops if step.weight_bytes >= 2 or not chip.fp8_flops else chip.fp8_flops
    compute = flops / (peak * step.mfu * p)
    moved = step.model.matmul_params() * step.weight_bytes + kv_tokens * step.model.kv_bytes_per_token(step.kv_bytes)
    memory = moved / (chip.mem_bytes_per_s * step.mbu * p)
    message = tokens * step.model.d_model * 2
    ring = sum(step.link.alpha_s + message / p / step.link.bytes_per_s for _ in range(2 * (p - 1)))
    doubling = math.ceil(math.log2(p)) * (step.link.alpha_s + message / step.link.bytes_per_s)
    comm = 2 * step.model.n_layers * min(ring, doubling)
    return max(compute, memory) + comm + step.overhead_s


@given(steps, st.integers(1, 500), st.integers(0, 10**6), st.integers(0, 5000), st.integers(0, 4000))
def test_times_are_the_formulas(step, batch, ctx, chunk, done):
    linear, attention = step.model.linear_flops_per_token(), step.model.attention_flops_per_context_token()
    assert step.decode_time(batch, ctx) == close(formula(step, batch, batch * linear + attention * ctx, ctx))
    piece = attention * (chunk * done + chunk * (chunk + 1) / 2)
    flops = (batch + chunk) * linear + attention * ctx + piece
    assert step.mixed_time(batch, ctx, chunk, piece) == close(formula(step, batch + chunk, flops, ctx + chunk))
    prompts = [chunk + 1, done + 1]
    tokens = sum(prompts)
    flops = tokens * linear + attention * sum(n * (n + 1) / 2 for n in prompts)
    assert step.prefill_time(prompts) == close(formula(step, tokens, flops, tokens))


@given(steps, st.integers(0, 300), st.integers(0, 10**6), st.integers(0, 4096), st.lists(st.integers(1, 9000)))
def test_the_three_times_agree_with_each_other_and_the_kernel(step, batch, ctx, chunk, prompts):
    attention = step.model.attention_flops_per_context_token()
    assert step.mixed_time(batch, ctx if batch else 0, 0, 0) == step.decode_time(batch, ctx)
    pairs = sum(n * (n + 1) // 2 for n in prompts)
    assert step.mixed_time(0, 0, sum(prompts), attention * pairs) == step.prefill_time(prompts)
    if chunk:
        context = ctx + chunk * (chunk + 1) // 2
        kernel = step_seconds(step.coefficients(), batch + chunk, context, ctx + chunk)
        assert step.mixed_time(batch, ctx, chunk, attention * (chunk * (chunk + 1) // 2)) == kernel


@given(steps, st.integers(1, 300), st.integers(0, 10**6), st.integers(0, 4096))
def test_more_work_never_takes_less_time(step, batch, ctx, chunk):
    def never_less(more, less):
        assert more >= less

    base = step.mixed_time(batch, ctx, chunk, 1e9)
    never_less(step.mixed_time(batch + 1, ctx, chunk, 1e9), base)
    never_less(step.mixed_time(batch, ctx + 1, chunk, 1e9), base)
    never_less(step.mixed_time(batch, ctx, chunk + 1, 1e9), base)
    never_less(step.mixed_time(batch, ctx, chunk, 2e9), base)
    never_less(step.prefill_time([batch, chunk + 1]), step.prefill_time([batch]))
    floor = step.model.matmul_params() * step.weight_bytes / (step.chip.mem_bytes_per_s * step.mbu * step.tp)
    never_less(base, floor)  # every step reads the weights


@given(st.lists(st.tuples(steps, st.integers(1, 600), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_a_batch_of_lanes_gives_the_bits_of_each_alone(lanes):
    together = StepCoefficients(*np.array([step.coefficients() for step, _, _ in lanes]).T)
    tokens, ctx = np.array([[batch, ctx] for _, batch, ctx in lanes]).T
    times = step_seconds(together, tokens, ctx, ctx)
    assert times.tolist() == [step.decode_time(batch, ctx) for step, batch, ctx in lanes]


def test_no_token_takes_no_time():
    step = StepModel(LLAMA, H100, tp=2)
    assert step.prefill_time([]) == step.decode_time(0, 0) == step.mixed_time(0, 0, 0, 0.0) == 0.0


def test_roofline_has_both_sides():
    step = StepModel(LLAMA, H100, **NO_OVERHEAD)
    assert step.decode_time(1, 0) == close(LLAMA.matmul_params() * 2 / H100.mem_bytes_per_s)  # memory bound
    flops = 8192 * LLAMA.linear_flops_per_token() + 4 * 32 * 4096 * 8192 * 8193 / 2
    assert step.prefill_time([8192]) == close(flops / H100.bf16_flops)  # compute bound


def test_fp8_peak_is_used_below_two_bytes_where_there_is_one():
    def prefill(chip, weight_bytes):
        return StepModel(LLAMA, chip, weight_bytes=weight_bytes, **NO_OVERHEAD).prefill_time([8192])

    assert prefill(H100, 1) == close(prefill(H100, 2) * H100.bf16_flops / H100.fp8_flops)
    a100 = catalogue.chip("a100-80-sxm")
    assert prefill(a100, 1) == close(prefill(a100, 2))


def test_small_messages_double_and_large_ones_go_round():
    # 8 GPUs: 3 latencies against 14, but 3 times the message against 1.75 times.
    step = StepModel(LLAMA, H100, tp=8, **NO_OVERHEAD)
    alone = StepModel(LLAMA, H100, tp=1, **NO_OVERHEAD)
    comm = [step.decode_time(1, 0) - alone.decode_time(1, 0) / 8, step.prefill_time([16384])]
    comm[1] -= alone.prefill_time([16384]) / 8
    assert comm[0] == pytest.approx(64 * 3 * (1e-6 + 8192 / 450e9), rel=1e-6)
    assert comm[1] == pytest.approx(64 * (14e-6 + 1.75 * 16384 * 8192 / 450e9), rel=1e-6)


def test_pipeline_stages_add_memory_and_nothing_else():
    one, two = (StepModel(LLAMA, H100, pp=pp) for pp in (1, 2))
    assert two.coefficients() == one.coefficients()
    assert (one.n_gpus, two.n_gpus) == (1, 2)
    assert two.kv_capacity_tokens() > 2 * one.kv_capacity_tokens()  # the weights are there once


def test_capacity_counts_the_reserve_and_copies_of_heads():
    weights = LLAMA.n_params() * 2
    step = StepModel(LLAMA, H100, mem_reserve=0.0)
    assert step.kv_capacity_tokens() == math.floor((H100.mem_bytes - weights) / LLAMA.kv_bytes_per_token())
    wide = StepModel(LLAMA, H100, tp=16, mem_reserve=0.0)  # 8 KV heads: each is held twice
    assert wide.kv_capacity_tokens() == math.floor((16 * H100.mem_bytes - weights) / (2 * LLAMA.kv_bytes_per_token()))


def test_weights_that_do_not_fit_leave_no_capacity():
    assert StepModel(catalogue.model("llama-3.1-70b"), H100).kv_capacity_tokens() == 0
    assert StepModel(catalogue.model("llama-3.1-70b"), H100, tp=2).kv_capacity_tokens() > 0


def test_values_are_plain_numbers_whatever_came_in():
    step = StepModel(LLAMA, H100, tp=np.int64(2), weight_bytes=2, mfu=np.float64(0.5))
    assert step == StepModel(LLAMA, H100, tp=2, weight_bytes=2.0, mfu=0.5)
    assert type(step.tp) is int
    assert type(step.mfu) is float
    assert type(step.decode_time(1, 10)) is float
    assert type(step.prefill_time(np.array([3, 4]))) is float


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("tp", [0, -1, 1.0, True, "2"], "an integer of at least 1"),
        ("tp", [2**16 + 1, 2**63], "at most 65536"),
        ("pp", [2**62], "at most 65536"),
        ("pp", [0, 2.5, False], "an integer of at least 1"),
        ("mfu", [0, -0.1, 1.1, 1e-300, math.nan, True], "a finite number of at least 1e-06 and at most 1"),
        ("mbu", [0.0, 1.0001, math.inf], "a finite number of at least 1e-06 and at most 1"),
        ("mem_reserve", [-0.1, 1, 1.5, math.nan], "at least 0 and below 1"),
        ("overhead_s", [-1e-9, 1e300, math.inf, math.nan, "0"], "a finite number of at least 0 and at most"),
        ("weight_bytes", [0, -1, 1e300, math.nan, True], "a finite number of at least 0.001 and at most 1000"),
        ("kv_bytes", [0, 1e-300, math.inf], "a finite number of at least 0.001 and at most 1000"),
        ("model", ["llama-3.1-8b", None], "a Model"),
        ("chip", ["h100-sxm"], "a Chip"),
        ("link", ["nvlink4"], "a Link"),
    ],
)
def test_refused_fields(field, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}: must be {allowed}")):
            StepModel(**({"model": LLAMA, "chip": H100} | {field: value}))


@pytest.mark.parametrize("step", [StepModel(LLAMA, H100), ConstantStepTime(1.0)])
def test_refused_arguments(step):
    for length in (0, 1.9, math.nan, True, "3"):
        with pytest.raises(ValueError, match=rf"prompts\[1\]={length!r}: must be an integer of at least 1"):
            step.prefill_time([5, length])
    for value in (-1, 2.5, math.nan, None):
        with pytest.raises(ValueError, match=f"batch={value!r}: must be an integer of at least 0"):
            step.decode_time(value, 3)
        with pytest.raises(ValueError, match=f"ctx={value!r}: must be an integer of at least 0"):
            step.decode_time(1, value)
        with pytest.raises(ValueError, match=f"chunk_tokens={value!r}: must be an integer of at least 0"):
            step.mixed_time(1, 5, value, 0)
    for value in (-1.0, math.nan, math.inf, "1"):
        with pytest.raises(ValueError, match=f"chunk_attn_flops={value!r}: must be a finite number of at least 0"):
            step.mixed_time(1, 5, 2, value)


def test_constant_step_time():
    step = ConstantStepTime(0.25)
    assert step.prefill_time([1, 9000]) == step.decode_time(3, 500) == step.mixed_time(2, 10, 5, 1e12) == 0.25
    assert step.prefill_time([]) == step.decode_time(0, 0) == step.mixed_time(0, 0, 0, 0) == 0.0
    assert step_seconds(step.coefficients(), 7, 100, 100) == 0.25
    assert step.n_gpus == 1
    assert not hasattr(step, "kv_capacity_tokens")
    for value in (0, -1.0, math.inf, math.nan, True, "1"):
        with pytest.raises(ValueError, match=f"seconds={value!r}: must be a positive finite number"):
            ConstantStepTime(value)


def test_transfer_of_many_prompts_at_once():
    lengths = np.array([1, 100, 8192])
    times = kv_transfer_time(LLAMA, lengths, IB_NDR)
    assert times.tolist() == [kv_transfer_time(LLAMA, int(n), IB_NDR) for n in lengths]
    assert times[2] == close(2e-6 + 8192 * 131072 / 50e9)


@pytest.mark.parametrize("tokens", [-5, 1.5, math.nan, True, np.array([3, -1]), np.array([1.5])])
def test_transfer_refuses_what_is_no_number_of_tokens(tokens):
    with pytest.raises(ValueError, match=r"prompt_tokens=.*: must (be an integer|hold integers) of at least 0"):
        kv_transfer_time(LLAMA, tokens, IB_NDR)


def test_transfer_names_its_other_arguments():
    with pytest.raises(ValueError, match="link='ib-ndr': must be a Link"):
        kv_transfer_time(LLAMA, 5, "ib-ndr")
    with pytest.raises(ValueError, match="kv_bytes=nan: must be a positive finite number"):
        kv_transfer_time(LLAMA, 5, IB_NDR, math.nan)
    assert kv_transfer_time(LLAMA, 0, IB_NDR) == IB_NDR.alpha_s


def test_steps_that_would_never_end_are_refused():
    with pytest.raises(ValueError, match=r"seconds=1e\+308: must be at most 1e\+06"):
        ConstantStepTime(1e308)
    for figures in ((1e-300, 0, 1e12), (5e-324, 0, 1e12), (1e15, 0, 1e-300)):
        with pytest.raises(ValueError, match=r"chip=Chip.*'slow'.*: a step of one token takes .* must be at most"):
            StepModel(LLAMA, Chip("slow", *figures, 80e9))
    with pytest.raises(ValueError, match=r"link=Link.*'slow'.*: a step of one token takes"):
        StepModel(LLAMA, H100, tp=2, link=Link("slow", 1e300, 1e9))
