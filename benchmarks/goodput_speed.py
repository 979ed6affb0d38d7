"""Speed of a search for goodput as a multiple of bisecting each configuration alone with the scalar reference.

    python benchmarks/goodput_speed.py [--requests 2000] [--reference-cells 3]

A grid of 100 configurations: chat lengths, llama-3.1-8b on h100-sxm, three policies, block sizes, memory sizes and
limits on running requests; 90 % of the requests must meet a TTFT of 500 ms and a TPOT of 25 ms, between 0.05 and 64
requests/s, 14 halvings. The reference bisects some of the configurations; before and after the search, because a
machine's speed changes within seconds. Its answers must be those of the search, and its time is scaled to the grid by
the number of configurations. CPU time of one process, of everything: planning, workloads, tables.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace

import numpy as np
from servesweep import SLO, Result, Scheduler, attainment, find_goodput, max_rate
from servesweep.goodput.options import GoodputOptions
from servesweep.goodput.search import searched_plan
from servesweep.serving.reference_answers import answer

LIMITS = SLO(ttft_s=0.5, tpot_s=0.025)


def experiment(requests: int) -> dict[str, object]:
    """100 configurations: 4 memory sizes x 5 limits x (mixed, prefill_first, three budgets of chunked)."""
    return {
        "name": "goodput-speed",
        "workload": {
            "kind": "synthetic",
            "n_requests": requests,
            "seed": 1,
            "prompt": {"mean": 400, "sigma": 0.8, "lo": 16, "hi": 4000},
            "output": {"mean": 150, "sigma": 0.8, "lo": 2, "hi": 1000},
        },
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
        "scheduler": {
            "policy": ["mixed", "prefill_first", "chunked"],
            "block_size": 16,
            "num_blocks": [600, 1200, 4000, 12000],
            "max_running": [32, 64, 96, 128, 192],
            "token_budget": [256, 512, 1024],
        },
    }


def bisected_by_reference(scheduler: Scheduler) -> float:
    """The answer of one configuration, a scalar simulation a rate."""
    work = scheduler.workload

    def run(rate: float) -> float:
        done = answer(replace(scheduler, rate=rate))
        first, finish = ([getattr(seq, name) for seq in done] for name in ("first_token", "finish"))
        result = Result(work.arrival_s / rate, work.prompt_tokens, work.output_tokens, first, finish)
        return attainment(result, slo=LIMITS)

    return max_rate(run, target=0.9, lo=0.05, hi=64.0, iters=14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--reference-cells", type=int, default=3)
    args = parser.parse_args()
    config = experiment(args.requests)
    plan = searched_plan(config, GoodputOptions(), slo=LIMITS)
    assert len(plan.cells) == 100, len(plan.cells)
    picked = np.linspace(0, 99, 2 * args.reference_cells + 1).astype(int)[1::2].tolist()

    def reference() -> tuple[float, list[float]]:
        begin = time.process_time()
        rates = [bisected_by_reference(plan.cells[at].system()) for at in picked]
        return time.process_time() - begin, rates

    before_s, rates = reference()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        found = find_goodput(config, slo=LIMITS, workers=1, out=folder, progress=False)
        search_s = time.process_time() - begin
        answers = found.df["max_rate_rps"].to_numpy()
    np.testing.assert_allclose(answers[picked], rates, rtol=1e-9)
    after_s, _ = reference()
    alone_s = (before_s + after_s) / 2 / len(picked) * len(plan.cells)
    print(f"{len(plan.cells)} configurations x {args.requests} requests x 16 rates")
    print(f"search: {search_s:.1f} s of CPU, {found.rounds} rounds, {found.probes:,} rates; {dict(found.counts)}")
    print(f"reference: {alone_s:,.0f} s for all, from {len(picked)}: {before_s:.1f} s before, {after_s:.1f} s after")
    print(f"ratio:  {alone_s / search_s:.0f}x (bar 50x)")


if __name__ == "__main__":
    main()
