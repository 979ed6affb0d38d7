"""What a run survives: kills, interrupts, full disks, damaged journals, killer cells. Real processes, real signals."""

import base64
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servesweep
import servesweep.experiment.plan as plan_module
import servesweep.runner.cells as finished_module
import servesweep.runner.runner as runner
import servesweep.runner.tasks as tasks
from servesweep.commands.main import command_line
from servesweep.runner.journal import Journal, JournalInUse, decode_line, encode_line
from servesweep.runner.runner import run_grid
from servesweep.runner.tasks import Task

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


def wait_until(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.toml").write_text(SWEEP)
    return run_grid(folder / "small.toml", out=folder / "run", workers=1, progress=False)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SWEEP)
    return tmp_path


def start(*options, **more):
    """The command, in many small batches, so that there is much to interrupt."""
    return subprocess.Popen(
        [sys.executable, "-m", "servesweep", "run", "small.toml", "--max-lanes", "3", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


# --------------------------------------------------------------------------------------------------------- the journal


def test_a_journal_gives_back_what_was_appended(tmp_path):
    records = [{"cell": "a", "measures": {"x": 0.1, "y": None, "z": -0.0}}, {"cell": "b", "error": "Fehler: é\n"}]
    journal = Journal(tmp_path)
    journal.append(records[:1])
    journal.append(records[1:])
    assert list(journal.records()) == records
    journal.close()
    again = Journal(tmp_path)
    assert (list(again.records()), again.damage) == (records, [])
    again.close()
    emptied = Journal(tmp_path, fresh=True)
    assert list(emptied.records()) == []
    emptied.close()


@pytest.mark.parametrize("cut", [1, 5, 30, 100_000])
def test_a_torn_tail_is_cut_off_wherever_it_ends(tmp_path, cut):
    long = {"cell": "b", "error": "x" * 200_000}
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line({"cell": "a"}) + encode_line(long)[:-cut])
    journal = Journal(tmp_path)
    assert "the last line was not whole" in journal.damage[0]
    journal.append([{"cell": "c"}])
    assert [record["cell"] for record in journal.records()] == ["a", "c"]
    assert len(journal.damage) == 1
    journal.close()


def test_a_damaged_line_costs_itself(tmp_path):
    lines = [encode_line({"cell": name}) for name in "abc"]
    (tmp_path / "journal.jsonl").write_bytes(lines[0] + lines[1].replace(b"b", b"B") + b"\xff\n\n" + lines[2])
    journal = Journal(tmp_path)
    assert [record["cell"] for record in journal.records()] == ["a", "c"]
    assert re.search(r"3 lines \(2, 3, 4\) are damaged and left out; what stood there runs again", journal.damage[0])
    journal.close()


def test_a_journal_has_one_holder(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(JournalInUse, match="in use by another run"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_journal_of_a_newer_servesweep_is_refused(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "journal.jsonl").write_bytes(encode_line({"journal": 99}))
    assert command_line(["run", "small.toml", "--out", "out", "--quiet"]) == 2
    assert "has format 99, but this servesweep reads up to 2: upgrade servesweep" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- reuse


def test_a_finished_run_does_nothing_again_and_says_so(undisturbed, folder, capsys, monkeypatch):
    assert command_line(["run", "small.toml", "--out", "out", "--workers", "1"]) == 0
    before = (folder / "out" / "journal.jsonl").read_bytes(), (folder / "out" / "timings.parquet").read_bytes()
    monkeypatch.setattr(tasks, "run_systems", None)
    capsys.readouterr()
    assert command_line(["run", "small.toml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert f"\n{FEASIBLE} reused, 0 to do\n" in err
    assert "Best configuration" in out
    assert digests(folder / "out") == digests(undisturbed.directory)
    assert before == (
        (folder / "out" / "journal.jsonl").read_bytes(),
        (folder / "out" / "timings.parquet").read_bytes(),
    )


def test_a_changed_axis_runs_the_new_cells_only(undisturbed, folder):
    part = run_grid("small.toml", out="out", progress=False, settings={"policy": ["chunked"], "seed": 1})
    assert part.counts["ok"] == FEASIBLE // 6
    whole = run_grid("small.toml", out="out", progress=False)
    assert whole.counts["reused"] == FEASIBLE // 6
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_tables_that_an_earlier_run_did_not_record_run_again(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False, settings={"requests": None, "steps": None})
    assert sorted(path.suffixes[0] for path in (folder / "out").iterdir()) == [".json", ".jsonl", *[".parquet"] * 3]
    again = run_grid("small.toml", out="out", progress=False)
    asked = 2 * 3 * 2 + 2 * 12 - 2  # a rate; a policy with a block size; both
    assert again.counts["reused"] == FEASIBLE - asked
    assert digests(folder / "out") == digests(undisturbed.directory)
    assert sorted(path.name for path in (folder / "out").iterdir() if path.is_dir()) == []


def test_other_rules_reuse_nothing_and_say_why(folder, capsys, monkeypatch):
    run_grid("small.toml", out="out", progress=False, settings={"seed": 0})
    for module in (plan_module, finished_module, runner):
        monkeypatch.setattr(module, "RULES_VERSION", 99)
    again = run_grid("small.toml", out="out", settings={"seed": 0})
    assert again.counts["reused"] == 0
    words = f"nothing is reused of the {FEASIBLE // 2} cells in out: they were simulated by version 1 of the rules"
    assert words in capsys.readouterr().err
    assert again.notes[0].startswith(words)


def test_fresh_starts_over(folder):
    first = run_grid("small.toml", out="out", progress=False, settings={"seed": 0})
    again = run_grid("small.toml", out="out", progress=False, settings={"seed": 0}, fresh=True)
    assert (again.counts["reused"], again.counts["ok"]) == (0, first.counts["ok"])
    assert len(kept_cells(folder / "out")) == first.counts["ok"]


def test_failed_cells_run_again_when_asked(undisturbed, folder, monkeypatch):
    run_systems = tasks.run_systems

    def fail_at_4_rps(systems, **options):
        if any(system.rate == 4 for system in systems):
            raise ArithmeticError("of 4 rps")
        return run_systems(systems, **options)

    monkeypatch.setattr(tasks, "run_systems", fail_at_4_rps)
    broken = run_grid("small.toml", out="out", progress=False, workers=1)
    assert broken.counts["failed"] == FEASIBLE // 12
    assert set(broken.failed["error"]) == {"ArithmeticError: of 4 rps"}
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_grid("small.toml", out="out", progress=False).counts["failed"] == FEASIBLE // 12
    healed = run_grid("small.toml", out="out", progress=False, retry_failed=True)
    assert (healed.counts["failed"], healed.counts["reused"]) == (0, FEASIBLE - FEASIBLE // 12)
    assert digests(folder / "out") == digests(undisturbed.directory)


def journal_of(directory):
    return [decode_line(line) for line in (directory / "journal.jsonl").read_bytes().splitlines(keepends=True)]


def write_journal(directory, records):
    (directory / "journal.jsonl").write_bytes(b"".join(map(encode_line, records)))


def test_a_journal_of_format_1_is_reused_but_for_rows_without_a_measure_of_this_version(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False)
    begin, *records = journal_of(folder / "out")
    names, form = begin.pop("measures"), begin.pop("form")
    cells = [record for record in records if "cell" in record]
    for record in cells:
        assert record.pop("form") == form
        values = np.frombuffer(base64.b64decode(record.pop("values")), "<f8").tolist()
        record["measures"] = {name: None if math.isnan(x) else x for name, x in zip(names, values, strict=True)}
    del cells[0]["measures"]["utilization"]
    write_journal(folder / "out", [{**begin, "journal": 1}, *records])
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(cells) - 1
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_measures_are_reused_by_their_names_and_not_without(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False)
    begin, *records = journal_of(folder / "out")
    cells = [record for record in records if "cell" in record]
    for record in cells:  # as a version would write them that has the measures in another order, and one more
        values = np.frombuffer(base64.b64decode(record["values"]), "<f8")
        record["form"], record["values"] = "another", base64.b64encode(np.append(values[::-1], 1.0).tobytes()).decode()
    names = [*begin["measures"][::-1], "of_a_later_version"]
    write_journal(folder / "out", [{**begin, "form": "another", "measures": names}, *records])
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == len(cells)
    assert digests(folder / "out") == digests(undisturbed.directory)
    write_journal(folder / "out", records)  # without the line that names them
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == 0
    assert digests(folder / "out") == digests(undisturbed.directory)


# ------------------------------------------------------------------------------------------------------------ disasters


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_killed_run_keeps_every_finished_cell_and_its_workers_end(undisturbed, folder, share):
    process = start("--workers", "2", "--out", "out", "--quiet")
    wait_until(lambda: len(kept_cells(folder / "out")) > share * FEASIBLE or process.poll() is not None)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, workers)), 5)
    kept = kept_cells(folder / "out")
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(kept) > share * FEASIBLE
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_ctrl_c_ends_soon_and_tells_the_command_that_resumes(undisturbed, folder):
    process = start("--workers", "2", "--out", "out dir")
    wait_until(lambda: kept_cells(folder / "out dir"))
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=120)
    assert time.monotonic() - began < 2.5
    assert process.returncode == 130
    assert "Traceback" not in err
    kept = kept_cells(folder / "out dir")
    assert f"interrupted: {len(kept)} of {CELLS} cells ended; their rows are in out dir" in err
    assert err.splitlines()[-1] == "go on with: servesweep run small.toml --max-lanes 3 --workers 2 --out 'out dir'"
    assert len(servesweep.load("out dir")) == len(kept) + CELLS - FEASIBLE
    again = run_grid("small.toml", out="out dir", progress=False)
    assert again.counts["reused"] == len(kept)
    assert digests(folder / "out dir") == digests(undisturbed.directory)


def test_a_killed_worker_costs_nothing(undisturbed, folder):
    process = start("--workers", "2", "--out", "out", "--json")
    for share in (0.1, 0.5):
        wait_until(lambda share=share: len(kept_cells(folder / "out")) > share * FEASIBLE and children(process.pid))
        os.kill(children(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=300)
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
    make_task = runner.make_task
    monkeypatch.setattr(runner, "make_task", lambda *args, **kept: KillerTask(**vars(make_task(*args, **kept))))
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


def limited(name, size):
    """Run in the child before it becomes the command: a limit as a full disk or a small machine sets it."""
    import resource

    return lambda: resource.setrlimit(getattr(resource, name), (size, size))


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
    out, err = process.communicate(timeout=300)
    assert process.returncode == 3, err
    counts = json.loads(out)
    assert (counts["ok"], counts["failed"]) == (5, 1)
    assert "1 failed: MemoryError: Unable to allocate " in err
    rows = servesweep.load("out")
    assert rows["status"].tolist() == ["ok"] * 5 + ["failed"]
    good = run_grid("small.toml", out="good", settings={"n_instances": [1, 2, 3, 4, 5]}, progress=False)
    measures = rows.columns[rows.columns.get_loc("attainment") :]
    assert rows.loc[:4, measures].equals(good.df[measures])


def test_a_full_disk_stops_the_run_and_keeps_what_fits(undisturbed, folder):
    process = start("--workers", "2", "--out", "out", preexec_fn=limited("RLIMIT_FSIZE", 60_000))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    kept = kept_cells(folder / "out")
    assert 0 < len(kept) < FEASIBLE
    assert re.search(rf"stopped: out.*: File too large; {len(kept)} of {CELLS} cells ended", err)
    assert err.splitlines()[-1] == "go on with: servesweep run small.toml --max-lanes 3 --workers 2 --out out"
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(kept)
    assert again.notes == ()  # no torn line was left behind
    assert digests(folder / "out") == digests(undisturbed.directory)


@pytest.fixture
def small_disk(folder):
    """A function that gives the folder "disk" so many KB, all that fit on it. It can be called again to make room."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root on Linux can mount a small disk")
    disk = folder / "disk"
    disk.mkdir()

    def resize(kb):
        options = f"size={kb}k" if not disk.is_mount() else f"remount,size={kb}k"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this machine mounts no small disk: {done.stderr.strip()}")

    yield resize
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", disk], check=True)  # a process that hangs may still be there


FULL = (
    r"stopped: disk/out.*: No space left on device; (\d+) of 288 cells ended; "
    r"they are in journal\.jsonl, not all in the tables: make room, and go on\n"
    r"go on with: servesweep run small\.toml --max-lanes 3 --workers \d --out disk/out\n$"
)


@pytest.mark.parametrize("kb", [8, 120, 360])
def test_a_disk_that_is_really_full_loses_no_finished_cell(undisturbed, folder, small_disk, kb):
    small_disk(kb)
    for _ in range(2):  # without room, the second run gets no further and harms nothing
        process = start("--workers", "2", "--out", "disk/out")
        _, err = process.communicate(timeout=300)
        assert (process.returncode, "Traceback" in err) == (1, False), err
        found = re.search(FULL, err)
        assert found, err
        kept = kept_cells(folder / "disk" / "out")
        assert len(kept) == int(found[1]) < FEASIBLE
    assert kb == 8 or kept
    small_disk(8000)
    again = run_grid("small.toml", out="disk/out", progress=False)
    assert again.counts["reused"] == len(kept)
    assert again.notes == ()
    assert digests(folder / "disk" / "out") == digests(undisturbed.directory)


def test_a_disk_that_fills_up_while_the_tables_are_written(undisturbed, folder, small_disk):
    (folder / "small.toml").write_text(SWEEP.partition("[output]")[0])
    small_disk(200)  # room for the journal, and then not for the cells
    for _ in range(2):
        process = start("--workers", "1", "--out", "disk/out")
        _, err = process.communicate(timeout=300)
        assert (process.returncode, "Traceback" in err) == (1, False), err
        found = re.search(FULL, err)
        assert found, err
        assert int(found[1]) == len(kept_cells(folder / "disk" / "out")) == FEASIBLE
        assert sorted(path.name for path in (folder / "disk" / "out").iterdir()) == ["journal.jsonl"]
    small_disk(8000)
    again = run_grid("small.toml", out="disk/out", progress=False)
    assert again.counts["reused"] == FEASIBLE
    assert digests(folder / "disk" / "out", ["cells"]) == digests(undisturbed.directory, ["cells"])


def test_a_search_says_that_its_disk_is_full(folder, small_disk):
    small_disk(8)
    command = ["goodput", "small.toml", "--slo", "ttft:60", "--iters", "3", "--workers", "1", "--out", "disk/out"]
    done = subprocess.run([sys.executable, "-m", "servesweep", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    full = (
        r"stopped: disk/out.*: No space left on device; tables that were written before are kept: put that right, and"
    )
    assert re.search(rf"^{full} start the search again$", done.stderr, re.MULTILINE), done.stderr
    small_disk(8000)
    assert (
        subprocess.run([sys.executable, "-m", "servesweep", *command], capture_output=True, timeout=300).returncode == 0
    )


def test_a_second_run_on_the_same_directory_is_refused(folder):
    process = start("--workers", "2", "--out", "out", "--quiet")
    wait_until(lambda: kept_cells(folder / "out"))
    second = start("--out", "out")
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"out is in use by another run (process {process.pid} on " in err
    assert process.wait(timeout=300) == 0


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


# ----------------------------------------------------------------------------------------------------- cell by cell


def test_verify_finds_the_same_numbers_and_a_forged_one(undisturbed, folder, capsys):
    directory = str(undisturbed.directory)
    assert command_line(["verify", directory, "-k", "9", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "9 of 9 cells came out the same to the last bit\n"
    table = pq.read_table(undisturbed.directory / "cells.parquet")
    at = table.column_names.index("ttft_p99_s")
    forged = table["ttft_p99_s"].to_numpy() * (1 + 2**-50)
    (folder / "forged").mkdir()
    pq.write_table(table.set_column(at, table.field(at), pa.array(forged)), folder / "forged" / "cells.parquet")
    assert command_line(["verify", "forged", "-k", "5", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert len(found["cells"]) == len(found["differences"]) == 5
    assert {difference["column"] for difference in found["differences"]} == {"ttft_p99_s"}
    assert command_line(["verify", "nowhere"]) == 2
    assert "nowhere is not a run: there is no such directory" in capsys.readouterr().err


def test_verify_refuses_other_rules(undisturbed, folder, capsys, monkeypatch):
    monkeypatch.setattr(plan_module, "RULES_VERSION", 99)
    assert command_line(["verify", str(undisturbed.directory)]) == 2
    assert f"{CELLS} of {CELLS} cells are not those of its experiment by version" in capsys.readouterr().err


def test_iter_run_gives_every_row_once_and_can_be_left(undisturbed, folder):
    rows = servesweep.iter_run("small.toml", out="out", max_lanes=4, workers=1)
    first = [next(rows) for _ in range(CELLS - FEASIBLE + 6)]
    rows.close()
    assert [row["status"] for row in first] == ["infeasible"] * (CELLS - FEASIBLE) + ["ok"] * 6
    assert not (folder / "out" / "cells.parquet").exists()
    with pytest.raises(ValueError, match="out is not a finished run: the run was stopped; start it again"):
        servesweep.load("out")
    again = list(servesweep.iter_run("small.toml", out="out"))
    assert len({row["cell_id"] for row in again}) == len(again) == CELLS
    by_id = {row["cell_id"]: row for row in again}
    for row in undisturbed.df[undisturbed.df["status"] == "ok"].iloc[::17].to_dict("records"):
        assert by_id[row["cell_id"]]["ttft_p99_s"] == row["ttft_p99_s"]
        assert by_id[row["cell_id"]]["policy"] == row["policy"]
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_timings_have_a_row_a_cell(undisturbed):
    timings = servesweep.load(undisturbed.directory, "timings")
    assert timings["cell_id"].tolist() == undisturbed.df["cell_id"].tolist()
    ran = undisturbed.df["status"] == "ok"
    assert timings["batch"].notna().tolist() == ran.tolist()
    assert set(timings.loc[ran, "pid"]) == {os.getpid()}
    sizes = timings[ran].groupby("batch")["batch_cells"].agg(["size", "first"])
    assert sizes["size"].tolist() == sizes["first"].tolist()


def test_a_run_shows_itself_in_a_notebook(undisturbed):
    html = undisturbed._repr_html_()
    assert f"<b>small</b>: {CELLS} cells, {FEASIBLE} ok, {CELLS - FEASIBLE} infeasible" in html
    assert "req/s at 90% attainment" in html
    assert html.count("<tr") == 4  # a head and three policies
    assert repr(undisturbed).startswith("<Run small: 288 cells, 144 ok, ")
    assert "object" not in undisturbed.df.dtypes.astype(str).tolist()
