"""Workers that cannot start: the run says why and ends, no cell is blamed, nothing is left, and it can go on."""

import json
import os
import subprocess
import sys

import pytest
import servesweep
from patience import HANGS_S
from servesweep.runner.backends import BackendLost, Hello, WorkerDied, iter_outcomes
from servesweep.runner.runner import run_grid
from small_sweep import digests, kept_cells

# What refuses comes before the command, in a process of its own: the machine's limits cannot be set as root.
FAULTS = {
    "the folder has gone": "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "no process": "_posixsubprocess.fork_exec = refuse(_posixsubprocess.fork_exec, 0, BlockingIOError(11, 'refused'))",
    "no process but one": "_posixsubprocess.fork_exec = refuse(_posixsubprocess.fork_exec, 1, OSError(11, 'refused'))",
    "no process but 3": "_posixsubprocess.fork_exec = refuse(_posixsubprocess.fork_exec, 3, OSError(11, 'refused'))",
    "no thread": "threading.Thread.start = refuse(threading.Thread.start, 0, RuntimeError('refused'))",
    "no thread but one": "threading.Thread.start = refuse(threading.Thread.start, 1, RuntimeError('refused'))",
    "no thread but two": "threading.Thread.start = refuse(threading.Thread.start, 2, RuntimeError('refused'))",
    "no semaphore": "_multiprocessing.SemLock = type('SemLock', (_multiprocessing.SemLock,), "
    "{'__new__': refuse(None, 0, OSError(28, 'refused'))})",
    "no Python": "sys.executable = '/nowhere/python'",
    "workers end at once": "os.environ['PYTHONPATH'] = os.pathsep.join([here, os.environ.get('PYTHONPATH', '')])",
}
SCRIPT = """
import _multiprocessing, _posixsubprocess, os, sys, threading

here = os.getcwd()

def refuse(function, allowed, error):
    left = [allowed]

    def refusing(*arguments, **named):
        if not left[0]:
            raise error
        left[0] -= 1
        return function(*arguments, **named)

    return refusing

if __name__ == "__main__":
    print(os.getpid(), flush=True)
    exec(sys.argv[1])
    from servesweep.commands.main import command_line
    sys.exit(command_line(sys.argv[2:]))
"""
ENDS_WORKERS = "import os, sys\nif any('popen_loky' in word for word in sys.orig_argv):\n    os._exit(7)\n"
SMALLER = {"seed": 0, "chip": "h100-sxm", "n_requests": 20}


@pytest.fixture
def refused(folder):
    """A function that runs a command where workers cannot start: its exit code, stderr and the process."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "sitecustomize.py").write_text(ENDS_WORKERS)
    config = f"{folder}/small.toml"
    settings = [f"--set={key}={json.dumps(value)}" for key, value in SMALLER.items()]

    def run(fault, command, *options):
        out = [command, config, "--workers", "2", "--out", f"{folder}/out", *settings, *options]
        done = subprocess.run(
            [sys.executable, "script.py", FAULTS[fault], *out],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
        return done.returncode, done.stderr, done.stdout.partition("\n")[0]

    return run


def left_behind(pid):
    """What a process has left in shared memory."""
    shared = "/dev/shm"
    return [name for name in os.listdir(shared) if f"-{pid}-" in name or f"_{pid}_" in name] if pid else []


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_says_why_and_blames_no_cell(folder, refused, fault):
    code, err, pid = refused(fault, "run", "--max-batch-cells", "2")
    assert code == 1, err
    *_, why, go_on = err.splitlines()
    assert why.startswith("stopped: no worker can start: "), err
    assert why.endswith("; 0 of 72 cells ended; nothing was written")
    assert go_on.startswith("go on with: servesweep run ")
    assert go_on.endswith(" --workers 1")
    assert kept_cells(folder / "out") == set()
    assert left_behind(pid) == []
    assert not (folder / "out" / "cells.parquet").exists()
    run_grid("small.toml", out="out", workers=1, progress=False, settings=SMALLER)
    run_grid("small.toml", out="undisturbed", workers=1, progress=False, settings=SMALLER)
    assert digests(folder / "out") == digests(folder / "undisturbed")


@pytest.mark.process
@pytest.mark.parametrize("fault", ["no process", "workers end at once"])
def test_a_search_says_why_and_blames_no_configuration(folder, refused, fault):
    code, err, pid = refused(fault, "goodput", "--iters", "3", "--slo", "ttft:60")
    assert code == 1, err
    *_, why, go_on = err.splitlines()
    assert why.startswith("stopped: no worker can start: "), err
    assert why.endswith("; nothing was written")
    assert go_on.endswith(" --workers 1")
    assert left_behind(pid) == []
    with pytest.raises(ValueError, match="is not a finished search"):
        servesweep.load(folder / "out", "goodput")


# ----------------------------------------------------------------------------------------------- without real workers


class Part:
    """Work that ends its worker when one of its numbers is guilty."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def run(self):
        return self.numbers

    def halves(self):
        count = len(self.numbers)
        return [Part(*self.numbers[: count // 2]), Part(*self.numbers[count // 2 :])] if count > 1 else []

    def failed(self, error):
        return self.numbers, error


class Scripted:
    """A backend whose workers die of the guilty, and start as long as they are allowed to."""

    workers = 2

    def __init__(self, guilty=(), starts=lambda backend: True):
        self.guilty, self.starts = set(guilty), starts
        self.ended = self.calls = 0

    def results(self, feed):
        self.calls += 1
        assert self.calls < 1000, "it goes on for ever"
        if not self.starts(self):
            raise WorkerDied("OSError: refused")
        for number, task in feed:
            if isinstance(task, Hello):
                yield number, None
            elif self.guilty & set(task.numbers):
                raise WorkerDied("WorkerDied: killed")
            else:
                self.ended += 1
                yield number, task.run()

    def close(self):
        pass


def parts(count, size=2):
    return [Part(*range(begin, begin + size)) for begin in range(0, count, size)]


def all_outcomes(tasks, backend):
    """The outcomes until the backend was lost, and the error that says so."""
    found = []
    try:
        for outcome in iter_outcomes(tasks, backend):
            found.append(outcome)
    except BackendLost as error:
        return found, error
    return found, None


def test_the_guilty_alone_are_blamed():
    outcomes = list(iter_outcomes(parts(12), Scripted(guilty=[5])))
    assert ((5,), "WorkerDied: killed") in outcomes
    fine = sorted(number for outcome in outcomes if outcome != ((5,), "WorkerDied: killed") for number in outcome)
    assert fine == [number for number in range(12) if number != 5]


def test_nothing_is_blamed_before_something_has_an_outcome():
    outcomes = list(iter_outcomes(parts(8), Scripted(guilty=[0, 1, 2])))
    blamed = [outcome for outcome in outcomes if outcome[-1] == "WorkerDied: killed"]
    assert [outcome[0] for outcome in blamed] == [(0,), (1,), (2,)]
    assert outcomes.index(blamed[0]) > 0


def test_workers_that_never_start_are_no_fault_of_the_tasks():
    backend = Scripted(starts=lambda backend: False)
    with pytest.raises(BackendLost, match="no worker can start: OSError: refused"):
        list(iter_outcomes(parts(8), backend))
    assert backend.calls == 2


def test_workers_that_cannot_start_any_more_are_no_fault_of_the_tasks():
    backend = Scripted(guilty=[4], starts=lambda backend: backend.ended < 2)
    found, error = all_outcomes(parts(8), backend)
    assert found == [(0, 1), (2, 3)]
    assert str(error) == "no worker can start: OSError: refused"


def test_one_task_alone_can_be_guilty():
    assert list(iter_outcomes([Part(0)], Scripted(guilty=[0]))) == [((0,), "WorkerDied: killed")]


def test_five_that_are_all_guilty_are_more_than_chance():
    found, error = all_outcomes(parts(20), Scripted(guilty=range(20)))
    assert found == []
    assert str(error).startswith("5 tasks in a row ended their worker, and none has an outcome: ")
