"""Speed of serving systems as a multiple of the scalar event-driven oracle's, by CPU time on one core, in one run.

    python benchmarks/systems_speed.py [--systems 1000] [--groups 200] [--requests 2000] [--repeats 3]

Chat lengths, llama-3.1-8b on h100-sxm, reserved memory. Systems of one instance (disaggregated: one of each) at 2 to 60
requests/s; groups of 4 instances at 8 to 240. Each repeat runs the oracle (tests/oracle_systems.py) on some of the
systems, the engine on all, and the oracle again; the ratio printed is the median over the repeats. Before a case is
timed, both outcomes are compared.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import servesweep
from servesweep import StepModel, Workload, chip, lognormal_len, make_workload, model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from oracle_instances import Request
from oracle_steps import StepTimes
from oracle_systems import run_system
from scheduler_speed import oracle_step_times

PARTS = 4  # instances of a group
SINGLE_BAR, GROUP_BAR = 25, 5


@dataclass
class Case:
    name: str
    system: str  # run_<system>
    kind: str  # the class of the package
    options: dict[str, Any]
    instances: int = 1


CASES = [
    Case("prefill_first", "colocated", "Colocated", {}),
    Case("chunked", "colocated", "Colocated", {"policy": "chunked", "chunk_budget": 512}),
    Case("prefill_only", "prefill_only", "PrefillOnly", {}),
    Case("decode_only", "decode_only", "DecodeOnly", {}),
    Case("disaggregated", "disaggregated", "Disaggregated", {}),
] + [
    Case(f"{name} {router}", "colocated", "Colocated", {**options, "router": router}, PARTS)
    for router in ("least_loaded", "round_robin")
    for name, options in (("prefill_first", {}), ("chunked", {"policy": "chunked", "chunk_budget": 512}))
]


def step_names(case: Case) -> tuple[str, ...]:
    return ("prefill_step", "decode_step") if case.system == "disaggregated" else ("step",)


def run_oracle(case: Case, work: Workload, rate: float, times: StepTimes) -> list[Request]:
    counts = {"n_instances": case.instances} if case.instances > 1 else {}
    requests, _ = run_system(
        case.system,
        (work.arrival_s / rate).tolist(),
        work.prompt_tokens.tolist(),
        work.output_tokens.tolist(),
        dict.fromkeys(step_names(case), times),
        **counts,
        **case.options,
    )
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--oracle-cells", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    lengths = (lognormal_len(400, 0.8, 16, 4000), lognormal_len(150, 0.8, 2, 1000))
    work = make_workload(args.requests, 1.0, *lengths, seed=1)
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    times = oracle_step_times(step)
    sizes = f"{args.systems} systems, {args.groups} groups of {PARTS}, x {args.requests} requests"
    print(f"{sizes}; oracle on {args.oracle_cells} of each; medians of {args.repeats}")
    titles = ("engine req/s", "oracle req/s", "ratio", "bar", "bytes/req")
    print(f"{'case':28}" + "".join(f"{title:>15}" for title in titles))
    for case in CASES:
        if args.only not in case.name:
            continue
        n = args.systems if case.instances == 1 else args.groups
        rates = (np.geomspace(2, 60, n) if n > 1 else np.array([20.0])) * case.instances
        counts = {"n_instances": case.instances} if case.instances > 1 else {}
        steps = dict.fromkeys(step_names(case), step)
        build = getattr(servesweep, case.kind)
        systems = [build(workload=work, rate=float(rate), **steps, **counts, **case.options) for rate in rates]
        cells = np.unique(np.linspace(0, n - 1, args.oracle_cells).astype(int)).tolist()
        tracemalloc.start()
        results = servesweep.run_systems(systems)
        bytes_per_request = tracemalloc.get_traced_memory()[1] / (n * args.requests)
        tracemalloc.stop()
        for cell in cells:
            expected = run_oracle(case, work, float(rates[cell]), times)
            for column, name in (("first_token_s", "first_token"), ("finish_s", "finish"), ("kv_ready_s", "kv_ready")):
                values = [getattr(request, name) for request in expected]
                np.testing.assert_allclose(getattr(results, column)[cell], values, rtol=1e-9)
        del results

        def timed_oracle(case: Case = case, cells: list[int] = cells, rates: Any = rates) -> float:
            begin = time.process_time()
            for cell in cells:
                run_oracle(case, work, float(rates[cell]), times)
            return time.process_time() - begin

        engine_rates, oracle_rates = [], []
        for _ in range(args.repeats):
            # The oracle before and after the engine: the machine's speed changes within seconds.
            seconds = [timed_oracle()]
            begin = time.process_time()
            servesweep.run_systems(systems)
            engine_rates.append(n * args.requests / (time.process_time() - begin))
            seconds.append(timed_oracle())
            oracle_rates.append(2 * len(cells) * args.requests / sum(seconds))
        ratio = statistics.median(a / b for a, b in zip(engine_rates, oracle_rates, strict=True))
        figures = (
            f"{statistics.median(engine_rates):,.0f}",
            f"{statistics.median(oracle_rates):,.0f}",
            f"{ratio:.0f}x",
            f"{SINGLE_BAR if case.instances == 1 else GROUP_BAR}x",
            f"{bytes_per_request:.0f}",
        )
        print(f"{case.name:28}" + "".join(f"{figure:>15}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
