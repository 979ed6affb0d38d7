"""Directories of results that others have had their hands in: every command works, or says in a line what is wrong.

SERVESWEEP_FUZZ=2000 draws so many cases; by default a few, the same ones every time.
"""

import hashlib
import io
import os
import random
import re
import shutil
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import servesweep
from damage import damage
from peak_memory import peak_bytes
from servesweep.commands.main import command_line

EXPERIMENT = """\
name = "small"
[workload]
kind = "synthetic"
prompt = { mean = 200, sigma = 0.8, lo = 16, hi = 1000 }
output = { mean = 20, sigma = 0.8, lo = 1, hi = 100 }
n_requests = 30
seed = [0, 1]
request_rate_rps = [4, 64]
[instance]
model = "llama-3.1-8b"
chip = ["t4", "h100-sxm"]
[scheduler]
policy = ["mixed", "chunked"]
block_size = [8, 64]
num_blocks = 100
[slo]
ttft_ms = 500
tpot_ms = 50
[output]
requests = "all"
steps = "policy=chunked"
instances = "all"
"""
ONE = ["--set", "seed=0", "--set", "chip=h100-sxm", "--quiet", "--workers", "1"]
RUN = ["run", "e.toml", "--out", "results/run", "--quiet", "--workers", "1"]
SEARCH = ["goodput", "e.toml", "--out", "results/search", "--iters", "2", *ONE]
PLACEMENT = ["placement", "e.toml", "--out", "results/placement", "--n-gpus", "2", "--rel-tol", "0.5", *ONE]
PLACEMENT += ["--set", "policy=mixed", "--set", "block_size=8"]
MAKERS = {"run": RUN, "search": SEARCH, "placement": PLACEMENT}
SAME = {
    "run": ("cells", "requests", "steps", "instances"),
    "search": ("goodput", "probes"),
    "placement": ("placement",),
}

READERS = {
    "run": [
        ["show", "run"],
        ["show", "run", "--json"],
        ["show", "run", "--sort", "ttft_p99_s"],
        ["show", "run", "--cell", "policy=mixed,block_size=8,seed=0,request_rate_rps=4,chip=h100-sxm"],
        ["show", "run", "--where", "policy=mixed"],
        ["plot", "run", "--formats", "csv"],
        ["plot", "run", "--formats", "svg"],
        ["plot", "run", "curves", "--y", "ttft_p99_s", "--panels", "policy", "--formats", "png"],
        ["plot", "run", "heatmap", "--x", "block_size", "--y", "policy", "--formats", "png,csv"],
        ["plot", "run", "frontier", "--x", "block_size", "--formats", "csv"],
        ["plot", "run", "time", "--cell", "policy=chunked,block_size=8,seed=0,request_rate_rps=4,chip=h100-sxm"],
        ["report", "run"],
        ["compare", "run", "good"],
        ["compare", "good", "run", "--json"],
        ["verify", "run", "-k", "2"],
        ["export", "run"],
        ["export", "run", "--format", "json", "--table", "requests"],
        ["export", "run", "--format", "jsonl"],
        ["export", "run", "--format", "parquet", "--table", "steps"],
        ["export", "run", "--table", "timings", "--neutralise-formulas"],
        ["export", "run", "--table", "instances"],
    ],
    "search": [
        ["export", "search", "--table", "goodput"],
        ["export", "search", "--table", "probes", "--format", "json"],
        ["plot", "search", "goodput", "--x", "block_size", "--formats", "svg,csv"],
        ["show", "search"],
    ],
    "placement": [
        ["export", "placement", "--table", "placement"],
        ["export", "placement/prefill", "--table", "goodput"],
        ["show", "placement"],
    ],
}
TABLES = {"run": ("cells", "requests", "steps", "instances", "timings"), "search": ("goodput", "probes")}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Undamaged results, and beside them what must stay as it is."""
    folder = tmp_path_factory.mktemp("made")
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path("e.toml").write_text(EXPERIMENT)
        for maker in MAKERS.values():
            assert called(maker)[0] == 0
        shutil.copytree("results/run", "results/good")
        (folder / "outside" / "folder").mkdir(parents=True)
        (folder / "outside" / "file").write_text("mine")
        (folder / "outside" / "folder" / "0.requests.parquet").write_text("mine")
    finally:
        os.chdir(here)
    return folder


def called(arguments):
    """Exit code, stdout and stderr of a command, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(message, file=sys.stderr)
        code = command_line([*arguments])
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return code, *texts


def outside_of(folder, directory):
    """Every file but those of a directory, and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if directory not in path.parents and path != directory:
            content = path.read_bytes() if path.is_file() else b""
            found[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def digests(directory, tables):
    return [hashlib.sha256((directory / f"{table}.parquet").read_bytes()).hexdigest() for table in tables]


def said_well(arguments, code, out, err, which):
    """What is wrong with what a command said."""
    what = " ".join(arguments)
    if "Traceback" in err or "unexpected error" in err:
        return f"{what}: {err[-2000:]}"
    if (arguments[0] != "export" or "parquet" not in arguments) and (UNSEEN.search(err) or UNSEEN.search(out)):
        return f"{what}: control characters in {UNSEEN.search(err) or UNSEEN.search(out)}"
    different = arguments[0] == "verify" and code == 3
    if code not in (0, 1, 2) and not different:
        return f"{what}: exit code {code}"
    if code in (1, 2) and (len(err.strip().splitlines()) > 10 or which not in err):
        return f"{what}: names no file, or says too much: {err[-2000:]}"
    return None


def try_one(seed, made, folder):
    """One damaged directory; what is wrong, in words."""
    rng = random.Random(seed)
    which = rng.choice(["run", "run", "run", "run", "search", "placement"])
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    os.chdir(folder)
    directory = folder / "results" / which
    words = damage(rng, directory)
    before = outside_of(folder, directory)
    wrong = []

    def call(arguments):
        peak_before, began = peak_bytes(), time.process_time()
        code, out, err = called(arguments)
        if (problem := said_well(arguments, code, out, err, which)) is not None:
            wrong.append(problem)
        if (seconds := time.process_time() - began) > 10:
            wrong.append(f"{' '.join(arguments)}: took {seconds:.0f} s")
        if (more := peak_bytes() - peak_before) > 1e9:
            wrong.append(f"{' '.join(arguments)}: took {more / 1e6:,.0f} MB")
        return code

    for arguments in rng.sample(READERS[which], 3):
        call(arguments)
    for table in TABLES.get(which, ("placement",)):
        try:
            servesweep.load(directory, table)
        except ValueError:
            pass
        except Exception as error:
            wrong.append(f"load {table}: {type(error).__name__}: {error}")
    code = call(MAKERS[which])
    unseen = any("*" in text for text in words)  # damage that nothing can tell from honest results
    if code == 0 and not unseen and digests(directory, SAME[which]) != digests(made / "results" / which, SAME[which]):
        wrong.append("the tables are not those of an undisturbed run")
    if (after := outside_of(folder, directory)) != before:
        wrong.append(f"outside changed: {sorted(set(after.items()) ^ set(before.items()))}")
    return [f"seed {seed}, {which}: {'; '.join(words)}\n    {problem}" for problem in wrong]


def test_damaged_results_are_used_or_refused_in_a_line(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = int(os.environ.get("SERVESWEEP_FUZZ_FROM", 0))
    count = int(os.environ.get("SERVESWEEP_FUZZ", 30))
    wrong = []
    for seed in range(first, first + count):
        wrong += try_one(seed, made, tmp_path / "case")
    assert not wrong, "\n".join(wrong)
