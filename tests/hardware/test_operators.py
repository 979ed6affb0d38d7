"""Operators added up and step times by knots: figures, constants and their origin, and what is refused."""

import csv
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from parity import step_model
from servesweep import Chip, OperatorStepModel, StepModel, TableStepTimes, chip, chip_names, model, model_names
from servesweep.hardware.operators import CONSTANTS, chip_constants
from servesweep.hardware.steps import seconds_of
from servesweep.kernels.step_tables import LAST
from servesweep.serving.reference_answers import step_times
from strategies_steps import knots

STEPS = Path(__file__).parents[3] / "shared/measured/step_times/aiconfigurator.steps.csv"
# NCCL's all-reduces, which those steps are sums of; and nothing between steps
NCCL = {"a100-80-sxm": {2: 14e-6, 4: 17e-6, 8: 25e-6}, "hopper": {2: 8e-6, 4: 12e-6, 8: 20e-6}}


def test_figures_worked_out_apart() -> None:
    """Decodes and a mixed step, in ms, of 32 and 16 requests with 1,000 tokens each."""
    one = OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    four = OperatorStepModel(model("llama-3.1-70b"), chip("h100-sxm"), tp=4)
    assert round(1e3 * one.decode_time(32, 32_000), 3) == 8.341
    assert round(1e3 * four.decode_time(32, 32_000), 3) == 18.912
    assert round(1e3 * one.step_time(16, 16_000, 512, 512 * 1024 + 512 * 513 // 2, 1024, 16), 3) == 14.660
    c, fixed = one.coefficients(), 32 * 42e-6
    parts = (
        c.tokens_s[32] - fixed,
        c.context_s * 32_000,
        fixed,
        c.emitting_s[32] - 32 * 13e-6,
        32 * 13e-6 + c.overhead_s,
    )
    assert [round(1e3 * float(part), 3) for part in parts] == [4.748, 1.376, 1.344, 0.357, 0.516]


def test_the_package_and_the_reference_agree() -> None:
    """On every model of the catalogue, and on knots; also beyond the tables' end."""
    rng = Random(1)
    steps: list[Any] = [
        OperatorStepModel(model(name), chip(rng.choice(chip_names())), tp=tp, weight_bytes=rng.choice([1.0, 2.0]))
        for name in model_names()
        for tp in (1, 2, 4, 8)
        if model(name).n_heads % tp == 0
    ]
    steps += [step_model(knots(rng, 1.0)) for _ in range(50)]
    for step in steps:
        own = step_times(step)
        for chunk in (0, 0, rng.randint(1, 5000), rng.randint(LAST, 10 * LAST)):
            batch = rng.randint(0 if chunk else 1, 500)
            done, ctx = rng.randint(0, 3000) * (chunk > 0), batch * rng.randint(1, 4000)
            work = batch, ctx, chunk, chunk * done + chunk * (chunk + 1) // 2, done, batch + (chunk > 0)
            assert step.step_time(*work) == pytest.approx(own.mixed(*work), rel=1e-9)
        assert step.step_time(0, 0) == 0


def test_a_longer_step_never_takes_less() -> None:
    for name in model_names():
        c = OperatorStepModel(model(name), chip("h100-sxm")).coefficients()
        assert (np.diff(c.tokens_s) >= 0).all()
        assert (np.diff(c.emitting_s) > 0).all()
        assert c.emitting_s[0] == 0


def test_equal_numbers_share_tables() -> None:
    one, other = (OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"), mem_reserve=kept) for kept in (0.1, 0.2))
    assert one.coefficients().tokens_s is other.coefficients().tokens_s


def test_every_chip_has_constants_and_says_which_are_guessed() -> None:
    for name in chip_names():
        for tp in (1, 2, 3, 4, 8, 16):
            constants = chip_constants(name, tp)
            assert set(constants.values) == set(CONSTANTS)
            assert set(constants.guessed) <= set(CONSTANTS)
            assert constants.source
    llama = model("llama-3.1-8b")
    assert OperatorStepModel(llama, chip("h100-sxm"), tp=2).guessed == ("mixed_attention",)
    assert OperatorStepModel(llama, chip("h100-sxm"), tp=16).guessed == ("mixed_attention", "allreduce_s")
    assert OperatorStepModel(llama, chip("h100-sxm"), mixed_attention=1.0).guessed == ()
    guessed = OperatorStepModel(llama, chip("l40s"), tp=2, mfu=0.8)
    assert guessed.guessed == tuple(name for name in CONSTANTS if name != "mfu")
    assert "rtx4090" in guessed.constants_source
    own = Chip("own", 1e15, 0.0, 1e12, 1e11)
    assert OperatorStepModel(llama, own).constants == OperatorStepModel(llama, chip("h100-sxm")).constants


def test_chips_without_nvlink_reduce_over_pcie() -> None:
    slow = {name for name in chip_names() if chip_constants(name, 2).values["allreduce_bw"] == 16e9}
    assert slow == {"a100-40-pcie", "a100-80-pcie", "h100-pcie", "l4", "l40s", "a10", "rtx4090", "t4"}
    assert {chip_constants(name, tp).values["allreduce_s"] for name in slow for tp in (2, 8)} == {20e-6}
    assert {"allreduce_s", "allreduce_bw"} <= set(chip_constants("h100-pcie", 2).guessed)


def test_each_constant_is_an_option() -> None:
    llama, h100 = model("llama-3.1-8b"), chip("h100-sxm")
    usual = OperatorStepModel(llama, h100, tp=2)
    work = 8, 8000, 100, 100 * 50 + 5050, 50, 9
    for name, value in usual.constants.items():
        other = OperatorStepModel(llama, h100, tp=2, **{name: value * 0.5})
        changed = OperatorStepModel(llama, h100, tp=2, **{name: value}).step_time(*work)
        assert changed == usual.step_time(*work)
        assert other.step_time(*work) != usual.step_time(*work), name


def test_memory_is_that_of_the_roofline() -> None:
    """With copies of KV heads where there are fewer of them than chips."""
    for tp in (1, 8, 16):
        instance = {"tp": tp, "weight_bytes": 1.0, "kv_bytes": 1.0, "mem_reserve": 0.2}
        parts = model("llama-3.1-8b"), chip("h100-sxm")
        assert (
            OperatorStepModel(*parts, **instance).kv_capacity_tokens()
            == StepModel(*parts, **instance).kv_capacity_tokens()
        )
    eight, sixteen = (OperatorStepModel(*parts, tp=tp).coefficients().context_s for tp in (8, 16))
    assert eight == sixteen, "each chip reads a head of its own, or a copy"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, "tp=3: must divide the 32 attention heads of llama-3.1-8b"),
        ({"mfu": 0}, "mfu=0: must be"),
        ({"mbu_attention": 1.5}, "mbu_attention=1.5: must be"),
        ({"layer_s": -1e-6}, "layer_s=-1e-06: must be"),
        ({"allreduce_bw": 0}, "allreduce_bw=0: must be"),
        ({"compute_bytes": 3}, "compute_bytes=3: must be"),
        ({"head_bytes": 0}, "head_bytes=0: must be"),
        ({"mixed_attention": float("nan")}, "mixed_attention=nan: must be"),
        ({"pp": 0}, "pp=0: must be"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.replace('(', '.')}"):
        OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"), **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens_s": ()}, "must hold at least one knot"),
        ({"tokens_s": ((1, 0.0),)}, "takes 0 s, must be more"),
        ({"tokens_s": ((1, 1.0), (1, 2.0))}, "must come after 1"),
        ({"tokens_s": ((1, 1.0), (2, 0.5))}, "must take at least the 1.0 s"),
        ({"tokens_s": ((1, -1.0),)}, "must be"),
        ({"tokens_s": 5}, "must be pairs"),
        ({"tokens_s": (5,)}, "must be a whole number and seconds"),
        ({"tokens_s": ((1, 1.0),), "pair_s": -1}, "pair_s=-1: must be"),
        ({"tokens_s": ((1, 1.0),), "emitting_s": ((0.5, 1.0),)}, "must be"),
    ],
)
def test_refused_knots(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableStepTimes(**fields)


def test_averages_of_whole_counts_are_steps() -> None:
    step = OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    assert seconds_of(step, 32.0, 32_000.0, 0.0, 0.0) == step.decode_time(32, 32_000)
    assert seconds_of(step, 0.0, 0.0, 100.0, 5050.0) == step.prefill_time([100])


@pytest.mark.skipif(not STEPS.exists(), reason="the measured steps are not at hand")
@pytest.mark.parametrize(
    ("name", "median", "p95"), [("a100-80-sxm", 5.1, 8.6), ("h100-sxm", 2.8, 22.2), ("h200-sxm", 3.2, 7.7)]
)
def test_measured_kernels_of_models_held_out(name: str, median: float, p95: float) -> None:
    """Absolute errors in %, of two models whose steps the constants were not fitted to."""
    errors, steps = [], {}
    with STEPS.open() as lines:
        for row in csv.DictReader(lines):
            key = row["model"], int(row["tp"])
            if row["chip"] != name or key not in (("llama-3.1-8b", 2), ("llama-3.1-70b", 4)):
                continue
            if key not in steps:
                latency = NCCL.get(name, NCCL["hopper"])[key[1]]
                options = {"allreduce_s": latency, "overhead_s": 0.0, "sequence_s": 0.0}
                steps[key] = OperatorStepModel(model(key[0]), chip(name), tp=key[1], **options)
            batch, each = int(row["batch"]), int(row["tokens_each"])
            decodes = row["kind"] == "decode"
            found = steps[key].decode_time(batch, batch * each) if decodes else steps[key].prefill_time([each] * batch)
            errors.append(abs(100 * (found / float(row["step_s"]) - 1)))
    assert len(errors) > 140
    assert np.median(errors) < median
    assert np.percentile(errors, 95) < p95
