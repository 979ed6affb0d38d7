"""A canary: the insides of joblib and its loky that stopping and killed workers rest on are what they were."""

import contextlib
import os
import signal
import time

import joblib
import pytest
from joblib import Parallel, delayed, parallel_config
from servesweep.runner.loky_insides import (
    a_worker_died,
    close_own_end_of_outcomes,
    exit_codes,
    is_cut_off,
    running_workers,
)

pytestmark = pytest.mark.process


def changed(what):
    pytest.fail(
        f"joblib {joblib.__version__} is not inside what it was: {what}. Mend sweep/runner/loky_insides.py, or "
        "cap joblib below this version in pyproject.toml: otherwise a run may hang on Ctrl-C or a killed worker.",
        pytrace=False,
    )


@pytest.fixture
def busy():
    """A `Parallel` as `processes.Processes` makes it, with two workers, one of them at work for long."""
    with parallel_config("loky", inner_max_num_threads=1, initializer=os.getpid, initargs=()):
        parallel = Parallel(n_jobs=2, return_as="generator_unordered", batch_size=1)
        outcomes = parallel(delayed(time.sleep)(seconds) for seconds in (0, 3600))
    next(outcomes)
    yield parallel, outcomes
    for process in running_workers():
        os.kill(process.pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        list(outcomes)


def test_workers_are_found_by_name_and_through_the_executor(busy):
    named = {process.pid for process in running_workers()}
    if len(named) != 2:
        changed(f"its two workers are not found by their names: {len(named)} are")
    try:
        held = {process.pid for process in busy[0]._backend._workers._processes.values()}
        died = a_worker_died(busy[0])
    except AttributeError as error:
        changed(f"its workers are held elsewhere ({error})")
    if held != named or died:
        changed("what it holds as its workers are not the processes of that name, or seem dead")


def test_the_exit_code_of_a_killed_worker_is_told(busy):
    workers = running_workers()
    os.kill(workers[0].pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r"\w") as ended:  # TerminatedWorkerError, which is not public
        list(busy[1])
    if workers[0].exitcode != -signal.SIGKILL:
        changed(f"its process has the exit code {workers[0].exitcode} after SIGKILL")
    if exit_codes(str(ended.value)) != "SIGKILL(-9)":
        changed(f"its error tells no exit code, but: {ended.value}")


def test_the_own_end_of_the_pipe_of_outcomes_can_be_closed(busy):
    try:
        end = busy[0]._backend._workers._result_queue._writer
        close_own_end_of_outcomes(busy[0])
    except AttributeError as error:
        changed(f"the pipe of outcomes is elsewhere ({error})")
    assert end.closed
    assert not end.readable


class Unreadable:
    """An outcome that pickles and cannot be read."""

    def __reduce__(self):
        return int, ("no number",)


def test_an_outcome_that_cannot_be_read_is_told_from_other_ends():
    with parallel_config("loky", inner_max_num_threads=1), pytest.raises(Exception, match=r"\w") as ended:
        list(Parallel(n_jobs=2, return_as="generator_unordered")(delayed(Unreadable)() for _ in range(2)))
    if not is_cut_off(str(ended.value)):
        changed(f"its error does not say that an outcome could not be read, but: {ended.value}")
