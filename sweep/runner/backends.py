"""Where tasks run: in this process, in processes of this machine (`processes`), or on a cluster (`clusters`).

`iter_outcomes` is what a sweep needs of all of them: outcomes as they end, and none lost when a worker dies. A backend
then gives up all that runs, whoever is guilty. So the tasks that had no outcome run again: together, for it may have
been bad luck; then in halves, until the one that kills its worker is alone; then its own halves.

No task is blamed when workers cannot start, as at the limit of processes or without shared memory: where nothing has
shown that they can, a worker must say hello first, and when none does, the backend is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from .loky_insides import exit_codes, is_cut_off

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_HOPELESS = 5  # tasks that each end their worker, alone, before anything has an outcome: it is not the tasks


class Work(Protocol[T_co]):
    """What a worker can be given. It must pickle, and so must its outcome."""

    def run(self) -> T_co:
        """The outcome; it should hold errors rather than raise them."""

    def halves(self) -> Sequence[Self]:
        """The same work in two parts; none when it cannot be divided."""

    def failed(self, error: str) -> T_co:
        """The outcome when this work kills its worker."""


@dataclass(frozen=True)
class Hello:
    """Work for a worker that has started, and that can read what tasks of this kind are."""

    kind: type

    def run(self) -> None:
        return None

    def halves(self) -> tuple[Self, ...]:
        return ()

    def failed(self, error: str) -> None:
        return None


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

    A task that kills its worker is halved until its guilty parts are alone; for them it gives `failed`, but only after
    another outcome or in the end. BackendLost when the backend cannot go on, as when no worker can start.
    """
    stream = iter(tasks)
    suspects: list[list[Work[T]]] = []  # groups of tasks that have lost a worker
    blamed: list[T] = []  # outcomes of those that kill their workers, held back
    starts = any_ended = False  # whether a worker is known to have started, and a task to have ended
    while True:
        group = suspects.pop() if suspects else None
        source = stream if group is None else iter(group)
        feed = Feed(source)
        try:
            with closing(backend.results(feed)) as results:
                for number, outcome in results:
                    del feed.open[number]
                    starts = any_ended = True
                    yield outcome
                    while blamed:
                        yield blamed.pop(0)
            if group is None:
                yield from blamed
                return
            continue
        except WorkerDied as death:
            left, reason = feed.stop(), str(death)
            if feed.error is not None:
                raise feed.error from None
        left += source if group is not None else ()
        parts = [[part] for task in left for part in task.halves()] if len(left) == 1 else []
        is_guilty = group is not None and len(left) == 1 and not parts
        if is_guilty or not (starts and left):
            _hear_hello(backend, left, None if starts else reason)
            starts = True
        if group is None:
            suspects += [left] if left else []
        elif len(left) > 1:
            suspects += [left[len(left) // 2 :], left[: len(left) // 2]]
        elif parts:
            suspects += reversed(parts)
        else:
            blamed += [task.failed(reason) for task in left]
            if any_ended:
                yield from blamed
                blamed.clear()
            elif len(blamed) == _HOPELESS:
                raise BackendLost(f"{_HOPELESS} tasks in a row ended their worker, and none has an outcome: {reason}")


def _hear_hello(backend: Backend, left: Sequence[Work[Any]], reason: str | None) -> None:
    """See that a worker starts; BackendLost when none does, with the reason that is given, or that of this one."""
    feed: Feed[None] = Feed(iter([Hello(type(left[0]) if left else type(None))]))
    heard = False
    try:
        with closing(backend.results(feed)) as results:
            for number, _ in results:
                del feed.open[number]
                heard = True
    except WorkerDied as death:
        reason = reason or str(death)
    if not heard:
        raise BackendLost(f"no worker can start: {reason}")


class InProcess:
    """One worker: this process. A task that kills it ends the run."""

    workers = 1

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        for number, task in feed:
            yield number, task.run()

    def close(self) -> None:
        pass


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
    # What joblib could not clean up after an error is no reason.
    while isinstance(error.__context__, Exception) and not error.__suppress_context__:
        error = error.__context__
    return short_reason(error)


def short_reason(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
