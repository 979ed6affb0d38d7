"""What this package knows of the insides of joblib and of its loky, in one place.

joblib has no public way to end workers in the middle of their tasks, to see that one has died in the middle of a large
outcome, or to learn how one ended. What stands here is neither documented nor promised: pyproject.toml caps the version
of joblib, and tests/runner/test_loky_insides.py says when another version has changed it.
"""

from __future__ import annotations

import multiprocessing
import re
from multiprocessing.process import BaseProcess
from typing import Any

_WORKER_NAME = "LokyProcess"  # and a number
_EXIT_CODES = re.compile(r"exit codes of the workers are \{(.*?)\}")
_CUT_OFF = "un-serialize"


def running_workers() -> list[BaseProcess]:
    """The workers that this process has started and that run."""
    return [process for process in multiprocessing.active_children() if process.name.startswith(_WORKER_NAME)]


def a_worker_died(parallel: Any) -> bool:
    """Whether a worker of a `joblib.Parallel` that gives out tasks has ended by an error or a signal.

    Raises
    ------
    AttributeError
        When its workers have been let go already.
    """
    workers = list((parallel._backend._workers._processes or {}).values())
    return any(process.exitcode not in (None, 0) for process in workers)


def is_managed(parallel: Any) -> bool:
    """Whether the thread runs that hands the tasks of a `joblib.Parallel` to its workers, or has not been needed yet.

    It ends by an error where no more threads or files can be had; the outcomes would be waited for ever.

    Raises
    ------
    AttributeError
        When the workers have been let go already.
    """
    thread = parallel._backend._workers._executor_manager_thread
    return thread is None or thread.is_alive()


def give_up(parallel: Any) -> None:
    """Have a `joblib.Parallel` that is not managed any more stop waiting.

    Raises
    ------
    AttributeError
        When its workers have been let go already.
    """
    parallel._backend._workers._flags.flag_as_broken(RuntimeError("not managed"))
    parallel._exception = parallel._aborting = True


def forget_unmanaged_workers() -> None:
    """Have the next `joblib.Parallel` begin with new workers when the thread that hands out tasks has ended, or could
    not start: loky would use the old ones again, or wait for that thread."""
    from joblib.externals.loky import reusable_executor

    executor = reusable_executor._executor
    thread = getattr(executor, "_executor_manager_thread", None)
    if thread is not None and not thread.is_alive():
        executor._executor_manager_thread = reusable_executor._executor = None


def start_trackers() -> None:
    """Start the processes that remove semaphores and folders should this one not come to it, before there are any."""
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as of_loky

    resource_tracker.ensure_running()
    of_loky.ensure_running()


def close_own_end_of_outcomes(parallel: Any) -> None:
    """Close this process's writing end of the pipe of outcomes, so that reading from it ends with the last worker.

    Raises
    ------
    AttributeError
        When its workers have been let go already.
    OSError
        When it is closed already.
    """
    parallel._backend._workers._result_queue._writer.close()


def exit_codes(message: str) -> str | None:
    """How the workers ended, by the message of joblib's error, as in ``SIGKILL(-9)``; None when it does not say."""
    found = _EXIT_CODES.search(message)
    return found[1] if found else None


def is_cut_off(message: str) -> bool:
    """Whether joblib's error says that an outcome could not be read to its end."""
    return _CUT_OFF in message
