"""The benchmark command: it checks parity, prints, writes Parquet, and compares two versions."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from servesweep.kernels.phases import NAMES

ROOT = Path(__file__).resolve().parents[2]


def benchmarks(*options):
    return subprocess.run([sys.executable, "-m", "benchmarks", *options], cwd=ROOT, capture_output=True, text=True)


def test_table_and_comparison(tmp_path):
    size = ["--only", "mixed tight|^disaggregated", "--lanes", "4", "--requests", "40", "--repeats", "1"]
    ended = benchmarks(*size, "--out", str(tmp_path / "old.parquet"))
    assert ended.returncode == 0, ended.stderr
    table = pd.read_parquet(tmp_path / "old.parquet")
    assert table["case"].tolist() == [
        "mixed tight",
        "disaggregated",
        "disaggregated paged",
        "disaggregated x4",
        "disaggregated paged x4",
    ]
    assert all(name in ended.stdout for name in table["case"])
    assert table["systems"].tolist() == [4, 4, 4, 1, 1]
    assert (table["loops"] > 0).all()
    assert (table["events_per_request"] > 0.5).all()
    shares = table.filter(like="_share")
    assert shares.shape[1] == len(NAMES) + 2  # and between them, and outside the engine
    assert shares.sum(axis=1).tolist() == pytest.approx([1] * 5)
    assert (shares >= 0).all(axis=None)
    again = benchmarks(*size, "--compare", str(tmp_path / "old.parquet"))
    assert again.returncode == 0, again.stderr
    _, quotients = again.stdout.split("new / old\n")
    assert len(quotients.splitlines()) == 6
    assert quotients.splitlines()[1].split()[:2] == ["mixed", "tight"]
    assert quotients.splitlines()[1].split()[-2] == "1.00"  # as many loops as before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "no such case"], "found in the name of no case"),
        (["--only", "("], "--only (: "),
        (["--load", "huge"], "must be one of spread, light, heavy, overloaded"),
        (["--repeats", "0"], "must be at least 1"),
        (["--lanes", "0"], "must be whole numbers, at least 1"),
    ],
)
def test_wrong_options(options, message):
    ended = benchmarks(*options)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_all_kinds_fit_their_reference():
    """Every policy and system is among the cases, and in parity under overload, where requests wait and are
    preempted."""
    ended = benchmarks("--lanes", "2", "--requests", "30", "--load", "overloaded", "--repeats", "1", "--no-memory")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.split("% of CPU time")[0].splitlines()[2:]
    assert sum(" overloaded " in line for line in lines) >= 19
