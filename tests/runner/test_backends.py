"""Worker processes that end while they hand over an outcome of many megabytes. Real processes, real signals."""

import os
import subprocess
import sys

import pytest
from patience import HANGS_S

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, threading, time
from dataclasses import dataclass
from servesweep.runner.backends import iter_outcomes
from servesweep.runner.processes import Processes


@dataclass
class Large:
    megabytes: int
    dies_after_s: float = 0.0

    def run(self):
        if self.dies_after_s:
            threading.Timer(self.dies_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return bytes(self.megabytes << 20)

    def halves(self):
        return []

    def failed(self, error):
        return error


if __name__ == "__main__":
    what, seconds = sys.argv[1], float(sys.argv[2])
    if what == "close":
        outcomes = iter_outcomes(iter([Large(1), *[Large(400)] * 6]), Processes(2))
        next(outcomes)
        time.sleep(seconds)
        outcomes.close()
        print("closed")
    else:
        tasks = iter([Large(1), Large(400, seconds), Large(2)])
        for outcome in iter_outcomes(tasks, Processes(2)):
            print(outcome if isinstance(outcome, str) else len(outcome) >> 20)
"""


@pytest.fixture
def run(tmp_path):
    script = tmp_path / "large.py"
    script.write_text(SCRIPT)

    def run(what, seconds):
        environment = dict(os.environ)
        done = subprocess.run(
            [sys.executable, script, what, str(seconds)],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("seconds", [0.3, 0.9, 1.3, 1.6, 1.9])
def test_stopping_does_not_wait_for_the_rest_of_an_outcome(run, seconds):
    assert run("close", seconds) == "closed"  # it would hang


@pytest.mark.parametrize("seconds", [0.3, 0.7])
def test_a_worker_killed_in_the_middle_of_an_outcome_costs_that_task_alone(run, seconds):
    *others, last = sorted(run("kill", seconds).splitlines())
    assert others == ["1", "2"]
    assert last.startswith("WorkerDied: the worker process ended ") or last == "400"  # quicker than the signal
