"""Workers on many machines: a Dask cluster that is running already, or Ray, through joblib's backends for them.

A task travels to a worker as a pickle with its requests, some 24 bytes each, and its outcome comes back; workers need
servesweep, in this very version, and neither the experiment's files nor the directory of the run.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
import time
from collections.abc import Generator
from importlib import metadata
from itertools import islice
from typing import Any

import numpy as np

from .backends import Backend, BackendLost, Feed, T, WorkerDied, run_numbered, worker_reason
from .config import ConfigError
from .plan import RULES_VERSION

CONNECT_S = 5.0  # to wait for a scheduler
_WAVE = 2  # tasks for each worker of a wave
LOST_S = 10.0  # without a word from the scheduler, or without a worker, until a run gives up


def open_cluster(backend: str, scheduler: str | None) -> Backend:
    """The workers of a cluster; ConfigError when they cannot be used."""
    return Dask(str(scheduler)) if backend == "dask" else Ray(scheduler)


class Dask:
    """The workers of a Dask scheduler.

    joblib's backend waits for ever when the scheduler is gone. So it runs in a thread, and this one looks after both.
    """

    def __init__(self, address: str) -> None:
        distributed = _import("distributed", "dask")
        # What it says while it reconnects, with tracebacks, is said here in a sentence.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self._address = address
        try:
            self._client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError([f"--scheduler {address}: no Dask scheduler answers: {reason}"]) from None
        try:
            try:
                self._client.wait_for_workers(1, timeout=CONNECT_S)
            except TimeoutError:
                raise ConfigError([f"--scheduler {address}: has no worker: start some with: dask worker ..."]) from None
            self._check_versions()
            self.workers = sum(self._client.ncores().values())
        except BaseException:
            self.close()
            raise

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        from joblib import Parallel, delayed, parallel_config

        ended: queue.Queue[Any] = queue.Queue()

        def run() -> None:
            try:
                with parallel_config("dask", client=self._client):
                    parallel = Parallel(n_jobs=-1, return_as="generator_unordered", batch_size=1)
                    for result in parallel(delayed(run_numbered)(number, task) for number, task in feed):
                        ended.put(result)
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        threading.Thread(target=run, daemon=True).start()
        seen = time.monotonic()
        try:
            while True:
                try:
                    result = ended.get(timeout=0.5)
                except queue.Empty:
                    if self._has_workers():
                        seen = time.monotonic()
                    elif time.monotonic() - seen > LOST_S:
                        raise BackendLost(
                            f"the Dask scheduler at {self._address} or its workers are gone since {LOST_S:.0f} s"
                        ) from None
                    continue
                if result is None:
                    return
                if isinstance(result, BaseException):
                    raise WorkerDied(worker_reason(result)) from None
                yield result
        finally:
            if feed.stop():  # what still runs is of no use to anybody
                self.close()

    def close(self) -> None:
        self._client.close(timeout=1)

    def _has_workers(self) -> bool:
        return self._client.status == "running" and bool(self._client.scheduler_info(n_workers=-1)["workers"])

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
    """The workers of a Ray cluster; without an address, of the one that RAY_ADDRESS names, or of this machine.

    joblib's backend for Ray gives lists only, so tasks go in waves, and a wave that loses a worker loses its outcomes.
    """

    def __init__(self, address: str | None) -> None:
        self._ray = _import("ray", "ray")
        register = _import("ray.util.joblib", "ray").register_ray
        try:
            if not self._ray.is_initialized():
                self._ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError([f"--scheduler {address}: no Ray cluster answers: {reason}"]) from None
        register()
        self.workers = int(self._ray.cluster_resources().get("CPU", 1))

    def results(self, feed: Feed[T]) -> Generator[tuple[int, T], None, None]:
        from joblib import Parallel, delayed, parallel_config

        with parallel_config("ray"):
            while wave := list(islice(feed, _WAVE * self.workers)):
                try:
                    parallel = Parallel(n_jobs=self.workers, batch_size=1)
                    ended = parallel(delayed(run_numbered)(number, task) for number, task in wave)
                except Exception as error:
                    raise WorkerDied(worker_reason(error)) from None
                yield from ended

    def close(self) -> None:
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
