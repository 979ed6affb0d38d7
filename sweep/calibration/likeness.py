"""Simulated runs beside measured ones: many candidates at once, and how far each is off.

C candidates; K constants; R residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Bools, Floats, Ints
from ..hardware.operators import OperatorStepModel
from ..serving.scheduler import Scheduler, run_schedulers
from .constants import OUTSIDE, Constant
from .measured_run import MeasuredRun

AT_A_TIME = 256  # lanes of a batch
_LEAST_RATIO = 1e-6


class Trials:
    """Measured runs, and the server that is simulated for them."""

    def __init__(
        self,
        runs: Sequence[MeasuredRun],
        used: Sequence[Bools],
        step: OperatorStepModel,
        server: dict[str, Any],
        constants: Sequence[Constant],
        first_token_s: float,
    ) -> None:
        self.runs, self.used, self.constants = runs, used, constants
        self._step, self._server, self._first_token_s = step, server, first_token_s
        self._workloads = [run.workload for run in runs]
        self.simulated = 0

    def model(self, places: Floats) -> OperatorStepModel:
        """The step model of a candidate. [K]"""
        values: dict[str, Any] = {
            one.name: float(one.value(place)) for one, place in zip(self.constants, places, strict=True)
        }
        return replace(self._step, **({OUTSIDE: self._first_token_s} | values))

    def latencies(self, candidates: Floats) -> list[Floats]:
        """Simulated TTFT, TPOT and e2e latency of every run. [C, K] -> [C, 3, N] each"""
        models = [self.model(places) for places in candidates]
        found: list[Floats] = []
        for run, workload in zip(self.runs, self._workloads, strict=True):
            parts = []
            for begin in range(0, len(models), AT_A_TIME):
                some = models[begin : begin + AT_A_TIME]
                result = run_schedulers([Scheduler(workload, step, **self._server) for step in some])
                more = result.outside_s[:, None]
                parts.append(run.latencies(result.first_token_s + more, result.finish_s + more))
                self.simulated += len(some)
            found.append(np.concatenate(parts))
        return found

    def residuals(self, candidates: Floats) -> Floats:
        """How far each candidate is off on the requests that are used: logarithms of simulated over measured latency of
        each request, and of their means. [C, R]"""
        parts = []
        for (run, used), simulated in zip(self._pairs(), self.latencies(candidates), strict=True):
            for metric, there in enumerate(self._there(run, used)):
                if not there.any():
                    continue
                measured, ours = run.measured[metric, there], simulated[:, metric, there]
                parts.append(np.log(np.maximum(ours, _LEAST_RATIO) / measured))
                parts.append(np.log(np.maximum(ours.mean(axis=1), _LEAST_RATIO) / measured.mean())[:, None])
        return np.concatenate(parts, axis=1)

    @cached_property
    def groups(self) -> Ints:
        """Which residuals are of one kind: a run and a measure. [R]"""
        counts = [
            int(there.sum()) + 1 for run, used in self._pairs() for there in self._there(run, used) if there.any()
        ]
        return np.repeat(np.arange(len(counts)), counts)

    def _pairs(self) -> list[tuple[MeasuredRun, Bools]]:
        return list(zip(self.runs, self.used, strict=True))

    @staticmethod
    def _there(run: MeasuredRun, used: Bools) -> list[Bools]:
        return [used & (measured > 0) for measured in run.measured]
