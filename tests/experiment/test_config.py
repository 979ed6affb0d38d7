"""Experiments: what is read, and that everything wrong is reported at once, where it is and with what is allowed."""

import re
from pathlib import Path

import pytest
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment, ready_experiments
from servesweep.experiment.tables import TABLES, ConfigError, check_columns, key_names
from servesweep.experiment.toml_lines import key_lines, line_of
from servesweep.workloads.workload import LognormalLen

SMALL = {
    "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 20, "request_rate_rps": [1, 2]},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": 16},
}


def changed(**tables):
    """SMALL with keys replaced; None removes a key."""
    result = {name: dict(table) for name, table in SMALL.items()}
    for name, keys in tables.items():
        table = result.setdefault(name, {})
        for key, value in keys.items():
            table[key] = value
            if value is None:
                del table[key]
    return result


def problems(config, **options):
    with pytest.raises(ConfigError) as caught:
        load_experiment(config, **options)
    return list(caught.value.problems)


def problem(config, **options):
    """The only problem."""
    (text,) = problems(config, **options)
    return text


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
        changed(instance={"tp": [1, 2], "link": "nvlink5"}, output={"steps": "all"}),
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
        ("quickstart", 2 * 3 * 4 * 24, 2000),
    ],
)
def test_ready_experiments(name, cells, requests, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{50 + i},{9 + i}\n" for i in range(5)))
    experiment = load_experiment(name, trace=None if name == "quickstart" else trace)
    plan = expand(experiment)
    assert (experiment.name, len(plan.cells), len(plan.feasible)) == (name, cells, cells)
    assert {len(cell.traffic.workload) for cell in plan.cells} == {requests}


def test_every_ready_experiment_is_counted_above():
    elsewhere = ["hundred-instances", "placement-chat", "placement-long", "systems"]  # in other files
    assert ready_experiments() == sorted(["azure-conversation", "mooncake-conversation", "quickstart", *elsewhere])


# ------------------------------------------------------------------------------------------------------------- refusing


def test_everything_wrong_is_reported_at_once_in_the_order_of_the_lines(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(
        """\
name = "bad"
polcy = "mixed"
[workload]
kind = "conversation"
n_requests = [
    100,
    0,
]
request_rate_rps = 0
cv = 2.0
[instance]
model = "lama-3.1-8b"
chip = "h100-sxm"
mfu = nan
[scheduler]
policy = ["mixed", "mixed"]
memory = "unlimited"
"block_size" = 16
[slo]
tpot_ms = true
[resluts]
"""
    )
    found = problems(file)
    places = [(int(match[1]), match[2]) for text in found if (match := re.match(r".*bad\.toml:(\d+): ([\w.]+)", text))]
    assert places == [
        (2, "polcy"),
        (5, "workload.n_requests"),
        (9, "workload.request_rate_rps"),
        (10, "workload.cv"),
        (12, "instance.model"),
        (14, "instance.mfu"),
        (16, "scheduler.policy"),
        (18, "scheduler.block_size"),
        (20, "slo.tpot_ms"),
        (21, "resluts"),
    ]
    text = "\n".join(found)
    assert 'did you mean "policy" in [scheduler]?' in found[0]
    assert "workload.n_requests = 0: must be an integer of at least 1" in text
    assert "workload.request_rate_rps = 0: must be a finite number above 0" in text
    assert 'did you mean "llama-3.1-8b"?' in text
    assert "is given twice" in text
    assert 'has no effect without memory = "paged"' in text


def test_a_syntax_error_has_its_line(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('name = "x"\n[workload\n')
    assert re.match(r".*bad\.toml:2: TOML syntax: ", problem(file))


def test_a_missing_file_names_the_ready_experiments():
    text = problem("quikstart")
    assert "no such file or ready experiment" in text
    assert 'Did you mean "quickstart"?' in text


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"workload": {"request_rate_rps": 0}}, "request_rate_rps = 0: must be a finite number above 0"),
        ({"workload": {"request_rate_rps": [1.0, -2.0]}}, "request_rate_rps = -2.0: must be"),
        ({"workload": {"request_rate_rps": float("nan")}}, "request_rate_rps = nan: must be"),
        ({"workload": {"request_rate_rps": float("inf")}}, "request_rate_rps = inf: must be"),
        ({"workload": {"request_rate_rps": []}}, "request_rate_rps = []: must hold at least one value"),
        ({"workload": {"request_rate_rps": [1, 2, 1.0]}}, "request_rate_rps = 1.0: is given twice"),
        ({"workload": {"request_rate_rps": None}}, "request_rate_rps is missing"),
        ({"workload": {"request_rate_rps": "fast"}}, 'request_rate_rps = "fast": must be a finite number'),
        ({"workload": {"request_rate_rps": {"from": 2, "to": 1, "count": 3}}}, "to = 1: must be above from = 2"),
        ({"workload": {"request_rate_rps": {"from": 1, "to": 2}}}, "count must be given"),
        ({"workload": {"request_rate_rps": {"from": 1, "to": 2, "count": 1}}}, "count = 1: must be an integer of at l"),
        ({"workload": {"request_rate_rps": {"from": 1, "to": 2, "count": 3, "spacing": "lin"}}}, 'mean "linear"?'),
        ({"workload": {"n_requests": 0}}, "n_requests = 0: must be an integer of at least 1"),
        ({"workload": {"n_requests": True}}, "n_requests = true: must be an integer"),
        ({"workload": {"n_requests": 10.0}}, "n_requests = 10.0: must be an integer"),
        ({"workload": {"n_requests": 10**12}}, "n_requests = 1000000000000: must be at most 100000000"),
        ({"workload": {"n_requests": 10**400}}, ": must be at most 100000000"),
        ({"workload": {"seed": 2**63}}, "seed = 9223372036854775808: must be at most 9223372036854775807"),
        ({"workload": {"request_rate_rps": 10**400}}, ": must be a finite number above 0"),
        ({"workload": {"arrivals": "bursty", "cv": 1e-200}}, "cv = 1e-200: must be a finite number of at least 0.001"),
        ({"workload": {"arrivals": "bursty", "cv": 1e200}}, "cv = 1e+200: must be a finite number of at least 0.001"),
        ({"workload": {"prompt": 2**63}}, "prompt = 9223372036854775808: must be at most 2147483647"),
        ({"workload": {"output": 2**31}}, "output = 2147483648: must be at most 2147483647"),
        (
            {"workload": {"prompt": {"mean": 4, "sigma": 1e200, "lo": 1, "hi": 2}}},
            "prompt.sigma = 1e+200: must be a finite number of at least 0 and at most 10",
        ),
        (
            {"workload": {"prompt": {"mean": 4, "sigma": 1, "lo": 1, "hi": 2**31}}},
            "prompt.hi = 2147483648: must be at most 2147483647",
        ),
        ({"instance": {"tp": 2**62}}, "tp = 4611686018427387904: must be at most 65536"),
        ({"instance": {"weight_bytes": 1e300}}, "weight_bytes = 1e+300: must be a finite number of at least 0.001 and"),
        ({"instance": {"mfu": 1e-300}}, "mfu = 1e-300: must be a finite number of at least 1e-06 and at most 1"),
        ({"scheduler": {"block_size": 2**63}}, "block_size = 9223372036854775808: must be at most 9223372036854775807"),
        ({"workload": {"seed": -1}}, "seed = -1: must be an integer of at least 0"),
        ({"workload": {"prompt": -4}}, "prompt = -4: must be an integer of at least 1, or a table of mean"),
        (
            {"workload": {"prompt": {"mean": 4, "sigma": 1, "lo": 9, "hi": 2}}},
            "workload.prompt.lo = 9: must be at most hi = 2",
        ),
        ({"workload": {"prompt": {"mean": 4, "sgima": 1, "lo": 1, "hi": 2}}}, 'did you mean "sigma"?'),
        ({"workload": {"prompt": None}}, "workload.prompt is missing"),
        ({"workload": {"kind": "chat"}}, 'kind = "chat": is unknown; known: conversation, synthetic, trace'),
        (
            {"workload": {"kind": "conversation", "output": None}},
            'prompt = 100: has no effect without kind = "synthetic"',
        ),
        ({"workload": {"cv": 2}}, 'cv = 2: has no effect without arrivals = "bursty"'),
        ({"workload": {"path": "x.csv"}}, 'path = "x.csv": has no effect without kind = "trace"'),
        ({"instance": {"model": "gpt-5"}}, 'model = "gpt-5": is unknown'),
        ({"instance": {"chip": None}}, "instance.chip is missing"),
        ({"instance": {"tp": 0}}, "tp = 0: must be an integer of at least 1"),
        ({"instance": {"link": "nvlink4"}}, 'link = "nvlink4": has no effect without tp above 1'),
        ({"instance": {"tp": 2, "link": "nvlnk4"}}, 'did you mean "nvlink4"?'),
        ({"instance": {"mem_reserve": 1}}, "mem_reserve = 1: must be a finite number of at least 0 and below 1"),
        ({"instance": {"overhead_s": -1e-3}}, "overhead_s = -0.001: must be"),
        ({"scheduler": {"policy": "fcfs"}}, 'policy = "fcfs": is unknown; known: mixed, chunked, prefill_first'),
        ({"scheduler": {"memory": "pagd"}}, 'did you mean "paged"?'),
        ({"scheduler": {"memory": "unlimited"}}, 'block_size = 16: has no effect without memory = "paged"'),
        ({"scheduler": {"policy": "mixed", "token_budget": 512}}, 'has no effect without policy = "chunked"'),
        ({"scheduler": {"max_tokens": 512}}, 'has no effect without policy = "prefill_first"'),
        ({"scheduler": {"token_budget": 128}}, "token_budget = 128: must be at least max_running = 256"),
        ({"scheduler": {"max_running": 1024}}, "token_budget = 512: must be at least max_running = 1024"),
        ({"scheduler": {"block_size": [16, 16]}}, "block_size = 16: is given twice"),
        ({"slo": {"ttft_ms": 0}}, "ttft_ms = 0: must be a finite number above 0"),
        ({"slo": {"warmup": 0.5, "cooldown": 0.5}}, "warmup = 0.5: must leave requests"),
        ({"output": {"steps": 3}}, "steps = 3: must be a string"),
    ],
)
def test_one_problem(tables, words):
    text = problem(changed(**tables))
    assert text.startswith("config: ")
    assert words in text


def test_a_table_that_is_none_and_a_name_that_is_no_folder():
    assert problem({**SMALL, "slo": 3}) == "config: slo = 3: must be a table"
    assert "names a folder" in problem({**SMALL, "name": "../up"})
    assert 'did you mean "policy" in [scheduler]?' in problem({**SMALL, "policy": "mixed"})


def test_traces_that_cannot_be():
    trace = {"workload": {"kind": "trace", "request_rate_rps": 1}, "instance": SMALL["instance"]}
    assert "needs a file, here or by --trace" in problem(trace)
    assert "no such file" in problem(trace, trace="nowhere.csv")
    assert problem(trace, trace="nowhere.csv").startswith("--trace: ")
    trace["workload"] |= {"path": __file__, "start_s": 5, "end_s": 5, "seed": 1}
    assert [text.split(":", 1)[1].split(" =")[0].strip() for text in problems(trace)] == [
        "workload.seed",
        "workload.end_s",
    ]


def test_settings_that_cannot_be():
    found = problems(SMALL, settings=["blok_size=8", "n_requests=0", "policy"])
    assert 'did you mean "block_size"?' in found[0]
    assert any(text.startswith("--set: workload.n_requests = 0") for text in found)
    assert any(text.startswith("--set policy: must be key=value") for text in found)


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


def test_choices_by_unknown_columns_are_told_with_all_else():
    config = changed(scheduler={"token_budget": 128}, output={"steps": "polcy=chunked"}, slo={"ttft_ms": 0})
    found = " ".join(problems(config))
    assert len(problems(config)) == 3
    assert "output.steps = 'polcy=chunked': unknown column 'polcy'; did you mean \"policy\"?" in found


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
    assert mixed.tables()["scheduler"] == {"policy": "mixed", "memory": "unlimited", "max_running": 256}
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


def test_all_that_is_wrong_in_an_inline_table_is_told_with_its_place():
    length = {"mean": 0, "sigma": -1, "lo": -2, "hi": 0}
    found = problems(changed(workload={"prompt": length}))
    assert [text.split(" = ")[0] for text in found] == [f"config: workload.prompt.{name}" for name in length]
    found = problems(SMALL, settings=["request_rate_rps={from=1, to=4, cnt=3}"])
    assert all(text.startswith("--set: workload.request_rate_rps") for text in found)


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
    docs = Path(__file__).parents[2].joinpath("docs", "sweeps.md").read_text(encoding="utf-8")
    missing = [
        f"{table}.{name}" for table, keys in TABLES.items() for name in key_names(keys) if f"`{name}`" not in docs
    ]
    assert not missing
