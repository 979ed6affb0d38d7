"""Presets: systems that papers name, as defaults of keys."""

import pytest
import servesweep as ss
from servesweep.experiment.outlines import outline
from servesweep.experiment.plan import expand
from servesweep.experiment.presets import PRESETS
from servesweep.experiment.reader import load_experiment
from small_experiment import changed, problem

BASE = {
    "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 20, "request_rate_rps": [1, 2]},
    "instance": {"model": "opt-13b", "chip": "a100-80-sxm"},
}


def of_preset(name, **tables):
    config = {**BASE, "system": {"preset": name}}
    for table, keys in tables.items():
        config[table] = {**config.get(table, {}), **keys}
    return config


def ids(config):
    return [cell.cell_id for cell in expand(load_experiment(config)).cells]


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_its_keys_written_out(name):
    preset = PRESETS[name]
    written = {**BASE, "system": dict(preset.system), "scheduler": dict(preset.scheduler)}
    experiment = load_experiment(of_preset(name))
    several = (
        {"system": {"n_prefill": 2}} if "disaggregated" in preset.system.values() else {"system": {"n_instances": 2}}
    )
    assert ids(experiment) == ids(of_preset(name)) == ids(written_without_router(written))
    assert load_experiment(experiment.tables()) == experiment == load_experiment(experiment)
    assert outline(experiment).cells == len(ids(experiment)) == 2
    columns = expand(load_experiment(of_preset(name, **several))).cells[0].columns()
    for key, value in {**preset.system, **preset.scheduler}.items():
        assert columns["system" if key == "kind" else key] == value, key


def written_without_router(tables):
    """With one instance of each role a router would have no effect, which is an error where it is given."""
    return {**tables, "system": {key: value for key, value in tables["system"].items() if key != "router"}}


def test_given_keys_replace_those_of_a_preset():
    cells = expand(load_experiment(of_preset("sarathi-serve", scheduler={"token_budget": [256, 2048]}))).cells
    assert {cell.columns()["token_budget"] for cell in cells} == {256, 2048}
    assert {cell.columns()["max_running"] for cell in cells} == {128}
    reserved = load_experiment(of_preset("vllm-v0", scheduler={"memory": "reserve"}))
    assert (reserved.scheduler.policy, reserved.scheduler.memory) == (("prefill_first",), ("reserve",))
    both = load_experiment(of_preset("vllm-v0", scheduler={"policy": ["prefill_first", "chunked"]}))
    assert len(expand(both).cells) == 4


def test_a_preset_of_the_command_line_takes_effect_from_keys_of_the_file():
    config = {**of_preset("distserve"), "prefill_instance": {"tp": 2}}
    experiment = load_experiment(config, settings=["preset=vllm-v0"])
    assert experiment.system.kind == ("colocated",)
    assert expand(experiment).cells[0].columns()["policy"] == "prefill_first"
    text = problem(changed(system={"preset": "orka"}))
    assert 'system.preset = "orka": is unknown; did you mean "orca"?' in text


@pytest.mark.parametrize(
    ("name", "cells"),
    [("paper-vllm", 9), ("paper-sarathi", 60), ("paper-distserve", 2 * 9), ("paper-splitwise", 4 * 9)],
)
def test_experiments_of_papers_run(name, cells, tmp_path):
    assert outline(load_experiment(name)).cells == cells
    small = {"n_requests": 30, "request_rate_rps": 1}
    run = ss.run_grid(name, settings=small, out=tmp_path, progress=False)
    assert run.counts["ok"] == len(run.df) > 0
