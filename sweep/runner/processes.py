"""Worker processes on this machine, by joblib's loky: started, watched, and ended with all they leave behind."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pickle import PicklingError
from typing import Any

from ..streams import workable
from .backends import BackendLost, Feed, T, WorkerDied, run_numbered, short_reason, worker_reason
from .loky_insides import (
    a_worker_died,
    close_own_end_of_outcomes,
    forget_unmanaged_workers,
    give_up,
    is_managed,
    running_workers,
    start_trackers,
)

_WATCH_S = 0.5  # between two looks of a worker at its parent, and of the parent at its workers
_NOTICE_S = 5.0  # in which joblib notices the death of a worker, if it does


class Processes:
    """Worker processes on this machine, by joblib's loky. They end with this process, however it ends."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        from joblib import Parallel, delayed, parallel_config

        parallel, outcomes, watch = None, None, None
        try:
            with interrupts():
                _see_what_workers_need()
            with interrupts(), _interrupts_blocked(), workable():
                begin = {"initializer": end_with, "initargs": (os.getpid(),)}
                with parallel_config("loky", inner_max_num_threads=1, **begin):
                    parallel = Parallel(n_jobs=self.workers, return_as="generator_unordered", batch_size=1)
                    watch = Watch(parallel)
                    watch.start()
                    outcomes = parallel(delayed(run_numbered)(number, task) for number, task in feed)
            while True:
                with interrupts(lambda: _kill_workers(parallel)):
                    result = next(outcomes, None)
                if result is None and watch.has_given_up:
                    raise WorkerDied(f"WorkerDied: {watch.has_given_up}")
                if result is None:
                    return
                yield result
        except WorkerDied:
            raise
        except PicklingError as error:  # tasks pickle, but a large one takes room on a disk on its way
            raise BackendLost(f"tasks cannot be handed to workers: {short_reason(error.__cause__ or error)}") from None
        except Exception as error:
            raise WorkerDied(worker_reason(error)) from None
        finally:
            if watch is not None:
                watch.over.set()
            running = bool(feed.stop())
            with suppress(Exception), warnings.catch_warnings():  # stopping is no part of the result
                warnings.simplefilter("ignore")
                if outcomes is not None:
                    while running and _kill_workers(parallel) and next(outcomes, None) is not None:
                        pass
                    outcomes.close()
                elif parallel is not None:
                    _kill_workers(parallel)

    def close(self) -> None:
        pass


def end_with(parent: int) -> None:
    """Have this worker end soon after its parent has, which may have been killed and could not tell."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    with suppress(OSError):
        os.dup2(2, 1)  # stdout is for results: what a library prints here goes to stderr
    threading.Thread(target=watch, daemon=True).start()


def _kill_workers(parallel: Any) -> int:
    """Kill all workers, and return how many. joblib learns of it as of any other death.

    Its own way takes down what workers need to start, and those that still do would print where they were.
    """
    workers = running_workers()
    for process in workers:
        if process.pid is not None:
            with suppress(OSError):  # it has ended by itself
                os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    # One may have died in the middle of a large outcome. The rest of it is waited for as long as somebody could write
    # it, and this process holds that end of the pipe, too.
    with suppress(AttributeError, OSError):
        close_own_end_of_outcomes(parallel)
    return len(workers)


class Watch(threading.Thread):
    """Ends what would never end by itself: a worker has died in the middle of a large outcome, or the thread has that
    hands out tasks.

    over         to be set when there is nothing more to watch
    has_given_up  why there will be no more outcomes; empty while there may be
    """

    def __init__(self, parallel: Any) -> None:
        super().__init__(daemon=True)
        self._parallel = parallel
        self.over = threading.Event()
        self.has_given_up = ""

    def run(self) -> None:
        while not self.over.wait(_WATCH_S):
            with suppress(AttributeError):
                if not is_managed(self._parallel) and not self.over.wait(_NOTICE_S) and not is_managed(self._parallel):
                    self.has_given_up = "the thread that hands out tasks has ended"
                    _kill_workers(self._parallel)
                    give_up(self._parallel)
                    return
                if a_worker_died(self._parallel) and not self.over.wait(_NOTICE_S):
                    _kill_workers(self._parallel)
                    return


@contextmanager
def interrupts(stop: Callable[[], object] | None = None) -> Iterator[None]:
    """In the block, Ctrl-C calls `stop`, which should make it end; and then is raised, whatever error that led to.

    Without `stop`, Ctrl-C waits for the end of the block.
    """
    ours = threading.current_thread() is threading.main_thread()  # no other is interrupted
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    caught = []

    def interrupt(*_: object) -> None:
        caught.append(True)
        if stop is not None and (not stop() or len(caught) > 1):
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if not caught:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if caught:
        raise KeyboardInterrupt


def _see_what_workers_need() -> None:
    """OSError when something is not there without which joblib says little, leaves things behind, or waits for ever."""
    if not os.path.isfile(sys.executable or ""):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), sys.executable)
    start_trackers()
    try:
        multiprocessing.get_context("spawn").Lock()
    except (ImportError, OSError) as error:
        raise OSError(f"no semaphore can be made, as in /dev/shm: {error}") from None
    forget_unmanaged_workers()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C never comes to processes started in the block: they inherit what is blocked.

    A terminal sends it to the workers too, which would each print where they were.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting this process later would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
