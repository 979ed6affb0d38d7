"""stdout and stderr that are closed, full, or not read any more: results are there, or the exit code says that not."""

import json
import os
import subprocess
import sys

import pytest
import servesweep.runner.execution as execution
import servesweep.runner.tasks as tasks
from joblib.externals.loky import get_reusable_executor
from servesweep import streams
from servesweep.commands.main import command_line
from servesweep.runner.runner import run_grid
from servesweep.runner.tasks import Task
from test_commands import SMALL

RUN = ["run", "small.toml", "--workers", "1", "--max-batch-cells", "4", "--out", "out"]
PARALLEL = ["run", "small.toml", "--workers", "2", "--out", "out"]
GOODPUT = ["goodput", "small.toml", "--workers", "1", "--iters", "2", "--out", "out"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def ended(command, **streams):
    """The command with streams that are "closed", "full", "left" by their reader, or read by this test."""
    ours = []

    def stream(name):
        how = streams.get(name)
        if how == "full":
            ours.append(os.open("/dev/full", os.O_WRONLY))
        elif how == "left":
            read, write = os.pipe()
            os.close(read)
            ours.append(write)
        else:
            return subprocess.PIPE
        return ours[-1]

    numbers = {"stdin": 0, "stdout": 1, "stderr": 2}
    closed = [numbers[name] for name, how in streams.items() if how == "closed"]
    done = subprocess.run(
        [sys.executable, "-m", "servesweep", *command],
        stdout=stream("stdout"),
        stderr=stream("stderr"),
        preexec_fn=lambda: [os.close(number) for number in closed],
        text=True,
        check=False,
    )
    for number in ours:
        os.close(number)
    return done


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
HOW = ["closed", pytest.param("full", marks=needs_full), "left"]


@pytest.mark.process
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("command", [RUN, PARALLEL, GOODPUT], ids=["run", "workers", "goodput"])
def test_stderr_stops_nothing(folder, command, how):
    done = ended([*command, "--json"], stderr=how)
    assert done.returncode == 0
    assert json.loads(done.stdout)["cells"] in (24, 6)
    assert (folder / "out" / ("goodput.parquet" if command is GOODPUT else "cells.parquet")).is_file()
    assert ended(["run", "nowhere.toml"], stderr=how).returncode == 2


@pytest.mark.process
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("command", [RUN, GOODPUT], ids=["run", "goodput"])
def test_stdout_is_missed_only_where_somebody_wants_it(folder, command, how):
    done = ended(command, stdout=how)
    assert done.returncode == (1 if how == "full" else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    if how == "full":
        assert done.stderr.splitlines()[-1] == (
            "stdout: cannot be written: No space left on device; the tables are in out"
        )
    else:
        assert done.stderr.splitlines()[-1].endswith("tables in out")
    assert (folder / "out" / ("goodput.parquet" if command is GOODPUT else "cells.parquet")).is_file()


@pytest.mark.process
@pytest.mark.parametrize("how", HOW)
def test_commands_that_only_print(folder, how):
    run_grid("small.toml", out="out", workers=1, progress=False)
    for command in (["show", "out"], ["export", "out", "--format", "parquet"], ["--help"], ["--version"]):
        done = ended(command, stdout=how)
        full = "stdout: cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == ((1, full) if how == "full" else (0, "")), command


@pytest.mark.process
def test_with_all_streams_closed_a_run_with_workers_writes_its_tables(folder):
    done = ended(PARALLEL, stdin="closed", stdout="closed", stderr="closed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((folder / "out" / "run.json").read_text())["counts"]["ok"] == 24


def test_cells_that_failed_are_the_exit_code_when_the_reader_has_gone(monkeypatch, capsys):
    def gone(*_):
        raise BrokenPipeError

    def fail(systems, **options):
        raise RuntimeError("no")

    monkeypatch.setattr(tasks, "run_systems", fail)
    monkeypatch.setattr(sys.stdout, "write", gone)
    assert command_line(RUN) == 3
    assert "24 failed: RuntimeError: no" in capsys.readouterr().err


def test_a_process_without_streams(monkeypatch, folder):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert command_line(RUN) == 0
    assert command_line([*RUN, "--json"]) == 0
    assert command_line(["export", "out"]) == 0
    assert command_line(["show", "out", "--sort", "attainment"]) == 0
    assert run_grid("small.toml", out="other", workers=1, progress=True).counts["ok"] == 24


@pytest.mark.process
@pytest.mark.parametrize("stream", [None, "full"])
def test_a_process_whose_stderr_cannot_be_written_starts_workers(monkeypatch, stream):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

        def flush(self):
            self.write("")

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", stream and Full())
    assert run_grid("small.toml", out="out", workers=2).counts["ok"] == 24


def test_json_is_alone_on_stdout_whatever_libraries_print(monkeypatch, capsys):
    run_systems = tasks.run_systems

    def talk(systems, **options):
        print("a library says something")
        return run_systems(systems, **options)

    monkeypatch.setattr(tasks, "run_systems", talk)
    for command in (RUN, GOODPUT):
        assert command_line([*command, "--json", "--quiet"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["best"]
        assert err.startswith("a library says something\n")


class TalkingTask(Task):
    """A task that prints where it runs."""

    def run(self):
        print("a library says something", flush=True)
        return super().run()


@pytest.mark.process
def test_what_workers_print_goes_to_stderr(monkeypatch, capfd):
    get_reusable_executor().shutdown(wait=True, kill_workers=True)  # workers of other tests have other streams
    make_task = execution.make_task
    monkeypatch.setattr(execution, "make_task", lambda *args, **kept: TalkingTask(**vars(make_task(*args, **kept))))
    run_grid("small.toml", out="out", workers=2, progress=False)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("a library says something\n")


def test_a_bar_takes_nothing_from_stdout_that_is_no_terminal(monkeypatch, capsys):
    from servesweep.runner import progress

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress(10, 0, 60.0) as shown:
        print("a row")
        shown.advance(10, 0, 0.0)
    out, err = capsys.readouterr()
    assert out == "a row\n"
    assert "10/10 cells" in err


def test_a_bar_whose_terminal_has_gone_stops_nothing(monkeypatch):
    from servesweep.runner import progress

    class Gone:
        encoding = "utf-8"

        def isatty(self):
            return True

        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            self.write("")

    monkeypatch.setattr(sys, "stderr", Gone())
    with progress.Progress(10, 0, 60.0) as shown:
        shown.advance(10, 0, 0.0)
    streams.say("nothing")
