"""python -m benchmarks.h100_board: eleven runs of vLLM 0.15 on H100, predicted from operators and scheduling alone.

A hundred prompts go round and round, so that all but the first requests find theirs in the prefix cache. The
measurements (measured/vllm_h100/runs.json) lie beside the repository, or nowhere.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
import servesweep

from .fidelity import MEASURED

RUNS = MEASURED / "vllm_h100" / "runs.json"
FIRST_TOKEN_S = 0.0049  # outside the engine, as those runs were found to have
PROMPTS = 100
PAUSE_S = 30.0  # between stages
PRECISIONS = {"FP8": 1.0}  # bytes of a weight, of others 2


def predicted(run: dict[str, Any]) -> servesweep.Result:
    """A run as the simulator has it. Arrivals are at random in each stage; prompts are a little different in length."""
    work, engine, rng = run["workload"], run["engine"], np.random.default_rng(0)
    begin, arrivals = 0.0, []
    for stage in work["stages"]:
        number = round(stage["rate"] * stage["duration_s"])
        arrivals.append(begin + np.sort(rng.random(number)) * stage["duration_s"])
        begin += stage["duration_s"] + PAUSE_S
    arrival_s = np.concatenate(arrivals)
    known = run["overall"].get("prompt_tokens")
    tokens = round(known["mean"]) if known else work["system_prompt_tokens"] + work["question_tokens"]
    prompts = [[(f"p{i % PROMPTS}", tokens + i % PROMPTS % 9 - 4)] for i in range(arrival_s.size)]
    workload = servesweep.Workload(
        arrival_s,
        np.array([prompt[0][1] for prompt in prompts]),
        np.full(arrival_s.size, work["output_tokens"]),
        prompts=prompts,
    )
    step = servesweep.OperatorStepModel(
        servesweep.model(run["model"]),
        servesweep.chip("h100-sxm"),
        tp=run["tp"],
        weight_bytes=PRECISIONS.get(run["precision"], 2.0),
        first_token_s=FIRST_TOKEN_S,
    )
    return servesweep.run_scheduler(
        workload,
        step,
        policy="vllm",
        max_running=engine["max_num_seqs"],
        token_budget=engine["max_num_batched_tokens"],
        block_size=16,
        num_blocks=None if engine["kv_tokens"] is None else engine["kv_tokens"] // 16,
        enable_prefix_caching=True,
        async_scheduling=True,
    )


def main() -> int:
    """Print the errors of every dense run, in % of the means, and their medians; the exit code."""
    if not RUNS.exists():
        print(f"no measurements in {RUNS}", file=sys.stderr)
        return 1
    warnings.simplefilter("ignore")
    errors = []
    for name, run in json.loads(RUNS.read_text("utf-8"))["runs"].items():
        if run["architecture"] != "dense":
            continue
        if run["model"] not in servesweep.model_names():
            print(f"{name:50}  {run['model']} is not in the catalogue")
            continue
        result, due, gaps = predicted(run), run["overall"], run["workload"]["output_tokens"] - 1
        e2e, ttft = due["e2e_s"]["mean"], due["ttft_s"]["mean"]
        tpot = due["tpot_s"]["mean"] if "tpot_s" in due else (e2e - ttft) / gaps
        found = np.array([result.e2e_s.mean(), result.ttft_s.mean(), result.tpot_s.mean()])
        errors.append(100 * (found / [e2e, ttft, tpot] - 1))
        print(
            f"{name:50}  e2e {errors[-1][0]:+6.1f}  TTFT {errors[-1][1]:+6.1f}  TPOT {errors[-1][2]:+6.1f} %",
            flush=True,
        )
    e2e, ttft, tpot = np.median(np.abs(errors), axis=0)
    print(f"{len(errors)} runs, median of sizes: e2e {e2e:.1f}, TTFT {ttft:.1f}, TPOT {tpot:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
