"""Killed runs and workers, Ctrl-C, too little memory, a second run, a damaged journal: no finished cell is lost."""

import json
import os
import signal

import numpy as np
import pytest
import servesweep
import servesweep.runner.execution as execution
from patience import HANGS_S
from servesweep.commands.main import command_line
from servesweep.runner.runner import run_grid
from servesweep.runner.tasks import Task
from small_sweep import CELLS, FEASIBLE, alive, children, digests, kept_cells, limited, start, wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("folder")]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_killed_run_keeps_every_finished_cell_and_its_workers_end(undisturbed, folder, share):
    process = start("--workers", "2", "--out", "out", "--quiet")
    wait_until(lambda: len(kept_cells(folder / "out")) > share * FEASIBLE or process.poll() is not None)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, workers)))
    kept = kept_cells(folder / "out")
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(kept) > share * FEASIBLE
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_ctrl_c_ends_soon_and_tells_the_command_that_resumes(undisturbed, folder):
    process = start("--workers", "2", "--out", "out dir")
    wait_until(lambda: kept_cells(folder / "out dir"))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    kept = kept_cells(folder / "out dir")
    assert len(kept) < FEASIBLE  # it did not wait for the rest
    assert f"interrupted: {len(kept)} of {CELLS} cells ended; their rows are in out dir" in err
    assert (
        err.splitlines()[-1] == "go on with: servesweep run small.toml --max-batch-cells 3 --workers 2 --out 'out dir'"
    )
    assert len(servesweep.load("out dir")) == len(kept) + CELLS - FEASIBLE
    again = run_grid("small.toml", out="out dir", progress=False)
    assert again.counts["reused"] == len(kept)
    assert digests(folder / "out dir") == digests(undisturbed.directory)


def test_a_killed_worker_costs_nothing(undisturbed, folder):
    process = start("--workers", "2", "--out", "out", "--json")
    for share in (0.1, 0.5):
        wait_until(lambda share=share: len(kept_cells(folder / "out")) > share * FEASIBLE and children(process.pid))
        os.kill(children(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    assert (json.loads(out)["ok"], json.loads(out)["failed"]) == (FEASIBLE, 0)
    batches = json.loads((folder / "out" / "run.json").read_text())["batches"]
    assert max(batch["cells"] for batch in batches) == 3
    assert digests(folder / "out") == digests(undisturbed.directory)


class KillerTask(Task):
    """A task that ends its process when one of its cells has the guilty rate."""

    def run(self):
        guilty = any((system.rate, system.policy, system.block_size) == (4, "chunked", 8) for system in self.systems)
        if guilty and str(os.getpid()) != os.environ["TESTS"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run()


def test_killer_cells_are_found_and_marked_and_the_rest_complete(undisturbed, folder, monkeypatch):
    monkeypatch.setenv("TESTS", str(os.getpid()))
    make_task = execution.make_task
    monkeypatch.setattr(execution, "make_task", lambda *args, **kept: KillerTask(**vars(make_task(*args, **kept))))
    broken = run_grid("small.toml", out="out", progress=False, workers=2)
    good = undisturbed.df
    guilty = (good["request_rate_rps"] == 4) & (good["policy"] == "chunked") & (good["block_size"] == 8)
    guilty &= good["status"] == "ok"
    assert broken.failed["cell_id"].tolist() == good.loc[guilty, "cell_id"].tolist()
    assert set(broken.failed["error"]) == {
        "WorkerDied: the worker process ended in the middle, with exit code SIGKILL(-9)"
    }
    assert broken.counts["ok"] == FEASIBLE - guilty.sum()
    assert np.array_equal(
        broken.df.loc[~guilty, "ttft_p99_s"].to_numpy(), good.loc[~guilty, "ttft_p99_s"].to_numpy(), equal_nan=True
    )
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert command_line(["run", "small.toml", "--out", "out", "--quiet"]) == 3
    assert command_line(["run", "small.toml", "--out", "out", "--quiet", "--retry-failed"]) == 0
    assert digests(folder / "out") == digests(undisturbed.directory)


HUGE = """\
name = "huge"
[workload]
kind = "synthetic"
prompt = { mean = 300, sigma = 0.8, lo = 16, hi = 2000 }
output = { mean = 60, sigma = 0.8, lo = 1, hi = 400 }
n_requests = 20
request_rate_rps = 8
[system]
n_instances = [1, 2, 3, 4, 5, 300_000]
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
[scheduler]
block_size = 16
max_running = 32
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_takes_all_memory_costs_itself(folder, workers):
    (folder / "small.toml").write_text(HUGE)
    one = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "MKL", "OMP")}  # each thread would reserve memory
    process = start(
        *("--workers", str(workers), "--out", "out", "--json"),
        preexec_fn=limited("RLIMIT_AS", 900 << 20),
        env={**os.environ, **one, "MALLOC_ARENA_MAX": "2"},
    )
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 3, err
    counts = json.loads(out)
    assert (counts["ok"], counts["failed"]) == (5, 1)
    assert "1 failed: MemoryError: Unable to allocate " in err
    rows = servesweep.load("out")
    assert rows["status"].tolist() == ["ok"] * 5 + ["failed"]
    good = run_grid("small.toml", out="good", settings={"n_instances": [1, 2, 3, 4, 5]}, progress=False)
    measures = rows.columns[rows.columns.get_loc("attainment") :]
    assert rows.loc[:4, measures].equals(good.df[measures])


def test_a_second_run_on_the_same_directory_is_refused(folder):
    process = start("--workers", "2", "--out", "out", "--quiet")
    wait_until(lambda: kept_cells(folder / "out"))
    second = start("--out", "out")
    _, err = second.communicate(timeout=HANGS_S)
    assert second.returncode == 2
    assert f"out is in use by another run (process {process.pid} on " in err
    assert process.wait(timeout=HANGS_S) == 0


def test_a_damaged_journal_costs_only_what_is_damaged(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False, workers=1)
    path = folder / "out" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b"0", b"1", 3)
    lines[40] = b"\n"
    path.write_bytes(b"".join(lines)[:-7])
    for table in ("cells", "requests", "steps"):  # every cell has instances, so losing those would run all again
        (folder / "out" / f"{table}.parquet").write_bytes(b"not Parquet")
    again = run_grid("small.toml", out="out", progress=False)
    assert FEASIBLE - 50 < again.counts["reused"] < FEASIBLE
    assert digests(folder / "out") == digests(undisturbed.directory)
    assert len(again.notes) == 4
