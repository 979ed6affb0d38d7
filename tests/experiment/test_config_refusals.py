"""What is wrong with an experiment is told all at once, where it is and with what is allowed."""

import re

import pytest
from small_experiment import SMALL, changed, problem, problems


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
        (
            {"workload": {"kind": "chat"}},
            'kind = "chat": is unknown; known: conversation, synthetic, shared_prefix, trace',
        ),
        (
            {"workload": {"kind": "conversation", "output": None}},
            'prompt = 100: has no effect without kind = "synthetic"',
        ),
        ({"workload": {"cv": 2}}, 'cv = 2: has no effect without arrivals = "bursty"'),
        ({"workload": {"path": "x.csv"}}, 'path = "x.csv": has no effect without kind = "trace"'),
        ({"instance": {"model": "gpt-5"}}, 'model = "gpt-5": is unknown'),
        ({"instance": {"chip": None}}, "instance.chip is missing"),
        ({"instance": {"tp": 0}}, "tp = 0: must be an integer of at least 1"),
        (
            {"instance": {"step_times": "roofline", "link": "nvlink4"}},
            'link = "nvlink4": has no effect without tp above 1',
        ),
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


def test_choices_by_unknown_columns_are_told_with_all_else():
    config = changed(scheduler={"token_budget": 128}, output={"steps": "polcy=chunked"}, slo={"ttft_ms": 0})
    found = " ".join(problems(config))
    assert len(problems(config)) == 3
    assert "output.steps = 'polcy=chunked': unknown column 'polcy'; did you mean \"policy\"?" in found


def test_all_that_is_wrong_in_an_inline_table_is_told_with_its_place():
    length = {"mean": 0, "sigma": -1, "lo": -2, "hi": 0}
    found = problems(changed(workload={"prompt": length}))
    assert [text.split(" = ")[0] for text in found] == [f"config: workload.prompt.{name}" for name in length]
    found = problems(SMALL, settings=["request_rate_rps={from=1, to=4, cnt=3}"])
    assert all(text.startswith("--set: workload.request_rate_rps") for text in found)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({**SMALL, "system": {"n_instance": 2, "router": "round_robin"}}, 'did you mean "n_instances"?'),
        ({**SMALL, "system": {"replicas": 2, "router": "round_robin"}}, "system.replicas: unknown key"),
        ({**SMALL, "sytem": {"n_instances": 2}, "system": {"router": "round_robin"}}, "sytem: unknown table; did you"),
        ({**SMALL, "n_instances": 2, "system": {"router": "round_robin"}}, 'did you mean "n_instances" in [system]?'),
        (changed(**{"instance": {"model": None, "modle": "llama-3.1-8b"}}), 'did you mean "model"?'),
        (changed(**{"workload": {"request_rate_rps": None, "request_rate": 3}}), 'did you mean "request_rate_rps"?'),
        (changed(**{"workload": {"request_rate_rps": {"form": 1, "to": 2, "count": 3}}}), 'did you mean "from"?'),
        ({**{k: v for k, v in SMALL.items() if k != "instance"}, "instnace": SMALL["instance"]}, 'mean "instance"?'),
        (changed(**{"scheduler": {"memroy": "paged", "num_blocks": 99}}), 'did you mean "memory"?'),
    ],
)
def test_what_follows_from_a_misspelt_key_is_not_told(tables, words):
    assert words in problem(tables)


@pytest.mark.parametrize(
    "settings", [["n_instance=2"], ["system.n_instance=2"], ["n_instances=[2,", "tp=1"], {"n_instance": 2}]
)
def test_nor_what_follows_from_a_misspelt_setting(settings):
    text = problem({**SMALL, "system": {"router": "round_robin"}}, settings=settings)
    assert "has no effect" not in text


def test_a_key_without_effect_is_still_told_where_nothing_is_misspelt_that_decides_on_it():
    found = problems({**changed(**{"slo": {"tttf_ms": 5}}), "system": {"router": "round_robin"}})
    assert any("tttf_ms: unknown key" in text for text in found)
    assert any("system.router" in text and "has no effect without n_instances above 1" in text for text in found)


def test_known_names_are_told_once():
    text = problem(SMALL, settings=["sead=1"])
    names = text.partition("Known: ")[2].split(", ")
    assert names[0] == "seed"
    assert len(names) == len(set(names)) > 30
