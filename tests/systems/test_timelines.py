"""Timelines: every step played back agrees with the engine; pictures and traces of it."""

import json
from itertools import pairwise

import pandas as pd
import pytest
import servesweep
from hypothesis import given
from matplotlib.figure import Figure
from parity import lanes_of
from profiles import MANY_CASES
from servesweep import plots
from servesweep.commands.main import command_line
from servesweep.plots.timeline import timeline_figure
from servesweep.plots.trace_events import chrome_trace
from servesweep.serving.run import run_systems
from servesweep.serving.timelines import (
    DECODE,
    PAUSED,
    PREEMPTED,
    PREFILL,
    TRANSFER,
    WAITING,
    timeline,
    timeline_of_requests,
)
from strategies import EXAMPLES, POLICIES, LaneCase, lane_cases


def drawn(requests, **options):
    return timeline_of_requests([servesweep.Request(*request) for request in requests], **options)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_in_one_condition_at_a_time_and_tokens_add_up(policy: str) -> None:
    seen = set()

    @given(lane_cases(policy=policy))
    def check(case: LaneCase) -> None:
        (lane,) = lanes_of([case])
        result = run_systems([lane]).result(0)
        found = timeline(lane)  # raises where playback and engine differ
        by_name = {int(name): segments for name, segments in zip(found.names, found.segments, strict=True)}
        assert sorted([*by_name, *map(int, found.rejected)]) == list(range(len(result)))
        for i, segments in by_name.items():
            assert segments[0].start_s == result.arrival_s[i]
            assert segments[-1].end_s == result.finish_s[i]
            assert all(a.end_s == b.start_s for a, b in pairwise(segments))
            assert sum(segment.emitted for segment in segments) == result.output_tokens[i]
            assert next(s.start_s for s in segments if s.what != WAITING) == result.admitted_s[i]
            assert next(s.end_s for s in segments if s.emitted) == result.first_token_s[i]
            seen.update(segment.what for segment in segments)
        preempted = dict(zip(map(int, found.names), map(len, found.preempted_s), strict=True))
        assert all(preempted.get(i, 0) == count for i, count in enumerate(result.preemptions))
        prefill = sum(s.tokens for segments in found.segments for s in segments if s.what == PREFILL)
        assert prefill == result.prefill_tokens

    check()
    assert PAUSED not in seen or policy != "mixed"
    if MANY_CASES:
        assert {WAITING, PREFILL, DECODE, PREEMPTED} <= seen
        assert policy == "vllm" or (PAUSED in seen) == (policy != "mixed")  # rarely there


def test_the_worked_example_with_a_preemption():
    options, requests, *_ = EXAMPLES[1]
    found = drawn(requests, **options)
    assert found.names == ["A", "B", "C"]
    assert found.clock == "step"
    assert [(s.what, s.start_s, s.end_s, s.tokens, s.emitted) for s in found.segments[1]] == [
        (PREFILL, 0, 1, 4, 1),
        (DECODE, 1, 3, 2, 2),
        (PREEMPTED, 3, 4, 0, 0),
        (PREFILL, 4, 5, 7, 1),
        (DECODE, 5, 6, 1, 1),
    ]
    assert [(s.what, s.start_s, s.end_s) for s in found.segments[2]] == [
        (WAITING, 1, 4), (PREFILL, 4, 5), (DECODE, 5, 6)
    ]  # fmt: skip
    assert found.preempted_s == [[], [3.0], []]


# ------------------------------------------------------------------------------------------ other systems and pictures


@pytest.fixture(scope="module")
def step():
    return servesweep.StepModel(servesweep.model("llama-3.1-8b"), servesweep.chip("h100-sxm"))


def test_a_colocated_scheduler_is_played_back_as_the_lane_that_it_is(step):
    traffic = servesweep.conversation_workload(60, rate=20.0)
    options = {"max_running": 32, "block_size": 16, "num_blocks": 600}
    alone = timeline(servesweep.Scheduler(traffic, step, policy="mixed", **options))
    same = timeline(servesweep.Colocated(traffic, step, policy="mixed", memory="paged", **options))
    assert alone.segments == same.segments
    assert sum(map(len, alone.preempted_s)) > 0
    assert alone.num_blocks == 600


def test_a_disaggregated_system_has_phases_and_transfers(step):
    traffic = servesweep.conversation_workload(40, rate=10.0)
    system = servesweep.Disaggregated(traffic, step, step, n_decode=2)
    result = run_systems([system]).result(0)
    found = timeline(system)
    for i, segments in zip(map(int, found.names), found.segments, strict=True):
        (prefill,) = [s for s in segments if s.what == PREFILL]
        assert (prefill.start_s, prefill.end_s) == (result.admitted_s[i], result.first_token_s[i])
        for transfer in (s for s in segments if s.what == TRANSFER):
            assert (transfer.start_s, transfer.end_s) == (result.first_token_s[i], result.kv_ready_s[i])
        assert segments[-1].end_s == result.finish_s[i]
    trace = chrome_trace(found)
    tracks = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 1]
    assert tracks == ["prefill instance 0", "decode instance 0", "decode instance 1"]
    figure = timeline_figure(found)
    figure.draw_without_rendering()
    assert [ax.get_ylabel() for ax in figure.axes] == ["Request", "KV tokens used"]


def test_the_trace_has_every_step_and_every_segment(step):
    lane = servesweep.Scheduler(
        servesweep.conversation_workload(50, rate=20.0),
        step,
        policy="chunked",
        max_running=32,
        block_size=16,
        num_blocks=600,
        token_budget=512,
    )
    found = timeline(lane)
    trace = json.loads(json.dumps(chrome_trace(found, "a title"), allow_nan=False))
    events = trace["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert [e["args"]["tokens"] for e in steps] == found.steps["tokens"].tolist()
    assert [e["ts"] for e in steps] == (1e6 * found.steps["start_s"]).tolist()
    requests = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert len(requests) == sum(map(len, found.segments))
    assert sum(e["ph"] == "i" for e in events) == sum(map(len, found.preempted_s)) > 0
    blocks = [e["args"]["blocks used"] for e in events if e["ph"] == "C" and e["name"] == "blocks used"]
    assert max(blocks) == found.steps["blocks_used"].max()
    assert blocks[-1] == 0
    assert all(e["dur"] > 0 for e in events if e["ph"] == "X")
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert names == [f"request {name}" for name in found.names]


@pytest.mark.parametrize("example", EXAMPLES, ids=["slots", "preemption", "budget"])
def test_the_examples_of_the_docs_are_drawn_with_their_tokens(example):
    options, requests, times, _ = example
    found = drawn(requests, **options)
    ax = Figure(layout="constrained").subplots()
    plots.gantt(found, ax=ax)
    assert [text.get_text() for text in ax.get_yticklabels()] == list(times)
    tokens = [int(text.get_text()) for text in ax.texts]
    assert sum(tokens) == int(found.steps["tokens"].sum())
    assert ax.get_xlabel() == "Step"
    ax.figure.draw_without_rendering()


def test_nothing_to_draw_is_drawn():
    found = timeline_of_requests([], max_running=1)
    timeline_figure(found).draw_without_rendering()
    assert chrome_trace(found)["traceEvents"][0]["args"]["name"] == "servesweep"


def test_the_command_writes_trace_pictures_and_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cell = "policy=chunked,block_size=16,request_rate_rps=24,mem_reserve=0.77"
    arguments = ["timeline", "quickstart", "--set", "n_requests=120", "--cell", cell]
    assert command_line([*arguments, "--from", "1", "--requests", "20"]) == 0
    out, err = capsys.readouterr()
    paths = out.split()
    assert [path.rpartition(".")[2] for path in paths] == ["json", "png", "svg", "csv"]
    assert all(path.startswith("results/quickstart/timelines/") for path in paths)
    assert err.startswith("120 requests, ")
    table = pd.read_csv(paths[3])
    assert set(table["what"]) <= {WAITING, PREFILL, DECODE, PAUSED, PREEMPTED}
    assert table["request"].nunique() == 120
    trace = json.loads((tmp_path / paths[0]).read_text())
    assert "policy chunked" in trace["otherData"]["title"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cell", "policy=chunked"], "but a timeline is of one"),
        (["--cell", "zz"], "no cell id begins with 'zz'"),
        (["--cell", "polcy=mixed"], "unknown column 'polcy'"),
        (["--formats", "gif"], "'gif' is no format"),
        (["--from", "2", "--to", "1"], "must be later than --from 2"),
    ],
)
def test_what_has_no_timeline(arguments, words, capsys):
    assert command_line(["timeline", "quickstart", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_infeasible_cell_has_none(capsys):
    arguments = ["--set", 'chip=["t4","h100-sxm"]', "--set", "request_rate_rps=4", "--set", "block_size=16"]
    cell = "chip=t4,policy=mixed,mem_reserve=0.1"
    assert command_line(["timeline", "quickstart", *arguments, "--cell", cell]) == 2
    assert "cannot run: the weights of" in capsys.readouterr().err
