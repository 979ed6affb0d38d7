"""A sweep of 288 small cells, half of them infeasible, to disturb; and what is left of it."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from patience import HANGS_S
from servesweep.runner.journal import decode_line

SWEEP = """\
name = "small"
[workload]
kind = "synthetic"
prompt = { mean = 300, sigma = 0.8, lo = 16, hi = 2000 }
output = { mean = 60, sigma = 0.8, lo = 1, hi = 400 }
n_requests = 120
seed = [0, 1]
request_rate_rps = { from = 4, to = 100, count = 12 }
[instance]
model = "llama-3.1-8b"
chip = ["t4", "h100-sxm"]
[scheduler]
policy = ["mixed", "chunked", "prefill_first"]
block_size = [8, 64]
num_blocks = 100
max_running = 32
token_budget = 256
[slo]
ttft_ms = 200
[output]
requests = "request_rate_rps=4"
steps = "policy=chunked,block_size=64"
instances = "all"
"""
CELLS = 2 * 12 * 2 * 3 * 2
FEASIBLE = CELLS // 2
TABLES = ("cells", "requests", "steps", "instances")


def digests(directory, tables=TABLES):
    return [hashlib.sha256((directory / f"{table}.parquet").read_bytes()).hexdigest() for table in tables]


def kept_cells(directory):
    """Cells that the journal holds."""
    path = directory / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return {record["cell"] for line in lines if (record := decode_line(line)) and "cell" in record}


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(words[1]) == pid and words[0] != "Z" and b"loky" in command and b"resource_tracker" not in command:
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=HANGS_S):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def start(*options, **more):
    """The command, in many small batches, so that there is much to interrupt."""
    return subprocess.Popen(
        [sys.executable, "-m", "servesweep", "run", "small.toml", "--max-batch-cells", "3", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def limited(name, size):
    """Run in the child before it becomes the command: a limit as a full disk or a small machine sets it."""
    import resource

    return lambda: resource.setrlimit(getattr(resource, name), (size, size))
