"""Result files of benchmarks: every format gives the same requests, and what is no such file is refused."""

import gzip
import json

import benchmark_files as made
import numpy as np
import pytest
from servesweep import load_benchmark

FORMATS = {
    "vllm bench serve": (made.vllm(), 1),
    "GuideLLM": (made.guidellm(), 1),
    "AIPerf": (made.aiperf(), 2),
    "LLMServingSim": (made.serving_sim(), 0),
    "CSV": (made.csv_rows(), 1),
}


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_gives_the_same_requests(tmp_path, format):
    text, skipped = FORMATS[format]
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    runs = load_benchmark(path)
    assert len(runs) == (2 if format == "GuideLLM" else 1)
    arrival, prompt, output, ttft, tpot = made.expected()
    for run in runs:
        assert (run.format, run.skipped) == (format, skipped)
        assert run.arrival_s == pytest.approx(arrival, abs=1e-6)
        assert run.prompt_tokens.tolist() == prompt.tolist()
        assert run.output_tokens.tolist() == output.tolist()
        assert run.measured[0] == pytest.approx(ttft, abs=1e-6)
        assert run.measured[1] == pytest.approx(tpot, abs=1e-6)
        assert run.measured[2] == pytest.approx(ttft + tpot * (output - 1), abs=1e-6)
        assert len(run.workload) == made.N


def test_compressed_files_and_names(tmp_path):
    (tmp_path / "bench.json.gz").write_bytes(gzip.compress(made.guidellm().encode()))
    names = [run.name for run in load_benchmark(tmp_path / "bench.json.gz")]
    assert names == ["bench.json.gz #0", "bench.json.gz #1"]


def test_a_request_of_one_token_has_no_tpot(tmp_path):
    (tmp_path / "one.csv").write_text(made.csv_rows("5,10,1,5.1,5.1"), encoding="utf-8")
    (run,) = load_benchmark(tmp_path / "one.csv")
    assert np.isnan(run.measured[1]).sum() == 1


SUMMARY = json.dumps({"request_latency": {"unit": "ms", "avg": 3.0}, "input_config": {}})
SMALL = json.dumps({"benchmarks": [{"metrics": {}}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (made.vllm(ttfts=None, itls=None), "has no ttfts, itls: has no times of single requests"),
        (made.vllm(start_times=None), "has no start_times"),
        (made.vllm(ttfts=[0.1]), "1 ttfts"),
        (made.vllm(ttfts=[True] * 13), "request 0: start_times, ttfts, itls: must be numbers"),
        (made.vllm(input_lens=[0] * 13), "request 0: prompt_tokens=0: must be an integer of at least 1"),
        (made.guidellm(time_to_first_token_ms=None), "benchmark 0, request 0: time_to_first_token_ms=None: must be"),
        (made.guidellm(time_to_first_token_ms=-5.0), "its first token comes -0.005"),
        (SMALL, "benchmark 0: has no requests.successful"),
        ('{"benchmarks": []}', "benchmarks is empty"),
        (made.aiperf(time_to_first_token=None), "line 1: has no time_to_first_token: run aiperf profile with"),
        (made.aiperf(input_sequence_length=None), "line 1: prompt_tokens=None: must be an integer"),
        (made.aiperf()[:-20], "line 14: is not JSON, cut short perhaps"),
        (made.aiperf() + made.serving_sim(), "holds lines of AIPerf and LLMServingSim"),
        (SUMMARY, "of no kind with times of single requests"),
        ("[1, 2]", "of no kind with times of single requests"),
        ('{"a": ', "is not JSON"),
        (made.csv_rows("5,10,10,4,6"), "line 15: its first token comes -1 s after it was sent: must be above 0"),
        (made.csv_rows("5,10,10,6,5.5"), "line 15: finishes before its first token"),
        (made.csv_rows("soon,10,10,6,7"), "line 15: arrival_s='soon': must be a number"),
        (made.csv_rows("5,10.5,10,6,7"), "line 15: prompt_tokens='10.5': must be an integer"),
        (made.csv_rows("5,0,10,6,7"), "line 15: prompt_tokens=0: must be an integer of at least 1"),
        (made.csv_rows().replace("first_token_s", "ttft"), "line 1: has no column first_token_s"),
        ("\n".join(made.csv_rows().splitlines()[:4]), "has 3 answered requests: must have at least 8"),
        ("", "is empty"),
    ],
)
def test_one_clear_error_with_the_place(tmp_path, text, message):
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"bench\.json") as caught:
        load_benchmark(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
