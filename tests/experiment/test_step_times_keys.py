"""Where step times come from, as an experiment says it: names, constants, files."""

import servesweep as ss
from servesweep.experiment.outlines import outline
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.hardware.table_steps import TableStepModel
from servesweep.runner.tasks import make_task
from small_experiment import SMALL, changed, problem

FLAT = ss.TableStepTimes([(0, 0.01), (100, 0.02)], context_s=1e-8)


def steps_of(config):
    return [cell.spec.step for cell in expand(load_experiment(config)).cells]


def ids(config):
    return [cell.cell_id for cell in expand(load_experiment(config)).cells]


def test_a_name_chooses_the_model_and_its_constants_are_keys():
    constants = {"mfu": 0.5, "mbu_attention": 0.4, "layer_s": 1e-5, "head_bytes": 1.0, "compute_bytes": 1}
    (step, *_) = steps_of(changed(instance={"step_times": "operators", **constants}))
    assert isinstance(step, ss.OperatorStepModel)
    assert {name: getattr(step, name) for name in constants} == constants
    assert step.mbu is None
    (step, *_) = steps_of(changed(instance={"step_times": "roofline", "mfu": 0.5}))
    assert step == ss.StepModel(ss.model("llama-3.1-8b"), ss.chip("h100-sxm"), mfu=0.5)


def test_every_constant_is_a_key_and_changes_the_id():
    base = {"step_times": "operators", "tp": 2}
    plain = ids(changed(instance=base))
    usual = ss.OperatorStepModel(ss.model("llama-3.1-8b"), ss.chip("h100-sxm"), tp=2).constants
    assert len(usual) == 10
    for name, value in usual.items():
        assert ids(changed(instance={**base, name: value})) == plain, name  # what is the chip's anyway
        assert not set(ids(changed(instance={**base, name: value / 2}))) & set(plain), name


def test_the_roofline_has_the_ids_that_it_had_before_there_was_a_choice():
    named = changed(workload={"n_requests": None}, instance={"step_times": "roofline"}, scheduler={"policy": "mixed"})
    assert ids(named) == ["7790e990733b0749", "4f5839f319e6a115"]


def test_constants_have_no_effect_on_other_step_times():
    text = problem(changed(instance={"step_times": "roofline", "layer_s": 0}))
    assert 'instance.layer_s = 0: has no effect without step_times = "operators": remove it' in text
    text = problem(changed(instance={"step_times": "operators", "allreduce_s": 0}))
    assert "has no effect without tp above 1" in text
    text = problem(changed(instance={"step_times": "operators", "tp": 2, "link": "nvlink4"}))
    assert 'has no effect without step_times = "roofline"' in text
    text = problem(changed(instance={"step_times": "operater"}))
    assert 'step_times = "operater": is unknown; did you mean "operators"?' in text


def test_step_times_are_an_axis_and_constants_multiply_their_own_cells():
    config = changed(instance={"step_times": ["operators", "roofline"], "layer_s": [1e-5, 2e-5], "mfu": [0.5, 0.6]})
    plan = expand(load_experiment(config))
    assert outline(plan.experiment).cells == len(plan.cells) == (4 + 2) * 4
    columns = [cell.columns() for cell in plan.cells]
    assert {c["layer_s"] for c in columns if c["step_times"] == "roofline"} == {None}
    assert {c["mbu"] for c in columns if c["step_times"] == "roofline"} == {0.8}
    assert {c["mbu"] for c in columns if c["step_times"] == "operators"} == {None}


def test_roles_have_step_times_of_their_own():
    config = {
        **SMALL,
        "system": {"kind": ["disaggregated", "colocated"]},
        "instance": {**SMALL["instance"], "step_times": "roofline", "mbu": [0.7, 0.8]},
        "prefill_instance": {"step_times": ["operators", "roofline"], "mfu": [0.5, 0.6]},
        "decode_instance": {"step_times": "operators", "sequence_s": 1e-6},
        "scheduler": {"memory": "reserve"},
    }
    plan = expand(load_experiment(config))
    assert outline(plan.experiment).cells == len(plan.cells) == 2 * (2 * 2 * 2 + 2)
    cell = plan.cells[0]
    assert isinstance(cell.spec.prefill_step, ss.OperatorStepModel)
    assert cell.spec.step.sequence_s == 1e-6
    assert cell.columns()["step_times"] is cell.columns()["decode_step_times"] or not cell.columns()["sequence_s"]
    assert cell.columns()["step_times_source"].startswith("prefill operators: constants of h100-sxm")


def test_a_file_of_step_times(tmp_path):
    ss.save_step_times(FLAT, tmp_path / "mine.toml")
    (tmp_path / "steps").mkdir()
    file = tmp_path / "steps" / "mine.toml"
    file.write_bytes((tmp_path / "mine.toml").read_bytes())
    toml = tmp_path / "experiment.toml"
    toml.write_text(
        '[workload]\nkind = "synthetic"\nprompt = 100\noutput = 10\nrequest_rate_rps = 1\nn_requests = 20\n'
        '[instance]\nmodel = "llama-3.1-8b"\nchip = "h100-sxm"\nstep_times = "steps/mine.toml"\n'
    )
    experiment = load_experiment(toml)
    (cell,) = expand(experiment).cells
    llama, h100 = ss.model("llama-3.1-8b"), ss.chip("h100-sxm")
    assert cell.spec.step == TableStepModel(FLAT, model=llama, chip=h100)
    assert cell.spec.step.kv_capacity_tokens() == ss.StepModel(llama, h100).kv_capacity_tokens()
    assert cell.columns()["step_times"] == "mine.toml"
    assert cell.columns()["step_times_source"] == f"tables: {FLAT.content_id}"
    assert experiment.tables()["instance"]["step_times"] == "mine.toml"
    assert ids(experiment) == ids(toml) == [cell.cell_id]  # wherever it lies
    assert ids(experiment) != ids(load_experiment(toml, settings={"step_times": "roofline"}))
    text = problem(toml, settings={"step_times": "other.toml"})
    assert text == 'settings: instance.step_times = "other.toml": cannot be read: No such file or directory'
    file.write_text("kind = 'tables'")
    assert "tokens_s: is missing" in problem(toml)


def test_a_profile_of_operators_gives_its_constants_to_any_model_on_its_chip(tmp_path):
    found = ss.OperatorStepModel(ss.model("llama-3.1-8b"), ss.chip("h100-sxm"), mfu=0.5, tp=2, allreduce_s=1e-6)
    path = tmp_path / "calibrated.toml"
    ss.save_step_times(found, path)
    config = changed(instance={"step_times": str(path), "tp": [1, 2], "chip": ["h100-sxm", "h200-sxm"]})
    plan = expand(load_experiment(config))
    for cell in plan.cells:
        if cell.columns()["chip"] == "h200-sxm":
            assert cell.spec.infeasible == "step_times = calibrated.toml is of h100-sxm, not of h200-sxm"
        else:
            assert cell.spec.infeasible is None
            assert (cell.spec.step.mfu, cell.spec.step.mbu) == (0.5, None)
            assert cell.spec.step.allreduce_s == (1e-6 if cell.spec.step.tp == 2 else None)


def test_tables_are_of_a_number_of_gpus(tmp_path):
    ss.save_step_times(ss.TableStepTimes([(0, 0.01)], n_gpus=2), tmp_path / "two.toml")
    config = changed(instance={"step_times": str(tmp_path / "two.toml"), "tp": [1, 2]})
    reasons = {cell.columns()["tp"]: cell.spec.infeasible for cell in expand(load_experiment(config)).cells}
    assert reasons == {1: "step_times = two.toml is of 2 GPUs, and tp x pp = 1", 2: None}


def test_a_degree_that_no_engine_has_is_infeasible_with_operators_too():
    config = changed(instance={"step_times": "operators", "model": ["llama-3.1-8b", "qwen2.5-7b"], "tp": [4, 32]})
    reasons = {
        (c.columns()["model"], c.columns()["tp"]): c.spec.infeasible for c in expand(load_experiment(config)).cells
    }
    assert reasons["llama-3.1-8b", 32] is None
    assert "does not divide the 28 attention heads" in reasons["qwen2.5-7b", 32]


def test_tables_are_not_sent_to_workers():
    import pickle

    plan = expand(load_experiment(changed(instance={"step_times": "operators"})))
    for cell in plan.cells:
        cell.spec.step.step_time(3, 100)
    assert len(pickle.dumps(make_task(plan, range(4), set(), set()))) < 20_000


def test_run_says_what_step_times_rest_on(tmp_path, monkeypatch, capsys):
    import json

    monkeypatch.chdir(tmp_path)
    run = ss.run_grid(changed(instance={"step_times": "operators", "chip": "l40s"}), out="run", progress=False)
    said = "operators: constants of rtx4090, l40s was not measured"
    assert set(run.df["step_times_source"]) == {said}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["step_times"] == [said]
    from servesweep.commands.main import command_line

    assert command_line(["show", "run"]) == 0
    assert f"Step times: {said}" in capsys.readouterr().out
