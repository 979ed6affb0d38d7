"""What a sweep costs beside its simulations: python benchmarks/sweep_overhead.py [REQUESTS] [WORKERS] [SEEDS]

Sweeps 6,912 cells a seed (3) of so many requests (500) with so many workers (2), and compares the CPU time of all its
processes with the CPU time inside batches. The rest is the runner's own: start of the workers, plan, tasks, journal,
tables.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import servesweep

SWEEP = {
    "name": "overhead",
    "workload": {
        "kind": "synthetic",
        "prompt": {"mean": 400, "sigma": 0.8, "lo": 16, "hi": 4000},
        "output": {"mean": 150, "sigma": 0.8, "lo": 2, "hi": 1000},
        "request_rate_rps": {"from": 1, "to": 32, "count": 36},
    },
    "instance": {
        "model": ["llama-3.1-8b", "mistral-7b-v0.3"],
        "chip": ["h100-sxm", "a100-80-sxm"],
        "tp": [1, 2],
    },
    "scheduler": {"policy": ["mixed", "prefill_first"], "max_running": [64, 128, 256], "block_size": [16, 32, 64, 128]},
    "slo": {"ttft_ms": 500, "tpot_ms": 50},
}


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def main(requests: int = 500, workers: int = 2, seeds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as directory:
        measure({"n_requests": requests, "seed": list(range(seeds))}, workers, Path(directory))


def measure(settings: dict[str, Any], workers: int, directory: Path) -> None:
    began = time.perf_counter()
    run = servesweep.run_grid(SWEEP, settings=settings, workers=workers, out=directory, fresh=True, progress=True)
    from joblib.externals.loky import get_reusable_executor

    if workers > 1:
        get_reusable_executor().shutdown(wait=True)  # so that its workers have ended, and are counted
    multiprocessing.active_children()
    total, wall = cpu_s(), time.perf_counter() - began
    batches = json.loads((directory / "run.json").read_text())["batches"]
    inside = sum(batch["cpu_s"] for batch in batches)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{dict(run.counts)}, {len(batches)} batches, {wall:.1f} s by the clock")
    print(f"CPU {total:.1f} s, in batches {inside:.1f} s: the runner's own {1 - inside / total:.1%}")
    print(f"peak memory of this process {peak_mb:.0f} MB")
    for path in sorted(directory.iterdir()):
        if path.is_file():
            print(f"{path.name}: {path.stat().st_size:,} bytes, {path.stat().st_size / run.counts['cells']:.0f} a cell")
    again = time.process_time()
    reused = servesweep.run_grid(SWEEP, settings=settings, out=directory, progress=False)
    print(f"again: {reused.counts['reused']:,} reused in {time.process_time() - again:.1f} s of CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
