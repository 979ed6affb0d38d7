"""Where tasks run: in this process, in processes of this machine by joblib, or on a cluster (`clusters`).

`iter_outcomes` is what a sweep needs of all of them: outcomes as they end, and none lost when a worker dies. joblib
ends the whole call then, whoever is guilty. So the tasks that had no outcome run again: together, for it may have been
bad luck; then in halves, until the one that kills its worker is alone; then its own halves.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Protocol, Self, TypeVar

from ..streams import workable
from .loky_insides import a_worker_died, close_own_end_of_outcomes, exit_codes, is_cut_off, running_workers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WATCH_S = 0.5  # between two looks of a worker at its parent, and of the parent at its workers
_NOTICE_S = 5.0  # in which joblib notices the death of a worker, if it does
_HOPELESS = 5  # tasks that each end their worker, alone, before anything has an outcome: it is not the tasks


class Work(Protocol[T_co]):
    """What a worker can be given. It must pickle, and so must its outcome."""

    def run(self) -> T_co:
        """The outcome; it should hold errors rather than raise them."""

    def halves(self) -> Sequence[Self]:
        """The same work in two parts; none when it cannot be divided."""

    def failed(self, error: str) -> T_co:
        """The outcome when this work kills its worker."""


class WorkerDied(Exception):
    """A worker ended in the middle of a task, or could not hand its outcome over."""


class BackendLost(RuntimeError):
    """The backend cannot go on; nothing is known to be wrong with the tasks."""


class Feed(Iterator[tuple[int, Work[T]]]):
    """Tasks on their way to the workers, numbered. `open` holds those that are there and have no outcome yet."""

    def __init__(self, tasks: Iterator[Work[T]]) -> None:
        self._tasks = tasks
        self._count = 0
        self._stopped = False
        self._lock = threading.Lock()  # joblib takes tasks in threads of its own
        self.open: dict[int, Work[T]] = {}
        self.error: Exception | None = None  # raised by the tasks' own iterator

    def __next__(self) -> tuple[int, Work[T]]:
        with self._lock:
            if self._stopped:
                raise StopIteration
            try:
                task = next(self._tasks)
            except StopIteration:
                raise
            except Exception as error:
                self.error = error
                raise
            self._count += 1
            self.open[self._count] = task
            return self._count, task

    def stop(self) -> list[Work[T]]:
        """Give out no more tasks. Returns those without an outcome."""
        with self._lock:
            self._stopped = True
            return list(self.open.values())


class Backend(Protocol):
    """Something that runs tasks. `workers`: how many it runs at once."""

    @property
    def workers(self) -> int: ...

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        """Number and outcome of each task of a feed, as they end. Closing it stops the workers.

        WorkerDied, BackendLost
        """

    def close(self) -> None:
        """Let go of a cluster; the results so far stay."""


def iter_outcomes(tasks: Iterable[Work[T]], backend: Backend) -> Generator[T, None, None]:
    """Outcomes of tasks as they end, in any order. Closing it stops the workers.

    A task that kills its worker is halved until its guilty parts are alone; for them it gives `failed`.
    BackendLost when the backend cannot go on.
    """
    stream = iter(tasks)
    suspects: list[list[Work[T]]] = []  # groups of tasks that have lost a worker
    any_ended, killers = False, 0
    while True:
        group = suspects.pop() if suspects else None
        source = stream if group is None else iter(group)
        feed = Feed(source)
        try:
            with closing(backend.results(feed)) as results:
                for number, outcome in results:
                    del feed.open[number]
                    any_ended = True
                    yield outcome
            if group is None:
                return
            continue
        except WorkerDied as death:
            left, reason = feed.stop(), str(death)
            if feed.error is not None:
                raise feed.error from None
        if group is None:
            suspects += [left] if left else []
            continue
        left += source
        if len(left) > 1:
            suspects += [left[len(left) // 2 :], left[: len(left) // 2]]
        elif parts := [[part] for task in left for part in task.halves()]:
            suspects += reversed(parts)
        else:
            yield from (task.failed(reason) for task in left)
            killers += 1
            if killers == _HOPELESS and not any_ended:
                raise BackendLost(f"{killers} tasks in a row ended their worker, and none has an outcome: {reason}")


class InProcess:
    """One worker: this process. A task that kills it ends the run."""

    workers = 1

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        for number, task in feed:
            yield number, task.run()

    def close(self) -> None:
        pass


class Processes:
    """Worker processes on this machine, by joblib's loky. They end with this process, however it ends."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        from joblib import Parallel, delayed, parallel_config

        watch = {"initializer": end_with, "initargs": (os.getpid(),)}
        with parallel_config("loky", inner_max_num_threads=1, **watch):
            parallel = Parallel(n_jobs=self.workers, return_as="generator_unordered", batch_size=1)
            outcomes, over = None, threading.Event()
            try:
                with interrupts(), _interrupts_blocked(), workable():
                    outcomes = parallel(delayed(run_numbered)(number, task) for number, task in feed)
                threading.Thread(target=_watch_workers, args=(parallel, over), daemon=True).start()
                while True:
                    with interrupts(lambda: _kill_workers(parallel)):
                        result = next(outcomes, None)
                    if result is None:
                        return
                    yield result
            except Exception as error:
                raise WorkerDied(worker_reason(error)) from None
            finally:
                over.set()
                running = bool(feed.stop())
                if outcomes is not None:
                    with suppress(Exception), warnings.catch_warnings():  # stopping is no part of the result
                        warnings.simplefilter("ignore")
                        while running and _kill_workers(parallel) and next(outcomes, None) is not None:
                            pass
                        outcomes.close()

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


def _watch_workers(parallel: Any, over: threading.Event) -> None:
    """Kill the others when a worker has died and that is not noticed, as in the middle of a large outcome."""
    while not over.wait(_WATCH_S):
        with suppress(AttributeError):
            if a_worker_died(parallel) and not over.wait(_NOTICE_S):
                _kill_workers(parallel)
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


def run_numbered(number: int, task: Work[T]) -> tuple[int, T]:
    """What a worker calls."""
    return number, task.run()


def worker_reason(error: BaseException) -> str:
    """What is known of a worker's end, in a line."""
    codes = exit_codes(str(error))
    if codes is not None:
        return f"WorkerDied: the worker process ended in the middle, with exit code {codes}"
    if is_cut_off(str(error)):  # outcomes pickle, but one of them was cut off
        return "WorkerDied: the worker process ended while it handed over its outcome"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


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
