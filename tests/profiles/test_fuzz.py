"""Whatever a file of measurements, a benchmark or a profile holds, it is read or refused with its name: no crash."""

import json
from pathlib import Path

import benchmark_files as made
from hypothesis import given
from hypothesis import strategies as st
from servesweep import load_benchmark, load_step_times, measured_step_times, save_step_times
from step_files import write_steps

ODD = st.sampled_from([None, True, -1, 0, 2.5, 1e308, 10**400, "", "x", "nan", [], [[]], {}, {"a": 1}, [1, "b"]])
PARTS = ["", "0", "-1", "1e400", "nan", "inf", ",", "\n", '"', "x", "\0", "é", "{", "[", "]", "=", "1.5", "\ud7ff"]


def changed(draw, content):
    """JSON with one of its values replaced, or taken away."""
    at = content
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys[:12]))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            break
        at = at[key]
    if draw(st.booleans()):
        at[key] = draw(ODD)
    else:
        del at[key]
    return content


def cut(draw, text):
    """Text with a piece of it replaced."""
    begin = draw(st.integers(0, len(text)))
    return text[:begin] + draw(st.sampled_from(PARTS)) + text[begin + draw(st.integers(0, 30)) :]


def read(function, path, text):
    path.write_text(text, encoding="utf-8")
    said = path.name
    try:
        function(path)
    except ValueError as error:
        said = str(error)
    assert path.name in said
    assert "\n" not in said


@given(st.data())
def test_benchmarks(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bench.json"
    whole = data.draw(st.sampled_from([made.vllm, made.guidellm]))()
    read(load_benchmark, path, json.dumps(changed(data.draw, json.loads(whole))))
    lines = data.draw(st.sampled_from([made.aiperf, made.serving_sim]))().splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = json.dumps(changed(data.draw, json.loads(lines[place])))
    read(load_benchmark, path, "\n".join(lines))
    kind = data.draw(st.sampled_from([made.vllm, made.guidellm, made.aiperf, made.serving_sim, made.csv_rows]))
    read(load_benchmark, path, cut(data.draw, kind()))


@given(st.data())
def test_steps_and_profiles(tmp_path_factory, data):
    folder: Path = tmp_path_factory.getbasetemp()
    text = write_steps(folder / "fine.csv").read_text("utf-8")
    read(measured_step_times, folder / "steps.csv", cut(data.draw, text))
    profile = save_step_times(measured_step_times(folder / "fine.csv"), folder / "fine.toml").read_text("utf-8")
    read(load_step_times, folder / "own.toml", cut(data.draw, profile))
