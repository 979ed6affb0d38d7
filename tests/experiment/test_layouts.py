"""Degrees that no engine accepts: an error where no cell could have them, otherwise cells that cannot run."""

import pytest
import servesweep
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError
from servesweep.goodput.placement import find_placement
from small_experiment import SMALL, changed, problem, problems
from system_plans import plan_of, tables

MODEL = {"chip": "h100-sxm"}


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ({"tp": 3}, "instance.tp = 3: must divide the attention heads of the model: llama-3.1-8b has 32"),
        ({"tp": [1, 12]}, "instance.tp = 12: must divide the attention heads of the model: llama-3.1-8b has 32"),
        ({"tp": 64}, "instance.tp = 64: must divide the attention heads of the model: llama-3.1-8b has 32"),
        ({"pp": 33}, "instance.pp = 33: must be at most the layers of the model: llama-3.1-8b has 32"),
        (
            {"model": ["llama-3.1-8b", "qwen2.5-7b"], "tp": [1, 5]},
            "instance.tp = 5: must divide the attention heads of the model: llama-3.1-8b has 32, qwen2.5-7b has 28",
        ),
    ],
)
def test_degrees_that_no_cell_could_have(instance, words):
    assert problem(changed(instance=instance)) == f"config: {words}"


def test_the_error_has_the_line(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(
        '[workload]\nrequest_rate_rps = 1\n[system]\nkind = "disaggregated"\n[instance]\nmodel = "opt-66b"\n'
        'chip = "h100-sxm"\ntp = 8\n[decode_instance]\ntp = [2, 7]\n'
    )
    assert problem(file) == (
        f"{file}:10: decode_instance.tp = 7: must divide the attention heads of the model: opt-66b has 72"
    )


def test_every_role_is_looked_at_and_no_key_without_effect():
    roles = {"system": {"kind": "disaggregated"}, "prefill_instance": {"tp": 3}, "decode_instance": {"pp": 99}}
    assert [text.split(" = ")[0] for text in problems({**SMALL, **roles, "scheduler": {}})] == [
        "config: prefill_instance.tp",
        "config: decode_instance.pp",
    ]
    # Where both roles have a tp of their own, that of [instance] has no effect, which is told alone.
    roles = {"prefill_instance": {"tp": 2}, "decode_instance": {"tp": 2}, "system": {"kind": "disaggregated"}}
    (text,) = problems({**SMALL, "scheduler": {}, "instance": {**SMALL["instance"], "tp": 3}, **roles})
    assert "has no effect" in text


def test_what_some_cells_can_have_leaves_the_others_infeasible():
    """28 heads are divided by 7, 32 by 8."""
    plan = plan_of(instance={**MODEL, "model": ["llama-3.1-8b", "qwen2.5-7b"], "tp": [4, 7, 8], "pp": [1, 30]})
    found = {(c["model"], c["tp"], c["pp"]): cell.spec.infeasible for cell in plan.cells for c in [cell.columns()]}
    of_llama, of_qwen = "attention heads of llama-3.1-8b", "attention heads of qwen2.5-7b"
    assert found == {
        ("llama-3.1-8b", 4, 1): None,
        ("llama-3.1-8b", 4, 30): None,
        ("llama-3.1-8b", 7, 1): f"tp = 7 does not divide the 32 {of_llama}",
        ("llama-3.1-8b", 7, 30): f"tp = 7 does not divide the 32 {of_llama}",
        ("llama-3.1-8b", 8, 1): None,
        ("llama-3.1-8b", 8, 30): None,
        ("qwen2.5-7b", 4, 1): None,
        ("qwen2.5-7b", 4, 30): "pp = 30 is more than the 28 layers of qwen2.5-7b",
        ("qwen2.5-7b", 7, 1): None,
        ("qwen2.5-7b", 7, 30): "pp = 30 is more than the 28 layers of qwen2.5-7b",
        ("qwen2.5-7b", 8, 1): f"tp = 8 does not divide the 28 {of_qwen}",
        ("qwen2.5-7b", 8, 30): f"tp = 8 does not divide the 28 {of_qwen}",
    }


def test_the_reason_names_the_role():
    models = ["llama-3.1-8b", "qwen2.5-7b"]
    plan = plan_of(
        system={"kind": "disaggregated"},
        instance={**MODEL, "model": models},
        prefill_instance={"tp": 7},
        decode_instance={"tp": 4},
    )
    assert [cell.spec.infeasible for cell in plan.cells[::2]] == [
        "prefill instance: tp = 7 does not divide the 32 attention heads of llama-3.1-8b",
        None,
    ]


def test_where_no_combination_is_left_the_experiment_is_an_error():
    with pytest.raises(ConfigError, match=r"no cell can run: tp = 7 does not divide the 32 attention heads"):
        expand(
            load_experiment(
                tables(instance={**MODEL, "model": ["llama-3.1-8b", "qwen2.5-7b"], "tp": 7, "pp": 30}),
            )
        )


def test_placements_refuse_them_too():
    config = tables(instance={**MODEL, "model": "llama-3.1-8b", "tp": [1, 3]}, slo={"ttft_ms": 100, "tpot_ms": 10})
    with pytest.raises(ConfigError, match=r"instance\.tp = 3: must divide the attention heads"):
        find_placement(config, n_gpus=4, progress=False)


def test_the_step_model_keeps_its_formulas_for_any_degree():
    """At 16 chips each of 8 KV heads is held twice: half of the tokens fit that would otherwise."""
    model, chip = servesweep.model("llama-3.1-8b"), servesweep.chip("h100-sxm")
    assert servesweep.StepModel(model, chip, tp=3).decode_time(1, 100) > 0
    held = servesweep.StepModel(model, chip, tp=16).kv_capacity_tokens()
    free = 16 * chip.mem_bytes * 0.9 - 2 * model.n_params()
    assert held == int(free / (2 * model.kv_bytes_per_token()))
