"""A directory holds one thing at a time: who works there, what may replace what, and what a killed process leaves.

SERVESWEEP_FUZZ=18 kills each kind so often at file operations, and as often by the clock; by default twice.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servesweep import find_goodput, find_placement, load, run_grid
from servesweep.commands.main import command_line as main
from servesweep.experiment.tables import ConfigError
from servesweep.runner import tasks
from servesweep.runner.hold import Hold
from servesweep.runner.run import Interrupted
from servesweep.serving.run import run_systems
from servesweep.tables.unfinished import newer_work

EXPERIMENT = {
    "name": "one",
    "workload": {"kind": "synthetic", "n_requests": 40, "prompt": 300, "output": 20, "request_rate_rps": [1, 2]},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {"policy": ["mixed", "chunked"], "block_size": 16},
    "slo": {"ttft_ms": 200, "tpot_ms": 50},
}
PLACED = {
    **EXPERIMENT,
    "instance": {**EXPERIMENT["instance"], "tp": [1, 2]},
    "scheduler": {"policy": "prefill_first"},
    "system": {"n_gpus": 4},
}
QUIET = {"progress": False, "workers": 1}


def run(out, **options):
    return run_grid(EXPERIMENT, out=out, **QUIET, **options)


def search(out, **options):
    return find_goodput(EXPERIMENT, out=out, lo=1, hi=4, **{"iters": 1, **options}, **QUIET)


def place(out, **options):
    return find_placement(PLACED, out=out, lo=1, hi=4, **{"rel_tol": 0.5, **options}, **QUIET)


WORK = {"run": run, "search": search, "placement": place}
OTHER = {
    "run": {"settings": ["policy=mixed"]},
    "search": {"iters": 2},
    "placement": {"rel_tol": 0.7},
}


def bytes_of(directory):
    """Of all tables, with those in folders."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.parquet"))}


@pytest.mark.parametrize("kind", WORK)
def test_one_at_a_time(kind, tmp_path):
    with Hold(tmp_path, kind):
        about = json.loads((tmp_path / "unfinished.json").read_text())
        assert (about["kind"], about["pid"]) == (kind, os.getpid())
        for work in WORK.values():
            with pytest.raises(ConfigError, match=rf"is in use by another {kind} \(process {os.getpid()} on "):
                work(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", WORK)
def test_it_is_held_while_work_goes_on(kind, tmp_path, monkeypatch):
    """From the first batch to the last nobody else may begin, and readers are told."""
    seen = []

    def look(lanes, **options):
        with pytest.raises(ConfigError, match=rf"is in use by another {kind}"):
            WORK[kind](tmp_path)
        seen.append(newer_work(tmp_path, {"run": "cells", "search": "goodput"}.get(kind, kind)))
        return run_systems(lanes, **options)

    monkeypatch.setattr(tasks, "run_systems", look)
    WORK[kind](tmp_path)
    assert seen
    assert all("has not ended" in one for one in seen)


@pytest.mark.parametrize("fresh", [False, True])
def test_nothing_of_another_experiment_comes_beside(fresh, tmp_path):
    search(tmp_path)
    with pytest.raises(ConfigError, match=r"holds a search of another experiment, 'one', beside which a run of 'x'"):
        run_grid({**EXPERIMENT, "name": "x"}, out=tmp_path, **QUIET, fresh=fresh)
    assert not (tmp_path / "cells.parquet").exists()


def test_tables_that_hold_more_stay(tmp_path, monkeypatch, capsys):
    run(tmp_path)
    before = bytes_of(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    batches = iter(range(9))

    def interrupt(lanes, **options):
        if next(batches):
            raise KeyboardInterrupt
        return run_systems(lanes, **options)

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    with pytest.raises(Interrupted):
        run(tmp_path, max_batch_cells=1)
    assert bytes_of(tmp_path) == before
    assert f"the tables in {tmp_path} hold more cells, and stay; what ended now is in journal.jsonl" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("ended", [0, 1])
def test_a_fresh_run_of_other_settings_that_stops_can_go_on_as_it_says(ended, tmp_path, monkeypatch, capsys):
    run(tmp_path)
    file = written(tmp_path, "run") / "one.toml"
    batches = iter(range(9))

    def interrupt(lanes, **options):
        if next(batches) == ended:
            raise KeyboardInterrupt
        return run_systems(lanes, **options)

    narrower = ["run", str(file), "--set", "policy=mixed", "--workers", "1", "--max-batch-cells", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "run_systems", interrupt)
        assert main([*narrower, "--out", str(tmp_path), "--fresh"]) == 130
    assert (tmp_path / "cells.parquet").exists()  # the earlier one, or what has ended
    hint = shlex.split(capsys.readouterr().err.splitlines()[-1].removeprefix("go on with: servesweep "))
    assert ("--fresh" in hint) == (not ended)
    assert main(hint) == 0
    assert len(load(tmp_path)) == 2


@pytest.mark.parametrize("kind", WORK)
def test_other_settings_replace_nothing_unless_told_to(kind, tmp_path):
    work = WORK[kind]
    work(tmp_path)
    before = bytes_of(tmp_path)
    work(tmp_path)
    with pytest.raises(ConfigError, match=rf"holds a finished {kind} of other settings.*--fresh replaces it"):
        work(tmp_path, **OTHER[kind])
    without = {name: table for name, table in bytes_of(tmp_path).items() if name != "timings.parquet"}
    assert without == {name: table for name, table in before.items() if name != "timings.parquet"}
    work(tmp_path, **OTHER[kind], fresh=True)
    work(tmp_path / "apart", **OTHER[kind])
    for name, table in bytes_of(tmp_path / "apart").items():
        assert name == "timings.parquet" or (tmp_path / name).read_bytes() == table


def test_a_run_that_has_all_cells_goes_on(tmp_path):
    run(tmp_path, settings=["policy=mixed"])
    wider = run(tmp_path)
    assert (wider.counts["reused"], len(wider.df)) == (2, 4)


def test_another_experiment_does_not_lie_beside(tmp_path):
    search(tmp_path)
    run(tmp_path)  # of the same experiment: beside it
    with pytest.raises(ConfigError, match=r"holds a run of another experiment, 'one', beside which a placement of 'x'"):
        find_placement({**PLACED, "name": "x"}, out=tmp_path, lo=1, hi=4, **QUIET)


def test_a_placement_of_other_settings_leaves_no_part_of_the_first(tmp_path):
    place(tmp_path)
    (tmp_path / "placement.parquet").unlink()  # as when it was killed before its end
    (tmp_path / "placement.json").unlink()
    ours = bytes_of(place(tmp_path, rel_tol=0.7).directory)
    assert ours == bytes_of(place(tmp_path / "apart", rel_tol=0.7).directory) | {
        name: table for name, table in ours.items() if name.startswith("apart")
    }


@pytest.mark.parametrize("kind", WORK)
def test_what_a_killed_process_left_goes(kind, tmp_path):
    for name in (".cells.parquet.1", ".goodput.parquet.99", ".placement.json.7", ".probe.5"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "unfinished.json").write_text("{")
    keep = tmp_path / ".mine.parquet.1"
    keep.write_bytes(b"of the user")
    WORK[kind](tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [keep.name]
    assert not (tmp_path / "unfinished.json").exists()


def test_a_link_is_not_followed(tmp_path):
    other, here = tmp_path / "other", tmp_path / "here"
    other.mkdir()
    here.mkdir()
    (other / "kept").write_text("kept")
    (here / "unfinished.json").symlink_to(other / "kept")
    with pytest.raises(ConfigError, match=r"unfinished\.json: cannot be written: "):
        search(here)
    assert (other / "kept").read_text() == "kept"


def test_readers_say_that_something_newer_has_not_ended(tmp_path, capsys):
    run(tmp_path)
    search(tmp_path)
    capsys.readouterr()
    assert main(["show", str(tmp_path)]) == 0
    assert "Warning" not in capsys.readouterr().err
    hold = Hold(tmp_path, "run")
    for command in (["show", str(tmp_path)], ["export", str(tmp_path), "--out", str(tmp_path / "x.csv")]):
        assert main(command) == 0
        assert "Warning: " in (err := capsys.readouterr().err)
        assert f"{tmp_path}: a run here has not ended (process {os.getpid()} on " in err
    hold.close()
    with (tmp_path / "journal.jsonl").open("ab") as journal:  # killed, and the machine started anew
        journal.write(b"{}\n")
    assert main(["show", str(tmp_path)]) == 0
    assert "the last run here did not end, and is newer than this table" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "goodput", "placement"])
def test_a_bad_directory_is_noticed_first(command, tmp_path, capsys):
    written(tmp_path, "placement" if command == "placement" else "run")
    (tmp_path / "file").write_text("")
    assert main([command, str(tmp_path / "one.toml"), "--out", str(tmp_path / "file")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "is not a directory" in err


# --------------------------------------------------------------------------------------------------------------- kills

# At the n-th of these calls the process is killed, before or after it.
KILLED = """
import os, signal, sys
n, after = int(sys.argv[1]), sys.argv[2] == "after"
seen = 0
def killing(function):
    def call(*args, **kwargs):
        global seen
        seen += 1
        if seen == n and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        this = seen
        try:
            return function(*args, **kwargs)
        finally:
            if this == n:
                os.kill(os.getpid(), signal.SIGKILL)
    return call
for name in ("replace", "unlink", "fsync", "rmdir", "mkdir", "ftruncate"):
    setattr(os, name, killing(getattr(os, name)))
from servesweep.commands.main import command_line as main
code = main(sys.argv[3:])
print(seen, file=sys.stderr)
sys.exit(code)
"""
SEARCHED = ["--lo", "1", "--hi", "4", "--quiet", "--out", "out"]
COMMANDS = {
    "run": ["run", "one.toml", "--requests", "all", "--quiet", "--workers", "1", "--out", "out"],
    "search": [
        "goodput",
        "one.toml",
        "--iters",
        "2",
        "--lo",
        "1",
        "--hi",
        "4",
        "--quiet",
        "--workers",
        "1",
        "--out",
        "out",
    ],
    "placement": ["placement", "one.toml", *SEARCHED, "--rel-tol", "0.5", "--workers", "1"],
}
KILLS = int(os.environ.get("SERVESWEEP_FUZZ") or 2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each command leaves, and how many file operations it takes."""
    found = {}
    for kind in COMMANDS:
        folder = written(tmp_path_factory.mktemp(kind), kind)
        begun = time.perf_counter()
        done = start(folder, kind, 0, "after", stderr=subprocess.PIPE)
        _, err = done.communicate()
        assert done.returncode == 0, err
        found[kind] = kept(folder), int(err.splitlines()[-1]), time.perf_counter() - begun
    return found


def written(folder, kind):
    from servesweep.experiment.toml_values import format_toml

    (folder / "one.toml").write_text(format_toml(PLACED if kind == "placement" else EXPERIMENT))
    return folder


def start(folder, kind, at, when, **options):
    words = [sys.executable, "-c", KILLED, str(at), when, *COMMANDS[kind]]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, text=True, **options)


def kept(folder):
    """Tables, less the times that a run took; and the names of all that is there."""
    tables = {name: table for name, table in bytes_of(folder / "out").items() if name != "timings.parquet"}
    return tables, sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_recovers(folder, kind, undisturbed, killed):
    again = start(folder, kind, 0, "after", stderr=subprocess.PIPE)
    _, err = again.communicate()
    assert again.returncode == 0, err
    tables, names = kept(folder)
    assert (tables, names) == undisturbed[kind][0]
    for pid in (killed.pid, again.pid):
        assert not list(Path("/dev/shm").glob(f"joblib_*_{pid}_*"))


@pytest.mark.process
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_file_operation(kind, number, tmp_path, undisturbed):
    operations = undisturbed[kind][1]
    at = 1 + number * (operations - 1) // max(KILLS - 1, 1)
    process = start(written(tmp_path, kind), kind, at, ("before", "after")[number % 2])
    assert process.wait() == -signal.SIGKILL
    assert_recovers(tmp_path, kind, undisturbed, process)


@pytest.mark.process
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_some_moment(kind, number, tmp_path, undisturbed):
    process = start(written(tmp_path, kind), kind, 0, "after")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(undisturbed[kind][2] * (number + 0.5) / KILLS)
    process.kill()
    process.wait()
    assert_recovers(tmp_path, kind, undisturbed, process)
