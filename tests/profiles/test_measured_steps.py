"""Measured steps: what is fitted, kept, saved and refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servesweep import (
    MeasuredSteps,
    OperatorStepModel,
    TableStepTimes,
    chip,
    load_step_times,
    make_workload,
    measured_step_times,
    model,
    run_scheduler,
    save_step_times,
    step_times_from,
)
from servesweep.profiles.least_squares import nonnegative
from servesweep.profiles.measured_steps import fit_steps, read_steps, step_errors
from step_files import HEADER, TRUE, steps, true_seconds, write_steps

SHARED = Path(__file__).parents[3] / "shared/measured/step_times/rtx4090-llama-3.1-8b-tp1.steps.csv"


def test_what_is_of_the_form_is_found_exactly(tmp_path):
    found = measured_step_times(write_steps(tmp_path / "steps.csv"))
    for name, seconds in TRUE.items():
        assert getattr(found, name) == pytest.approx(seconds, rel=1e-6)
    for row in steps():
        emitting = row[0] + (row[2] > 0)
        assert found.step_time(row[0], row[1], row[2], row[4], row[3], emitting) == pytest.approx(true_seconds(*row))
    assert found.measured.steps == len(list(steps()))
    assert found.measured.p95_error < 1e-9
    assert (found.measured.most_decodes, found.measured.most_tokens) == (128, 544)


def test_noise_is_told_with_the_worst_steps(tmp_path):
    def noise(count):
        factors = np.random.default_rng(1).normal(1, 0.01, count)
        factors[7] = 1.3
        return factors

    found = measured_step_times(write_steps(tmp_path / "steps.csv", noise))
    assert found.measured.worst[0].line == 7 + 2
    assert found.measured.worst[0].error < -0.1
    assert 0.001 < found.measured.median_error < 0.02
    text = found.measured.text()
    assert "steps.csv: 36 steps" in text
    assert "line 9: 32 decodes" in text
    assert found.context_s == pytest.approx(TRUE["context_s"], rel=0.3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_least_squares_meet_the_conditions_of_the_optimum(seed, unknowns, rows):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, unknowns)), rng.normal(size=rows)
    x = nonnegative(a, b)
    pull = a.T @ (b - a @ x)
    assert (x >= 0).all()
    assert (pull <= 1e-7).all()
    assert (np.abs(pull[x > 0]) <= 1e-7).all()


def test_profiles_are_read_as_they_were_saved(tmp_path):
    found = measured_step_times(write_steps(tmp_path / "steps.csv"), n_gpus=2)
    again = load_step_times(save_step_times(found, tmp_path / "own.toml", about='of "mine"\n'))
    assert again == found
    assert again.measured == found.measured
    assert again.content_id == found.content_id
    assert again.content_id in (tmp_path / "own.toml").read_text("utf-8")
    assert step_times_from(tmp_path / "own.toml") == step_times_from(tmp_path / "steps.csv").__class__(
        found.tokens_s,
        emitting_s=found.emitting_s,
        n_gpus=2,
        **{name: getattr(found, name) for name in TRUE},
    )


def test_content_ids_are_of_what_decides_times(tmp_path):
    one = TableStepTimes([(1, 1e-3)], context_s=1e-7)
    about = MeasuredSteps("x", 1, 0.0, 0.0, 1, 1, 1, 1)
    assert one.content_id == TableStepTimes([(1, 1e-3)], context_s=1e-7, measured=about).content_id
    assert one.content_id != TableStepTimes([(1, 1e-3)], context_s=2e-7).content_id


def test_operators_are_profiles_too(tmp_path):
    own = OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"), tp=2, mfu=0.5, layer_s=1e-5)
    assert load_step_times(save_step_times(own, tmp_path / "own.toml")) == own
    assert 'model = "llama-3.1-8b"' in (tmp_path / "own.toml").read_text("utf-8")
    fields = {**vars(chip("h100-sxm")), "name": "mine"}
    other = OperatorStepModel(model("llama-3.1-8b"), type(own.chip)(**fields), mfu=0.5)
    assert load_step_times(save_step_times(other, tmp_path / "other.toml")) == other


def test_the_engine_runs_them(tmp_path):
    step = measured_step_times(write_steps(tmp_path / "steps.csv"))
    traffic = make_workload(50, 5.0, 200, 20, seed=1)
    result = run_scheduler(traffic, step, policy="chunked", max_running=16, token_budget=256, memory="unlimited")
    alone = make_workload(1, 1.0, 200, 2)
    first = run_scheduler(alone, step, policy="chunked", max_running=1, token_budget=256, memory="unlimited")
    assert np.isfinite(result.finish_s).all()
    wanted = true_seconds(0, 0, 200, 0, 200 * 201 // 2)
    assert first.first_token_s[0] - first.arrival_s[0] == pytest.approx(wanted, rel=0.02)


def test_compressed_files_and_blank_lines(tmp_path):
    plain = write_steps(tmp_path / "steps.csv")
    text = plain.read_text("utf-8").replace("\n", "\n\n")
    (tmp_path / "steps.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert measured_step_times(tmp_path / "steps.csv.gz") == measured_step_times(plain)


ROWS = ["1,100,0,0,0,0.005", "2,200,0,0,0,0.0051", "0,0,64,0,2080,0.006", "4,400,0,0,0,0.0052"]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (HEADER.replace("step_s", "step_ms"), ROWS, "line 1: has no column step_s"),
        (HEADER.replace("context_tokens", "ctx").replace("decodes", "b"), ROWS, "columns decodes, context_tokens"),
        (HEADER, [*ROWS, "8,800,0,0,0,-0.1"], "line 6: step_s='-0.1': must be a number above 0"),
        (HEADER, [*ROWS, "8,800,0,0,0,0"], "line 6: step_s='0': must be a number above 0"),
        (HEADER, [*ROWS, "8,800,0,0,0,soon"], "line 6: step_s='soon': must be a number above 0"),
        (HEADER, [*ROWS, "8.5,800,0,0,0,1"], "line 6: decodes='8.5': must be an integer"),
        (HEADER, [*ROWS, "8,-1,0,0,0,1"], "line 6: context_tokens='-1': must be a number of at least 0"),
        (HEADER, [*ROWS, "8,800,0"], "line 6: has 3 fields, and the header has 6"),
        (HEADER, [*ROWS, "0,0,0,0,0,1"], "line 6: decodes and prefill_tokens are both 0"),
        (HEADER, [*ROWS, "0,0,64,0,1,1"], "line 6: prefill_pairs: must be at least"),
        (HEADER, [*ROWS, "8,800,0,7,0,1"], "line 6: prefill_pairs, prefill_done_tokens: must be 0"),
        (HEADER, [*ROWS, "0,5,64,0,2080,1"], "line 6: context_tokens: must be 0 without decodes"),
        (HEADER, [*ROWS, "8,800,0,0,0,0.003"], "line 6: step_s=0.003: is 40 % less than that of line 2"),
        (HEADER, ROWS, "has 4 steps for 6 unknowns"),
        (HEADER, [], "line 1: no row follows the header"),
        (HEADER, ['1,100,"0,0,0,1'], "is not CSV"),
    ],
)
def test_one_clear_error_with_file_and_line(tmp_path, header, rows, message):
    path = tmp_path / "bad.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.csv") as caught:
        measured_step_times(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_steps(tmp_path):
    with pytest.raises(FileNotFoundError):
        measured_step_times(tmp_path / "none.csv")
    (tmp_path / "zeros.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"zeros\.csv: is no text"):
        measured_step_times(tmp_path / "zeros.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.csv: is empty"):
        measured_step_times(tmp_path / "empty.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 'tables", "own.toml: is no TOML"),
        ("kind = 'tablets'", "kind='tablets': must be one of tables, operators"),
        ("kind = 'tables'", "tokens_s: is missing"),
        ("kind = 'tables'\ntokens_s = [[1, 0.1]]\npairs_s = 1", "pairs_s: is unknown"),
        ("kind = 'tables'\ntokens_s = [[1, 0.1], [2, 0.05]]", "must take at least the 0.1 s"),
        ("kind = 'tables'\ntokens_s = [[1, 0.1]]\nmeasured = 1", "measured=1: must be a table"),
        ("kind = 'tables'\ntokens_s = [[1, 0.1]]\n[measured]\nsteps = 1", "missing"),
        ("kind = 'operators'\nmodel = 'llama-3.1-8b'", "chip: is missing"),
        ("kind = 'operators'\nmodel = 'llama-3.1-8b'\nchip = 'h1000'", "chip='h1000': is unknown"),
        ("kind = 'operators'\nmodel = 'llama-3.1-8b'\nchip = 'h200-sxm'\n[constants]\nmfx = 1", "constants='mfx'"),
    ],
)
def test_what_is_no_profile(tmp_path, text, message):
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"own\.toml") as caught:
        load_step_times(tmp_path / "own.toml")
    assert message in str(caught.value)


def test_held_out_half_of_real_steps():
    if not SHARED.exists():
        pytest.skip("the measured steps of an RTX 4090 are not at hand")
    rows = read_steps(SHARED)
    half = np.arange(len(rows)) % 2 == 0
    found = [np.abs(step_errors(fit_steps(rows[part]), rows[~part])) for part in (half, ~half)]
    both = np.concatenate(found)
    assert np.median(both) < 0.03
    assert np.quantile(both, 0.95) < 0.14
