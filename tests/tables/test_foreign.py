"""Tables that others wrote again, edited or damaged: used where they suffice, refused with the column's name."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servesweep
from servesweep.analysis.comparison import COMPARED
from servesweep.analysis.ranking import best_by_policy
from servesweep.commands.main import command_line

CONFIG = {
    "name": "t",
    "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "n_requests": 30, "request_rate_rps": [4, 400]},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": [16, 64]},
    "slo": {"ttft_ms": 300},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return servesweep.run_grid(CONFIG, out=tmp_path_factory.mktemp("good") / "run", workers=1, progress=False)


@pytest.fixture
def run(good, tmp_path, monkeypatch):
    """Writes another table in place of the cells; the path of its run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()

    def write(change):
        with open(good.directory / "cells.parquet", "rb") as file:
            table = change(pq.ParquetFile(file).read())
        pq.write_table(table, tmp_path / "run" / "cells.parquet")
        return "run"

    return write


def with_column(name, make):
    def change(table):
        values = make(table[name].to_pylist() if name in table.column_names else [None] * table.num_rows)
        if name not in table.column_names:
            return table.append_column(name, values)
        return table.set_column(table.column_names.index(name), name, values)

    return change


def refused(capsys, *arguments):
    capsys.readouterr()
    assert command_line(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# ---------------------------------------------------------------------------------------------------- used all the same


@pytest.mark.parametrize("with_attrs", [True, False])
def test_a_table_that_pandas_wrote_is_the_table_that_it_read(good, run, tmp_path, with_attrs):
    frame = good.df[good.df["policy"].notna()]  # what it leaves out makes pandas write its index
    if not with_attrs:
        frame.attrs = {}
    run(lambda table: table)
    frame.to_parquet(tmp_path / "run" / "cells.parquet")
    again = servesweep.load("run")
    pd.testing.assert_frame_equal(again, good.df)
    assert again.attrs["units"] == good.df.attrs["units"]
    assert again.attrs["config"] == (good.df.attrs["config"] if with_attrs else {})
    best, due = (
        [(row.parameters["policy"], row.parameters["block_size"], row.rate_rps, row.measures) for row in found]
        for found in (best_by_policy(again), best_by_policy(good.df))
    )
    assert best == due  # without an experiment its axes are what varies
    assert command_line(["report", "run"]) == 0


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("steps", lambda x: pa.array(x, pa.float64())),
        ("steps", lambda x: pa.array([float(v) for v in x], pa.float32())),
        ("n_requests", lambda x: pa.array(x, pa.int16())),
        ("attainment", lambda x: pa.array(x).cast(pa.decimal128(38, 18), safe=False)),
        ("policy", lambda x: pa.array(x).dictionary_encode()),
        ("policy", lambda x: pa.array(x, pa.large_string())),
        ("policy", lambda x: pa.array(x, pa.string_view())),
        ("error", lambda x: pa.nulls(len(x))),
        ("request_rate_rps", lambda x: pa.array([int(v) for v in x])),
    ],
)
def test_the_same_values_in_another_type_are_the_same(good, run, name, make):
    pd.testing.assert_frame_equal(servesweep.load(run(with_column(name, make))), good.df)


def test_columns_that_were_added_stay_when_they_are_plain(good, run):
    more = {"cost": pa.array([0.5] * 8, pa.float16()), "note": pa.array(["x"] * 8), "kept": pa.array([True] * 8)}

    def change(table):
        for name, values in more.items():
            table = table.append_column(name, values)
        return table.append_column("__index_level_0__", pa.array(range(8)))

    frame = servesweep.load(run(change))
    assert list(frame.columns) == [*good.df.columns, *more]
    assert frame.attrs["units"]["cost"] == ""
    assert command_line(["show", "run"]) == command_line(["export", "run", "--out", "x.csv"]) == 0


def test_a_run_that_lost_a_column_serves_what_does_not_need_it(run, capsys):
    run(lambda table: table.drop_columns(["tpot_p50_s"]))
    assert command_line(["show", "run"]) == command_line(["report", "run"]) == 0
    assert command_line(["plot", "run", "curves", "--y", "attainment", "--formats", "csv"]) == 0
    assert "run/cells.parquet: the table has no column tpot_p50_s" in refused(capsys, "plot", "run", "pareto")


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        (
            "ttft_p99_s",
            lambda x: pa.array([[1.0]] * 8),
            "column ttft_p99_s holds list<element: double>: must hold double",
        ),
        ("ttft_p99_s", lambda x: pa.array(["fast"] * 8), "column ttft_p99_s holds string: must hold double"),
        ("steps", lambda x: pa.array([1.5] * 8), "column steps holds double: must hold int64"),
        ("steps", lambda x: pa.array([2**64 - 1] * 8, pa.uint64()), "column steps holds uint64: must hold int64"),
        ("policy", lambda x: pa.array([1] * 8), "column policy holds int64: must hold text"),
        ("policy", lambda x: pa.array([b"\xff"] * 8).view(pa.string()), "column policy holds string: must hold text"),
        ("cell_id", lambda x: pa.nulls(8), "column cell_id is missing in 8 of 8 rows"),
        ("status", lambda x: pa.array(["ok", None] * 4), "column status is missing in 4 of 8 rows"),
        (
            "status",
            lambda x: pa.array(["fine"] * 8),
            "column status holds 'fine': must be one of ok, infeasible, failed",
        ),
        ("n_gpus", lambda x: pa.array([0] * 8), "column n_gpus holds 0: must be at least 1"),
        ("e2e_p99_s", lambda x: pa.array([np.inf] * 8), "column e2e_p99_s holds inf: must hold finite numbers"),
        ("request_rate_rps", lambda x: pa.array([np.nan] * 8), "column request_rate_rps holds nan"),
        ("note", lambda x: pa.array([{"a": 1}] * 8), "column note holds struct<a: int64>: must hold text"),
        ("\x1b[31m", lambda x: pa.array([b"x"] * 8), r"column \x1b[31m holds binary: must hold text"),
    ],
)
def test_a_column_of_something_else_is_named(run, name, make, words, capsys):
    run(with_column(name, make))
    for arguments in (["show"], ["export"], ["report"], ["verify"], ["plot"]):
        assert refused(capsys, *arguments, "run").startswith(f"run/cells.parquet: {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop_columns(["cell_id"]), "run/cells.parquet has no column cell_id"),
        (lambda t: t.append_column("steps", t["steps"]), "run/cells.parquet: column 'steps' is there 2 times"),
        (lambda t: t.slice(0, 0), "run/cells.parquet: the table has no cell, so there is nothing to report"),
        (
            lambda t: t.replace_schema_metadata(None).drop_columns(["warmup"]),
            "run/cells.parquet is not a cells table written by servesweep: it has no column warmup",
        ),
        *(
            (
                lambda t, text=text: t.replace_schema_metadata(t.schema.metadata | {b"servesweep.config": text}),
                "run/cells.parquet: the experiment in its metadata cannot be read",
            )
            for text in (b"{", b"[]", b"\xff", b'{"a":' * 500 + b"1" + b"}" * 500, b'{"n": 1' + b"0" * 5000 + b"}")
        ),
        # These would give another answer without a word: block sizes counted as one, no SLO, none kept.
        (lambda t: t.drop_columns(["block_size"]), "run/cells.parquet: the table has no column block_size"),
        (lambda t: t.drop_columns(["ttft_slo_s"]), "run/cells.parquet: the table has no column ttft_slo_s"),
        (lambda t: t.drop_columns(["attainment"]), "run/cells.parquet: the table has no column attainment"),
        (
            with_column("attainment", lambda x: pa.nulls(len(x))),
            "run/cells.parquet: column attainment is missing in 8 of 8 cells that are ok",
        ),
    ],
)
def test_what_a_report_cannot_do_without_is_said(run, change, words, capsys):
    run(change)
    assert refused(capsys, "report", "run").startswith(words)


def test_what_a_plot_cannot_do_without_is_said(run, capsys):
    run(lambda table: table.slice(0, 1))
    words = "run/cells.parquet: request_rate_rps has a single value: a frontier needs a sweep of request rates"
    assert refused(capsys, "plot", "run", "frontier", "--x", "block_size") == words
    with open("run/cells.parquet", "rb") as file:
        cells = pq.ParquetFile(file).read()
    pq.write_table(cells.select(["cell_id"]).slice(0, 0), "run/steps.parquet")
    assert refused(capsys, "plot", "run", "time").startswith("run/steps.parquet")


def test_a_table_without_its_experiment_cannot_be_verified(run, capsys):
    run(lambda table: table.replace_schema_metadata(None))
    assert refused(capsys, "verify", "run") == (
        "run/cells.parquet: has lost its experiment, without which no cell can be run again"
    )


def test_runs_without_a_measure_in_common_are_not_compared(run, capsys):
    run(lambda table: table.drop_columns(["attainment", "preemptions", "output_throughput_tps"]))
    assert command_line(["compare", "run", "run"]) == 0  # latencies are left
    run(lambda table: table.drop_columns(list(COMPARED)))
    assert "no measure in common" in refused(capsys, "compare", "run", "run")


def test_numbers_that_are_not_finite_are_null_in_json(good, capsys):
    from servesweep.commands.options import print_json

    print_json({"a": [np.inf, 1.0], "b": {"c": float("nan")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.0], "b": {"c": None}}
