"""How much sooner two workers end a sweep than one: python benchmarks/two_workers.py [REQUESTS] [ROUNDS]

Runs 1,152 cells of so many requests (2,000) with one worker and with two, in turn, each in a process of its own, and
prints time by the clock and CPU of all its processes. The clock counts everything: start of Python and of the workers,
plan, journal, tables. On a machine that is not idle, compare the CPU: `idle` is the share of the cores that the
machine had left to give in that time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SETTINGS = {"seed": 0, "model": "llama-3.1-8b", "max_running": 256}
CODE = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import servesweep
from sweep_overhead import SWEEP
servesweep.run_grid(SWEEP, settings={settings!r}, workers={workers}, out={out!r}, progress=False)
"""


def run(workers: int, requests: int) -> dict[str, float]:
    """Seconds by the clock and of CPU of one sweep, and inside its batches."""
    with tempfile.TemporaryDirectory() as out:
        settings = {**SETTINGS, "n_requests": requests}
        code = CODE.format(folder=str(Path(__file__).parent), settings=settings, workers=workers, out=out)
        before, idle, began = children_s(), idle_s(), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        wall = time.perf_counter() - began
        facts = json.loads((Path(out) / "run.json").read_text())
    cells, batches = facts["counts"]["cells"], facts["batches"]
    return {
        "cells": cells,
        "workers": workers,
        "batches": len(batches),
        "wall_s": wall,
        "cpu_s": children_s() - before,
        "inside_s": sum(batch["cpu_s"] for batch in batches),
        "idle": (idle_s() - idle) / wall / (os.cpu_count() or 1),
    }


def children_s() -> float:
    """CPU seconds of the child processes that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def idle_s() -> float:
    """Seconds for which the cores of this machine had nothing to do since it started."""
    return float(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")


def main(requests: int = 2000, rounds: int = 3) -> None:
    ratios = []
    for _ in range(rounds):
        one, two = (run(workers, requests) for workers in (1, 2))
        for ran in (one, two):
            print(", ".join(f"{name} {value:.4g}" for name, value in ran.items()), flush=True)
        ratios.append(one["wall_s"] / two["wall_s"])
        print(
            f"two workers end {ratios[-1]:.2f} x as soon, with {two['cpu_s'] / one['cpu_s']:.2f} x the CPU", flush=True
        )
    print(f"median {median(ratios):.2f} x")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
