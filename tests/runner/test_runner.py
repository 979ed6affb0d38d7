"""Runs: the same tables for any workers and batches, failures as rows, and what is left on disk."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import servesweep
import servesweep.runner.tasks as tasks
from patience import HANGS_S
from servesweep.analysis.ranking import best_by_policy
from servesweep.analysis.verdicts import format_rejections, format_slos, format_verdict
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError
from servesweep.runner.run import Interrupted
from servesweep.runner.runner import run_grid
from servesweep.serving.run_one import run_scheduler
from servesweep.tables.filenames import RUN_FILES

LENGTH = {"mean": 300, "sigma": 0.8, "lo": 16, "hi": 2000}
OUTPUT = {"mean": 60, "sigma": 0.8, "lo": 1, "hi": 400}
CONFIG = {
    "name": "small",
    "workload": {
        "kind": "synthetic",
        "prompt": LENGTH,
        "output": OUTPUT,
        "n_requests": [40, 60],
        "seed": [0, 1],
        "request_rate_rps": [4, 20, 100],
    },
    "instance": {"model": "llama-3.1-8b", "chip": ["t4", "h100-sxm"]},
    "scheduler": {
        "policy": ["mixed", "chunked", "prefill_first"],
        "block_size": [8, 64],
        "num_blocks": 100,
        "max_running": 32,
        "token_budget": 256,
    },
    "slo": {"ttft_ms": 200, "tpot_ms": 30},
}
CELLS = 2 * 2 * 3 * 2 * 3 * 2


def digest(directory, table="cells"):
    return hashlib.sha256((directory / f"{table}.parquet").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "deep" / "small"
    return run_grid(CONFIG, workers=1, out=out, progress=False, requests="all", steps="policy=chunked,block_size=64")


def test_a_row_a_cell_in_plan_order_with_every_parameter(run):
    plan = expand(load_experiment(CONFIG))
    df = run.df
    assert len(df) == CELLS == len(plan.cells)
    assert df["cell_id"].tolist() == [cell.cell_id for cell in plan.cells]
    for name in ("seed", "policy", "block_size", "request_rate_rps", "num_blocks"):
        assert df[name].tolist() == [cell.columns()[name] for cell in plan.cells]
    assert dict(run.counts) == {
        "cells": CELLS,
        "ok": CELLS // 2,
        "infeasible": CELLS // 2,
        "failed": 0,
        "unfinished": 0,
        "reused": 0,
    }
    assert df.attrs["units"]["ttft_p99_s"] == "s"
    assert df.attrs["config"]["name"] == "small"
    assert list(df["policy"].cat.categories) == ["mixed", "chunked", "prefill_first"]


def test_infeasible_cells_are_rows_with_a_reason_and_no_measures(run):
    rows = run.df[run.df["chip"] == "t4"]
    assert set(rows["status"]) == {"infeasible"}
    assert rows["error"].str.startswith("the weights of llama-3.1-8b do not fit 1 x t4").all()
    assert rows.loc[:, "attainment":].isna().all(axis=None)
    assert run.df.loc[run.df["status"] == "ok", "error"].isna().all()


def test_a_cell_is_what_the_scheduler_gives_alone(run):
    plan = expand(load_experiment(CONFIG))
    for at in plan.feasible[::7]:
        cell, row = plan.cells[at], run.df.iloc[at]
        options = {key: value for key, value in cell.spec.options.items() if value is not None}
        workload = cell.traffic.workload.at_rate(cell.request_rate_rps)
        result = run_scheduler(workload, cell.spec.step, **options)
        measures = result.summary(slo=servesweep.SLO(ttft_s=0.2, tpot_s=0.03))
        for name in ("attainment", "ttft_p99_s", "tpot_mean_s", "preemptions", "steps", "rejected", "duration_s"):
            assert row[name] == measures[name], name


@pytest.mark.parametrize(
    ("workers", "max_batch_cells"),
    [(1, 1), (1, 7), *(pytest.param(*values, marks=pytest.mark.process) for values in ((2, 1000), (2, 5), (4, 9)))],
)
def test_the_tables_are_the_same_bytes_for_any_workers_and_batches(run, tmp_path, workers, max_batch_cells):
    options = {"requests": "all", "steps": "policy=chunked,block_size=64", "progress": False}
    other = run_grid(CONFIG, workers=workers, max_batch_cells=max_batch_cells, out=tmp_path / "other", **options)
    for table in ("cells", "requests", "steps"):
        assert digest(other.directory, table) == digest(run.directory, table), table


def test_other_tables_and_other_names_do_not_change_the_cells(run, tmp_path):
    plain = run_grid(CONFIG, out=tmp_path, progress=False)
    assert digest(plain.directory) == digest(run.directory)


def test_tables_of_chosen_cells(run):
    requests, steps = (servesweep.load(run.directory, table=table) for table in ("requests", "steps"))
    ok = run.df[run.df["status"] == "ok"]
    assert len(requests) == ok["n_requests"].sum()
    assert list(dict.fromkeys(requests["cell_id"])) == ok["cell_id"].tolist()
    assert requests.groupby("cell_id", observed=True)["rejected"].sum().sum() == ok["rejected"].sum()
    chosen = ok[(ok["policy"] == "chunked") & (ok["block_size"] == 64)]
    assert list(dict.fromkeys(steps["cell_id"])) == chosen["cell_id"].tolist()
    assert steps.groupby("cell_id", observed=True, sort=False).size().tolist() == chosen["steps"].tolist()


def test_tables_of_an_earlier_run_do_not_stay(tmp_path):
    run_grid(CONFIG, out=tmp_path, progress=False, steps="all", settings=["n_requests=5", "seed=0"])
    assert (tmp_path / "steps.parquet").exists()
    run_grid(CONFIG, out=tmp_path, progress=False, settings=["n_requests=5", "seed=0"])
    assert not (tmp_path / "steps.parquet").exists()
    left = ["cells.parquet", "journal.jsonl", "run.json", "timings.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_facts_of_the_run_are_in_a_file_of_their_own(run):
    facts = json.loads((run.directory / "run.json").read_text())
    assert facts["experiment"] == run.config
    assert facts["counts"] == dict(run.counts)
    assert set(facts["versions"]) == {"python", "servesweep", "numpy", "pandas", "pyarrow", "joblib"}
    assert sum(batch["cells"] for batch in facts["batches"]) == CELLS // 2
    assert load_experiment(facts["experiment"]).tables() == run.config


def test_the_default_directory_is_under_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_grid(CONFIG, progress=False, settings=["n_requests=5", "seed=0", "chip=h100-sxm"])
    assert run.directory.resolve() == tmp_path / "results" / "small"
    assert (tmp_path / "results" / "small" / "cells.parquet").is_file()


# ------------------------------------------------------------------------------------------------------------ failures


def fail_at_100_rps(systems, **options):
    if any(system.rate == 100 and system.policy == "chunked" for system in systems):
        raise MemoryError("of 100 rps")
    return run_systems(systems, **options)


run_systems = tasks.run_systems


def test_only_the_cells_that_raise_fail(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "run_systems", fail_at_100_rps)
    broken = run_grid(CONFIG, workers=1, out=tmp_path, progress=False)
    guilty = (run.df["request_rate_rps"] == 100) & (run.df["policy"] == "chunked") & (run.df["status"] == "ok")
    assert broken.counts["failed"] == guilty.sum() > 0
    assert broken.failed["cell_id"].tolist() == run.df.loc[guilty, "cell_id"].tolist()
    assert set(broken.failed["error"]) == {"MemoryError: of 100 rps"}
    assert broken.failed.loc[:, "attainment":].isna().all(axis=None)
    pd.testing.assert_frame_equal(broken.df[~guilty], run.df[~guilty], check_categorical=False)


def test_an_interrupted_run_keeps_what_has_ended(run, tmp_path, monkeypatch):
    calls = []

    def interrupt_third(systems, **options):
        calls.append(len(systems))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_systems(systems, **options)

    monkeypatch.setattr(tasks, "run_systems", interrupt_third)
    with pytest.raises(Interrupted, match=rf"interrupted: \d+ of {CELLS} cells ended") as caught:
        run_grid(CONFIG, workers=1, max_batch_cells=6, out=tmp_path, progress=False)
    part = caught.value.run
    assert str(caught.value).endswith(f"their rows are in {tmp_path}")
    assert part.counts["ok"] == sum(calls[:2])
    assert part.counts["unfinished"] == CELLS // 2 - sum(calls[:2])
    kept = run.df[run.df["cell_id"].isin(part.df["cell_id"])].reset_index(drop=True)
    assert np.array_equal(kept["ttft_p99_s"], part.df["ttft_p99_s"], equal_nan=True)
    assert set(part.df["status"]) == {"ok", "infeasible"}


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_directory_that_cannot_be_written_is_an_error_before_the_run(tmp_path, monkeypatch, where):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tasks, "run_systems", None)
    with pytest.raises(ConfigError, match="cannot be written"):
        run_grid(CONFIG, out=tmp_path / where, progress=False)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5])
def test_workers_that_cannot_be(tmp_path, workers):
    with pytest.raises(ValueError, match="workers="):
        run_grid(CONFIG, workers=workers, out=tmp_path, progress=False)


# ------------------------------------------------------------------------------------------------------------- reports


def table(rows, **axes):
    """A cells table with these columns: policy, block_size, n_gpus, rate, attainment, output throughput."""
    names = ["policy", "block_size", "n_gpus", "request_rate_rps", "attainment", "output_throughput_tps"]
    df = pd.DataFrame(rows, columns=names)
    df["status"] = "ok"
    for name in ("ttft_p99_s", "tpot_p99_s", "kv_utilization_peak", "preemptions"):
        df[name] = 0.5
    df["ttft_slo_s"], df["tpot_slo_s"], df["e2e_slo_s"], df["itl_max_slo_s"] = 0.2, np.nan, np.nan, np.nan
    df.attrs["config"] = {"name": "x", "scheduler": {"policy": ["a", "b"], "block_size": [1, 2]}, **axes}
    return df


def test_best_is_the_highest_rate_that_it_and_all_lower_rates_keep():
    df = table(
        [
            ("a", 1, 1, 1.0, 1.0, 10),
            ("a", 1, 1, 2.0, 0.9, 20),
            ("a", 1, 1, 4.0, 0.7, 30),
            ("a", 1, 1, 8.0, 0.95, 30),  # luck at a higher rate does not count
            ("a", 2, 1, 1.0, 0.95, 10),
            ("a", 2, 1, 2.0, 0.89, 20),
            ("b", 1, 1, 1.0, 0.9, 10),
            ("b", 2, 1, 1.0, 0.9, 11),
            ("b", 1, 1, 2.0, 0.5, 10),
            ("b", 2, 1, 2.0, 0.5, 10),
        ]
    )
    a, b = best_by_policy(df)
    assert (a.parameters, a.rate_rps, a.is_top) == ({"policy": "a", "block_size": 1}, 2.0, False)
    assert (b.parameters, b.rate_rps) == ({"policy": "b", "block_size": 2}, 1.0)  # the tie goes to throughput
    assert (
        format_verdict([a, b], format_slos(df)) == "a, block_size 1: 2 req/s at 90% attainment (ttft <= 200 ms); 2 x b."
    )
    (never, *_) = best_by_policy(df, target=1.1)
    assert never.rate_rps == 0
    assert format_verdict([never], "x").startswith("No configuration reaches")
    assert format_verdict([], "x") == "No cell could be simulated."


def test_best_counts_gpus_and_says_where_the_sweep_ends():
    rows = [("a", 1, 1, 1.0, 1.0, 10), ("a", 1, 1, 2.0, 1.0, 10), ("b", 1, 4, 1.0, 1.0, 10), ("b", 1, 4, 2.0, 1.0, 10)]
    a, b = best_by_policy(table(rows))
    assert (a.parameters["policy"], b.rate_per_gpu_rps) == ("a", 0.5)
    assert "a, block_size 1: at least 2 req/s at 90%" in format_verdict([a, b], "x")
    assert "b at least 2 req/s too" in format_verdict([a, b], "x")
    assert "2 req/s, 0.5 per GPU, at 90%" in format_verdict([b], "x")


def test_every_ready_report_has_a_best_of_each_policy(run):
    best = best_by_policy(run.df)
    assert {(row.parameters["policy"], row.parameters["n_requests"]) for row in best} == {
        (policy, n) for policy in ("mixed", "chunked", "prefill_first") for n in (40, 60)
    }
    assert format_verdict(best, format_slos(run.df)).count("req/s") >= 1


# ------------------------------------------------------------------------------------------ what is found before a run


@pytest.mark.parametrize("name", RUN_FILES)
def test_an_output_that_is_a_directory_is_found_before_the_run(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tasks, "run_systems", None)
    with pytest.raises(ConfigError, match=rf"{name}: is a directory: must be a file"):
        run_grid(CONFIG, out=tmp_path, progress=False)
    if name == "cells.parquet":
        with pytest.raises(ValueError, match=r"cells\.parquet is a directory, not a table of a run"):
            servesweep.load(tmp_path)


def test_settings_as_a_dict(tmp_path):
    settings = {"n_requests": 5, "scheduler.policy": ["mixed"], "seed": 0, "token_budget": None}
    run = run_grid(CONFIG, out=tmp_path, progress=False, settings=settings)
    assert set(run.df["policy"]) == {"mixed"}
    assert set(run.df["n_requests"]) == {5}


def test_tables_that_were_not_recorded_name_the_remedy(run, tmp_path):
    run_grid(CONFIG, out=tmp_path, progress=False, settings={"n_requests": 5, "seed": 0})
    with pytest.raises(ValueError, match=r"with --requests CELLS, or with requests = CELLS in \[output\]"):
        servesweep.load(tmp_path, table="requests")


@pytest.mark.process
def test_interrupts_soon_after_the_start_leave_no_traceback(tmp_path):
    script = (
        "import sys\nfrom servesweep.commands.main import command_line\nif __name__ == '__main__':\n"
        "    sys.exit(command_line(['run', 'quickstart', '--workers', '2', '--set', 'n_requests=20000']))\n"
    )
    (tmp_path / "script.py").write_text(script)
    for delay_s in (0.3, 1.0, 2.0, 3.0):
        process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        process.stderr.readline()  # what the workload is: the run begins
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        out, err = process.communicate(timeout=HANGS_S)
        assert process.returncode == 130, err
        assert (out, "Traceback" in err) == ("", False), err
        assert "interrupted: " in err


def test_rejected_requests_are_told():
    df = table([("a", 16, 1, 1.0, 0.0, 0), ("a", 16, 1, 2.0, 0.5, 10)])
    df["n_requests"], df["rejected"], df["num_blocks"] = 30, [30, 0], 4
    assert format_rejections(df) == (
        "1 of 2 cells reject requests; at worst 30 of 30 requests rejected (100.0%): they need more than "
        "num_blocks = 4 of 16 tokens."
    )
    df["rejected"] = 0
    assert format_rejections(df) is None
