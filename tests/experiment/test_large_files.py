"""`run --dry-run` of files that ask for too much, each in a process of its own: what it takes, and what it says.

Memory does not depend on the machine; CPU time does, and is allowed ten times what a dry run should take.
"""

import json
import subprocess
import sys

import pytest
from servesweep.experiment.toml_values import format_toml

pytestmark = pytest.mark.process

MEMORY_KB = 300_000
CPU_S = 20
# A process's peak is at least that of the one that started it (Linux keeps the larger over exec), and the one that runs
# the tests may have grown: a small one starts what is measured.
MEASURED = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss, used.ru_utime + used.ru_stime]))
"""
DRAWN = {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 10}
INSTANCE = {"model": "llama-3.1-8b", "chip": "h100-sxm"}


def numbers(n, begin=1):
    return list(range(begin, begin + n))


def shares(n):
    return [round((i + 1) / (n + 2), 9) for i in range(n)]


def tables(workload=None, instance=None, **others):
    workload = {"request_rate_rps": 1, **DRAWN, **(workload or {})}
    return {"workload": workload, "instance": {**INSTANCE, **(instance or {})}, **others}


SPLITS = {"kind": "disaggregated", "n_prefill": numbers(1000), "n_decode": numbers(1000)}
ROLE = {"tp": [1, 2, 4, 8, 16, 32], "pp": numbers(32)}
CASES = {
    "1e9 cells": (
        tables(
            workload={"request_rate_rps": numbers(100)},
            scheduler={
                "policy": "chunked",
                "max_running": numbers(10),
                "token_budget": numbers(1000, 512),
                "block_size": numbers(1000),
            },
        ),
        "1,000,000,000 cells: must be at most 1,000,000: token_budget has 1,000 values, ",
    ),
    "range of 100,000": (
        tables(workload={"request_rate_rps": {"from": 1, "to": 64, "count": 100_000}}),
        "request_rate_rps.count = 100000: must give different values",
    ),
    "3,000 seeds of 30,000 requests": (
        tables(workload={"seed": numbers(3000), "n_requests": 30_000, "request_rate_rps": numbers(72)}),
        "216,000 cells, 216,000 of them feasible",
    ),
    "100,000 rates": (
        tables(workload={"request_rate_rps": numbers(100_000)}, scheduler={"block_size": [8, 16]}),
        "200,000 cells, 200,000 of them feasible",
    ),
    "100,000 lengths": (tables(workload={"n_requests": numbers(100_000)}), "5,000,050,000 requests"),
    "100,000 seeds": (tables(workload={"seed": numbers(100_000), "n_requests": numbers(10)}), "1,000,000 cells"),
    "1e8 requests": (tables(workload={"n_requests": 10**8}), "100,000,000 requests"),
    "block sizes and blocks": (
        tables(scheduler={"block_size": numbers(1000), "num_blocks": numbers(1000)}),
        "1,000,000 cells, about ",
    ),
    "shares": (tables(instance={"mem_reserve": shares(1000), "kv_bytes": numbers(1000)}), "1,000,000 cells, about "),
    "mfu and mbu": (tables(instance={"mfu": shares(1000), "mbu": shares(1000)}), "1,000,000 cells, 1,000,000 of"),
    "splits": (tables(system=SPLITS), "1,000,000 cells, about 1,000,000 of"),
    "splits by GPUs": (
        tables(system={**SPLITS, "n_gpus": numbers(1000, 2)}),
        "1,000,000 layouts to choose from: must be at most 50,000",
    ),
    "parallelisms by GPUs": (
        tables(
            system={"kind": "disaggregated", "n_prefill": numbers(10), "n_gpus": [2, 3]},
            prefill_instance=ROLE,
            decode_instance=ROLE,
        ),
        "6 cells, 6 of them feasible",
    ),
    "GPUs that nothing has": (
        tables(system={"n_instances": numbers(1000), "n_gpus": numbers(100_000, 5000)}),
        "100,000 errors; nothing was run",
    ),
    "degrees": (tables(instance={"tp": numbers(65_536)}), "65,525 more of its values are wrong"),
    "unknown models": (
        tables(instance={"model": [f"m{i}" for i in range(80_000)]}),
        "its other 79,995 values were not looked at",
    ),
    "unknown keys": (tables(scheduler={f"key{i}": i for i in range(50_000)}), "... and 49,990 more"),
    "nested": (
        'name = "x"\nn_gpus = ' + "[" * 20_000 + "]" * 20_000,
        ":2: TOML syntax: brackets are nested too deeply",
    ),
    "a long key": (".".join("a" * 200_000) + " = 1", ":1: TOML syntax: a key of too many parts"),
    "one word": ("x" * 900_000 + " = 1", "unknown key"),
    "a gigabyte": ("#" * 1_000_000 + "\n" * 10, "has more than 1,000,000 bytes"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_takes_little_whatever_the_file_says(case, tmp_path):
    content, words = CASES[case]
    file = tmp_path / "large.toml"
    file.write_text(content if isinstance(content, str) else format_toml(content))
    out = (tmp_path / "out.txt").open("w+b")
    command = [sys.executable, "-m", "servesweep", "run", str(file), "--dry-run"]
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], stdout=subprocess.PIPE, stderr=out, cwd=tmp_path, check=True
    )
    returncode, peak_kb, cpu_s = json.loads(measured.stdout)
    out.seek(0)
    text = out.read().decode()
    assert words in text
    assert returncode == (2 if "feasible" not in text else 0)
    assert "Traceback" not in text
    assert "unexpected" not in text
    assert len(text) < 8000
    assert max(map(len, text.splitlines())) < 1000
    assert peak_kb <= MEMORY_KB
    assert cpu_s <= CPU_S
