"""Speed of the scheduler engine as a multiple of the scalar oracle's, by CPU time on one core, both taken in this run.

    python benchmarks/scheduler_speed.py [--lanes 1000] [--requests 2000] [--repeats 3] [--oracle-cells 7]

Chat lengths, llama-3.1-8b on h100-sxm, rates from 2 to 60 requests/s, block size 16, at most 128 running, budget 512;
roomy is 4,000 blocks, tight 600. Each repeat runs the oracle (tests/oracle.py) on some of the lanes, the engine on all,
and the oracle again; the ratio printed is the median over the repeats. Before a case is timed, both outcomes are
compared.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from servesweep import Lane, StepModel, chip, link, lognormal_len, make_workload, model, run_lanes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import oracle
from oracle_steps import StepTimes

CASES = [
    (policy, name, blocks)
    for policy in ("mixed", "chunked", "prefill_first")
    for name, blocks in (("roomy", 4000), ("tight", 600))
]
STEP_FIELDS = ("tp", "pp", "weight_bytes", "kv_bytes", "mfu", "mbu", "overhead_s", "mem_reserve")
BARS = {"roomy": 60, "tight": 35}


def oracle_step_times(step: StepModel) -> StepTimes:
    m, c, wire = step.model, step.chip, link("nvlink4")
    return StepTimes(
        {
            "model": {name: getattr(m, name) for name in m.__dataclass_fields__},
            "chip": {"bf16": c.bf16_flops, "fp8": c.fp8_flops, "mem_bw": c.mem_bytes_per_s, "mem_cap": c.mem_bytes},
            "link": {"alpha_s": wire.alpha_s, "bandwidth_bytes_per_s": wire.bytes_per_s},
            **{
                name: getattr(step, name)
                for name in ("tp", "pp", "weight_bytes", "kv_bytes", "mfu", "mbu", "overhead_s")
            },
            "mem_reserve": step.mem_reserve,
        }
    )


def run_oracle(lane: Lane, times: StepTimes) -> list[oracle.Sequence]:
    work = lane.workload
    limits: dict[str, Any] = {"block_size": lane.block_size, "num_blocks": lane.num_blocks}
    if lane.token_budget is not None:
        limits["token_budget"] = lane.token_budget
    _, sequences = oracle.run_scheduler(
        (work.arrival_s / lane.rate).tolist(),
        work.prompt_tokens.tolist(),
        work.output_tokens.tolist(),
        times.mixed,
        policy=lane.policy,
        max_running=lane.max_running,
        **limits,
    )
    return sequences


def timed_oracle(lanes: list[Lane], cells: list[int], times: StepTimes) -> float:
    begin = time.process_time()
    for cell in cells:
        run_oracle(lanes[cell], times)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--oracle-cells", type=int, default=7)
    args = parser.parse_args()
    work = make_workload(
        args.requests, 1.0, lognormal_len(400, 0.8, 16, 4000), lognormal_len(150, 0.8, 2, 1000), seed=1
    )
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    times = oracle_step_times(step)
    rates = np.geomspace(2, 60, args.lanes) if args.lanes > 1 else np.array([20.0])
    cells = np.unique(np.linspace(0, args.lanes - 1, args.oracle_cells).astype(int)).tolist()
    print(
        f"{args.lanes} lanes x {args.requests} requests; oracle on {len(cells)} of the lanes; medians of {args.repeats}"
    )
    titles = ("engine req/s", "oracle req/s", "ratio", "bar", "preempted/req", "bytes/req")
    print(f"{'case':22}" + "".join(f"{title:>15}" for title in titles))
    for policy, name, blocks in CASES:
        budget = 512 if policy == "chunked" else None
        lanes = [Lane(work, step, policy, 128, 16, blocks, budget, rate=float(rate)) for rate in rates]
        tracemalloc.start()
        results = run_lanes(lanes)
        bytes_per_request = tracemalloc.get_traced_memory()[1] / (args.lanes * args.requests)
        tracemalloc.stop()
        for cell in cells:
            expected = run_oracle(lanes[cell], times)
            np.testing.assert_array_equal(results.preemptions[cell], [seq.preemptions for seq in expected])
            np.testing.assert_allclose(results.finish_s[cell], [seq.finish for seq in expected], rtol=1e-9)
        engine_rates, oracle_rates = [], []
        for _ in range(args.repeats):
            # The oracle before and after the engine: the machine's speed changes within seconds.
            seconds = [timed_oracle(lanes, cells, times)]
            begin = time.process_time()
            run_lanes(lanes)
            engine_rates.append(args.lanes * args.requests / (time.process_time() - begin))
            seconds.append(timed_oracle(lanes, cells, times))
            oracle_rates.append(2 * len(cells) * args.requests / sum(seconds))
        ratio = statistics.median(a / b for a, b in zip(engine_rates, oracle_rates, strict=True))
        figures = (
            f"{statistics.median(engine_rates):,.0f}",
            f"{statistics.median(oracle_rates):,.0f}",
            f"{ratio:.0f}x",
            f"{BARS[name]}x",
            f"{results.preemptions.sum() / results.preemptions.size:.2f}",
            f"{bytes_per_request:.0f}",
        )
        print(f"{policy + ' ' + name:22}" + "".join(f"{figure:>15}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
