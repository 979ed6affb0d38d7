"""Experiments: what is read, with settings and defaults, and the lines of keys."""

from pathlib import Path

import pytest
from servesweep.experiment.cell_selection import check_columns
from servesweep.experiment.keys import key_names
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment, ready_experiments
from servesweep.experiment.tables import TABLES
from servesweep.experiment.toml_lines import key_lines, line_of
from servesweep.workloads.workload import LognormalLen
from small_experiment import SMALL, changed, problem

# ------------------------------------------------------------------------------------------------------------- reading


def test_scalars_lists_and_defaults():
    experiment = load_experiment(SMALL)
    assert experiment.workload.request_rate_rps == (1.0, 2.0)
    assert experiment.scheduler.policy == ("mixed", "chunked")
    assert experiment.scheduler.memory == ("paged",)  # because a block size is given
    assert experiment.scheduler.token_budget == (512,)
    assert experiment.scheduler.num_blocks == (None,)
    assert experiment.slo.ttft_ms == (None,)
    assert (experiment.slo.warmup, experiment.slo.cooldown) == (0.2, 0.2)


def test_memory_is_unlimited_without_blocks():
    assert load_experiment(changed(scheduler={"block_size": None})).scheduler.memory == ("unlimited",)


@pytest.mark.parametrize(
    ("chips", "limits"),
    [
        ("h100-sxm", (8192, 1024)),
        ("a100-80-sxm", (2048, 256)),
        ("l4", (2048, 256)),
        ("b200-sxm", (16384, 1024)),
        (["h100-sxm", "l4"], (2048, 256)),
    ],
)
def test_vllm_alone_has_the_defaults_of_its_server(chips, limits):
    config = {"workload": {"request_rate_rps": 1}, "instance": {"model": "llama-3.1-8b", "chip": chips}}
    scheduler = load_experiment({**config, "scheduler": {"policy": "vllm"}}).scheduler
    assert (*scheduler.token_budget, *scheduler.max_running) == limits
    assert (scheduler.memory, scheduler.enable_prefix_caching) == (("paged",), (True,))
    given = {"policy": "vllm", "max_running": 64, "token_budget": 512, "memory": "unlimited"}
    scheduler = load_experiment({**config, "scheduler": given}).scheduler
    assert (scheduler.token_budget, scheduler.max_running, scheduler.memory) == ((512,), (64,), ("unlimited",))
    beside = load_experiment({**config, "scheduler": {"policy": ["vllm", "mixed"]}}).scheduler
    assert (beside.token_budget, beside.enable_prefix_caching) == ((512,), (False,))


def test_options_of_vllm_are_axes():
    options = {"policy": "vllm", "watermark": [0, 0.1], "async_scheduling": [False, True], "reserve_full_isl": False}
    config = {"workload": {"request_rate_rps": 1}, "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"}}
    cells = expand(load_experiment({**config, "scheduler": options})).cells
    assert [(cell.columns()["watermark"], cell.columns()["async_scheduling"]) for cell in cells] == [
        (0.0, False),
        (0.0, True),
        (0.1, False),
        (0.1, True),
    ]
    assert problem({**config, "scheduler": {**options, "async_scheduling": 1}}).endswith(
        "scheduler.async_scheduling = 1: must be true or false"
    )


def test_integers_are_taken_for_numbers_and_numpy_from_python():
    import numpy as np

    experiment = load_experiment(changed(workload={"request_rate_rps": np.arange(1, 4), "n_requests": np.int64(7)}))
    assert experiment.workload.request_rate_rps == (1.0, 2.0, 3.0)
    assert all(type(rate) is float for rate in experiment.workload.request_rate_rps)
    assert experiment.workload.n_requests == (7,)


@pytest.mark.parametrize(
    ("spacing", "rates"),
    [({}, (2.0, 6.325, 20.0)), ({"spacing": "log"}, (2.0, 6.325, 20.0)), ({"spacing": "linear"}, (2.0, 11.0, 20.0))],
)
def test_a_range_of_rates(spacing, rates):
    config = changed(workload={"request_rate_rps": {"from": 2, "to": 20, "count": 3, **spacing}})
    assert load_experiment(config).workload.request_rate_rps == rates


def test_lengths():
    length = {"mean": 400, "sigma": 0.8, "lo": 16, "hi": 4000}
    workload = load_experiment(changed(workload={"prompt": length})).workload
    assert workload.prompt == LognormalLen(400, 0.8, 16, 4000)
    assert workload.output == 10


def test_tables_read_again_give_the_same_experiment(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n")
    for config in (
        SMALL,
        changed(workload={"arrivals": ["poisson", "bursty"], "cv": [2, 3]}, slo={"ttft_ms": [100, 200]}),
        changed(instance={"step_times": "roofline", "tp": [1, 2], "link": "nvlink5"}, output={"steps": "all"}),
    ):
        experiment = load_experiment(config)
        assert load_experiment(experiment.tables()) == experiment
        assert load_experiment(experiment) == experiment
    traced = load_experiment(SMALL, trace=trace)
    assert traced.tables()["workload"]["path"] == "t.csv"  # no path of this machine
    assert load_experiment(traced).workload.path == trace


def test_the_name_is_that_of_the_file(tmp_path):
    file = tmp_path / "night-run.toml"
    file.write_text('[workload]\nrequest_rate_rps = 1\n[instance]\nmodel = "llama-3.1-8b"\nchip = "h100-sxm"\n')
    assert load_experiment(file).name == "night-run"


def test_a_trace_replaces_the_workload_and_keeps_rates_and_size(tmp_path):
    trace = tmp_path / "t.csv"
    trace.touch()
    workload = load_experiment(SMALL, trace=trace).workload
    assert (workload.kind, workload.path, workload.prompt) == ("trace", trace, None)
    assert (workload.n_requests, workload.request_rate_rps, workload.seed) == ((20,), (1.0, 2.0), (None,))


def test_a_trace_path_is_relative_to_the_file(tmp_path):
    (tmp_path / "t.csv").touch()
    file = tmp_path / "e.toml"
    file.write_text(
        '[workload]\nkind = "trace"\npath = "t.csv"\nrequest_rate_rps = 1\n'
        '[instance]\nmodel = "llama-3.1-8b"\nchip = "h100-sxm"\n'
    )
    workload = load_experiment(file).workload
    assert workload.path == tmp_path / "t.csv"
    assert (workload.n_requests, workload.seed) == ((None,), (None,))


def test_settings_replace_and_remove_keys():
    settings = ["policy=chunked", "slo.ttft_ms=[100, 200]", "n_requests = 5", "block_size=", "name=other"]
    experiment = load_experiment(SMALL, settings=settings)
    assert experiment.scheduler.policy == ("chunked",)
    assert experiment.slo.ttft_ms == (100.0, 200.0)
    assert experiment.workload.n_requests == (5,)
    assert experiment.scheduler.memory == ("unlimited",)
    assert experiment.name == "other"


@pytest.mark.parametrize(
    ("name", "cells", "requests"),
    [
        ("azure-conversation", 2 * 3 * 4 * 11, 5),  # memories x policies x block sizes x rates
        ("mooncake-conversation", 3 * 4 * 12, 5),
        ("prefix-caching", 2 * 4 * 8, 2000),
        ("quickstart", 2 * 3 * 4 * 24, 2000),
    ],
)
def test_ready_experiments(name, cells, requests, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{50 + i},{9 + i}\n" for i in range(5)))
    experiment = load_experiment(name, trace=trace if "conversation" in name else None)
    plan = expand(experiment)
    assert (experiment.name, len(plan.cells), len(plan.feasible)) == (name, cells, cells)
    assert {len(cell.traffic.workload) for cell in plan.cells} == {requests}


def test_every_ready_experiment_is_counted_above():
    elsewhere = ["hundred-instances", "placement-chat", "placement-long", "systems"]  # in other files
    elsewhere += ["paper-distserve", "paper-sarathi", "paper-splitwise", "paper-vllm"]
    assert ready_experiments() == sorted(
        ["azure-conversation", "mooncake-conversation", "prefix-caching", "quickstart", *elsewhere]
    )


def test_settings_as_a_dict():
    settings = {"policy": "chunked", "slo.ttft_ms": [100, 200], "block_size": None, "request_rate_rps": [6, 12]}
    experiment = load_experiment(SMALL, settings=settings)
    assert experiment.scheduler.policy == ("chunked",)
    assert experiment.slo.ttft_ms == (100.0, 200.0)
    assert experiment.scheduler.memory == ("unlimited",)
    assert problem(SMALL, settings={"blok_size": 8}).startswith("settings: 'blok_size': must be a known key; did you")
    assert problem(SMALL, settings={"n_requests": 0}).startswith("settings: workload.n_requests = 0: must be")
    for wrong in ("policy=mixed", [("policy", "mixed")]):
        text = problem(SMALL, settings=wrong)
        assert text.startswith(f"settings={wrong!r}: must be a dict of keys and values, or a list of ")
        assert "--set" not in text


def test_the_columns_of_choices_are_those_of_cells():
    cell = expand(load_experiment(SMALL)).cells[0]
    for column in cell.columns():
        check_columns(f"{column}=1")


def test_keys_that_lose_their_effect_by_a_setting_are_left_out(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(
        """\
[workload]
kind = "synthetic"
prompt = 10
output = 10
arrivals = "bursty"
cv = 2.0
request_rate_rps = 1
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
[scheduler]
policy = ["mixed", "chunked"]
block_size = 16
token_budget = 512
"""
    )
    mixed = load_experiment(file, settings=["policy=mixed", "memory=unlimited", "kind=conversation"])
    left = {"policy": "mixed", "memory": "unlimited", "max_running": 256, "order": "arrival"}
    assert mixed.tables()["scheduler"] == left
    assert mixed.tables()["workload"].keys() == {"kind", "n_requests", "seed", "request_rate_rps"}
    # But what the command line itself gives must have an effect.
    assert problem(file, settings=["policy=mixed", "token_budget=512"]).startswith(
        "--set: scheduler.token_budget = 512"
    )


def test_settings_come_after_the_trace(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n0,1,1\n3,0,1\n3,1,1\n")
    experiment = load_experiment(SMALL, trace=trace, settings=["on_bad=skip", "spread_s=auto", "seed=[0,1]"])
    assert experiment.workload.on_bad == "skip"
    assert (experiment.workload.spread_s, experiment.workload.seed) == ("auto", (0, 1))


# --------------------------------------------------------------------------------------------------------------- lines


def test_lines_of_keys():
    text = '''\
a = 1 # [not.a.table]
b.c = """
[x]
y = 2
"""
"quoted key" = 'it''s'
[table]  # comment
list = [
  1, # ]
  "]",
]
inline = { deep = [1,
2] }
[ other . "dotted.name" ]
last = "\\"#"
[[many]]
z = 1
'''
    lines = key_lines(text.replace("'it''s'", "'its'"))
    assert lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 2,
        ("quoted key",): 6,
        ("table",): 7,
        ("table", "list"): 8,
        ("table", "inline"): 12,
        ("other", "dotted.name"): 14,
        ("other", "dotted.name", "last"): 15,
        ("many",): 16,
        ("many", "z"): 17,
    }
    assert line_of(lines, ("table", "inline", "deep")) == 12
    assert line_of(lines, ("nothing",)) is None


def test_the_docs_explain_every_key():
    docs = Path(__file__).parents[2].joinpath("docs", "experiment-keys.md").read_text(encoding="utf-8")
    missing = [
        f"{table}.{name}" for table, keys in TABLES.items() for name in key_names(keys) if f"`{name}`" not in docs
    ]
    assert not missing
