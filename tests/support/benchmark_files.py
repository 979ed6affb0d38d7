"""Small result files of benchmarks, in the formats of tools; all numbers are made up or simulated here."""

import json

import numpy as np
import servesweep as ss
from servesweep.calibration.measured_run import MeasuredRun

N = 12


def simulated_run(step, traffic, first_token_s=0.0, name="simulated", **server):
    """What a server with these step times would have measured."""
    options = {"policy": "chunked", "max_running": 256, "token_budget": 2048, "block_size": 16} | server
    found = ss.run_schedulers([ss.Scheduler(traffic, step, **options)]).result(0)
    columns = [found.arrival_s, found.prompt_tokens, found.output_tokens]
    return MeasuredRun(name, "simulated", *columns, found.first_token_s + first_token_s, found.finish_s + first_token_s)


def requests():
    """Arrival, prompt, output, TTFT and time per output token of N requests, which are not in order of arrival."""
    for i in range(N):
        yield 0.25 * (i ^ 1), 100 + i, 5 + i, 0.05 + 0.001 * i, 0.01


def vllm(**changes):
    """`vllm bench serve --save-result --save-detailed`."""
    rows = list(requests())
    content = {
        "backend": "vllm",
        "num_prompts": N,
        "mean_ttft_ms": 55.5,
        "input_lens": [row[1] for row in rows] + [50],
        "output_lens": [row[2] for row in rows] + [0],
        "ttfts": [row[3] for row in rows] + [0.0],
        "itls": [[row[4]] * (row[2] - 1) for row in rows] + [[]],
        "start_times": [7000.0 + row[0] for row in rows] + [7009.0],
        "errors": [""] * N + ["Connection refused"],
        "generated_texts": ["a"] * N + [""],
    }
    return json.dumps({key: value for key, value in (content | changes).items() if value is not None})


def guidellm(**changes):
    """GuideLLM's benchmarks.json with two runs."""
    found = [
        {
            "type_": "generative_request_stats",
            "request_id": str(i),
            "request_start_time": 1.7e9 + arrival,
            "request_end_time": 1.7e9 + arrival + ttft + each * (output - 1) + 0.002,
            "request_latency": ttft + each * (output - 1) + 0.002,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "time_to_first_token_ms": 1e3 * ttft,
            "inter_token_latency_ms": 1e3 * each,
            **changes,
        }
        for i, (arrival, prompt, output, ttft, each) in enumerate(requests())
    ]
    run = {"requests": {"successful": found, "errored": [{}], "incomplete": []}}
    return json.dumps({"metadata": {"version": 1}, "benchmarks": [run, run]}, indent=1)


def aiperf(**changes):
    """AIPerf's profile_export.jsonl."""
    lines = []
    for i, (arrival, prompt, output, ttft, each) in enumerate(requests()):
        start = 1_700_000_000_000_000_000 + round(1e9 * arrival)
        latency = 1e3 * (ttft + each * (output - 1))
        about = {"request_start_ns": start, "request_end_ns": start + round(1e6 * latency), "was_cancelled": False}
        metrics = {
            "time_to_first_token": {"value": 1e3 * ttft, "unit": "ms"},
            "request_latency": {"value": latency, "unit": "ms"},
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        } | changes
        metrics = {key: value for key, value in metrics.items() if value is not None}
        phase = {"benchmark_phase": "profiling", "session_num": i}
        lines.append({"metadata": about | phase, "metrics": metrics, "error": None})
    lines.append(lines[0] | {"error": {"code": 500}})
    lines.append(lines[0] | {"metadata": lines[0]["metadata"] | {"benchmark_phase": "warmup"}})
    return "".join(json.dumps(line) + "\n" for line in lines)


def serving_sim():
    """LLMServingSim's requests: arrivals are on another clock."""
    lines = []
    for i, (arrival, prompt, output, ttft, each) in enumerate(requests()):
        at = 100.0 + arrival
        lines.append(
            {
                "request_id": f"bench-{i}",
                "input_toks": prompt,
                "output_toks": output,
                "arrival_time": 1.7e9 + arrival,
                "queued_ts": at + 0.001 * (i % 3),
                "scheduled_ts": at + 0.004,
                "first_token_ts": at + ttft,
                "last_token_ts": at + ttft + each * (output - 1),
            }
        )
    return "".join(json.dumps(line) + "\n" for line in lines)


def csv_rows(change=None):
    """CSV of requests, with one that was not answered."""
    rows = ["arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"]
    for arrival, prompt, output, ttft, each in requests():
        first = 3 + arrival + ttft
        rows.append(",".join(map(repr, (3 + arrival, prompt, output, first, first + each * (output - 1)))))
    rows.append("4.0,77,,,")
    return "\n".join([*rows, *([] if change is None else [change])]) + "\n"


def expected():
    """Arrival, prompt, output, TTFT and TPOT in the order of arrival. [5, N]"""
    return np.array(sorted(requests())).T
