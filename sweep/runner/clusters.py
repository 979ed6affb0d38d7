"""Workers on many machines: those of a Dask or a Ray cluster that is running already.

A task travels to a worker as a pickle with its requests, some 24 bytes each, and its outcome comes back; workers need
servesweep, in this very version, and neither the experiment's files nor the directory of the run.

Both are used by their own interfaces: through joblib's backend for Dask, a run waits for ever once a task has killed
its worker (nobody is told), and through its backend for Ray, outcomes come in lists only.
"""

from __future__ import annotations

import importlib
import logging
import queue
import time
from collections.abc import Generator
from importlib import metadata
from itertools import islice
from typing import Any

import numpy as np

from ..experiment.plan import RULES_VERSION
from ..experiment.tables import ConfigError
from .backends import Backend, BackendLost, Feed, T, WorkerDied, run_numbered, worker_reason

CONNECT_S = 5.0  # to wait for a scheduler
WORKER_S = 10.0  # for a first worker
LOST_S = 30.0  # without any worker, until a run gives up
_WAITING = 2  # tasks sent for each worker: the next is there when one ends


def open_cluster(backend: str, scheduler: str | None) -> Backend:
    """The workers of a cluster; ConfigError when they cannot be used."""
    return Dask(str(scheduler)) if backend == "dask" else Ray(scheduler)


class Dask:
    """The workers of a Dask scheduler."""

    def __init__(self, address: str) -> None:
        distributed = _import("distributed", "dask")
        # What it says while it reconnects, with tracebacks, is said here in a sentence.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._address = address
        try:
            self._client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError([f"--scheduler {address}: no Dask scheduler answers: {reason}"]) from None
        try:
            try:
                self._client.wait_for_workers(1, timeout=WORKER_S)
            except TimeoutError:
                raise ConfigError([f"--scheduler {address}: has no worker: start some with: dask worker ..."]) from None
            self._check_versions()
            self.workers = sum(self._client.ncores().values())
        except BaseException:
            self.close()
            raise

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        ended: queue.Queue[Any] = queue.Queue()
        sent: set[Any] = set()
        died: str | None = None
        seen = time.monotonic()
        try:
            while True:
                while died is None and len(sent) < _WAITING * self.workers and (item := next(feed, None)):
                    future = self._client.submit(run_numbered, *item, pure=False)
                    sent.add(future)
                    future.add_done_callback(ended.put)
                if not sent:
                    break
                try:
                    future = ended.get(timeout=0.5)
                except queue.Empty:
                    seen = time.monotonic() if self._has_workers() else seen
                    if time.monotonic() - seen > LOST_S:
                        raise BackendLost(f"the Dask scheduler at {self._address} has no worker left") from None
                    continue
                sent.discard(future)
                if future.status == "finished":
                    try:
                        result = future.result()
                    except Exception as error:  # it has ended, but cannot be had
                        raise BackendLost(f"the Dask scheduler at {self._address} is gone") from error
                    yield result
                elif future.status == "error":
                    died = worker_reason(future.exception())  # what the others do still counts
                else:
                    raise BackendLost(f"the Dask scheduler at {self._address} is gone")
        finally:
            feed.stop()
            if sent and self._client.status == "running":
                self._client.cancel(list(sent))
        if died is not None:
            raise WorkerDied(died)

    def close(self) -> None:
        self._client.close(timeout=1)

    def _has_workers(self) -> bool:
        return bool(self._client.scheduler_info(n_workers=-1)["workers"])

    def _check_versions(self) -> None:
        here = worker_versions()
        try:
            found = self._client.run(worker_versions)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ConfigError([f"--scheduler {self._address}: its workers cannot run servesweep: {reason}"]) from None
        for worker, versions in found.items():
            if versions != here:
                raise ConfigError([f"--scheduler {self._address}: worker {worker} has {versions}, but here is {here}"])


class Ray:
    """The workers of a Ray cluster; without an address, of the one that RAY_ADDRESS names, or of this machine."""

    def __init__(self, address: str | None) -> None:
        self._ray = _import("ray", "ray")
        self._started = not self._ray.is_initialized()
        try:
            if self._started:
                self._ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError([f"--scheduler {address}: no Ray cluster answers: {reason}"]) from None
        self.workers = int(self._ray.cluster_resources().get("CPU", 1))
        self._remote = self._ray.remote(max_retries=0)(run_numbered)

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        sent: list[Any] = []
        died: str | None = None
        try:
            while True:
                if died is None:
                    sent += [self._remote.remote(*item) for item in islice(feed, _WAITING * self.workers - len(sent))]
                if not sent:
                    break
                ended, sent = self._ray.wait(sent, num_returns=1)
                try:
                    result = self._ray.get(ended[0])
                except Exception as error:
                    died = worker_reason(error)  # what the others do still counts
                    continue
                yield result
        finally:
            feed.stop()
            for reference in sent:
                self._ray.cancel(reference, force=True)
        if died is not None:
            raise WorkerDied(died)

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


def worker_versions() -> dict[str, Any]:
    """What must be the same everywhere for the same answers."""
    return {"servesweep": metadata.version("servesweep"), "rules": RULES_VERSION, "numpy": np.__version__}


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            [f"--backend {extra} needs more packages: pip install 'servesweep[{extra}]' ({error})"]
        ) from None
