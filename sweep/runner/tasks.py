"""What a worker does: simulate one batch of cells and measure it. A task returns rows, whatever happens in it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..measures.columns import MEASURES, measures
from ..measures.instances import ROLES, instance_columns
from ..measures.result import Result
from ..measures.slo import SLOS
from ..measures.system_results import EarlyStopOutcome, SystemResults
from ..serving.early_stop import EarlyStopCriterion, EarlyStopRequest
from ..serving.run import run_quietly as run_systems  # who runs the task warns

if TYPE_CHECKING:  # a worker needs none of them, and starts sooner without
    from collections.abc import Set

    from ..experiment.plan import Plan
    from ..serving.system import System


@dataclass(frozen=True)
class Stopping:
    """What cells are measured by in a search, and which, by position, end when it is certain that they pass, or
    fail."""

    criterion: EarlyStopCriterion
    on_pass: Set[int]
    on_fail: Set[int]


@dataclass(frozen=True)
class Task:
    """A batch of cells, all that a worker needs to know of them. Lists have one entry a cell."""

    positions: list[int]  # in the plan
    systems: list[System]
    n_gpus: list[int]
    slos: list[Mapping[str, float | None]]  # "ttft_slo_s" and so on; None: not checked
    warmup: float
    cooldown: float
    keep_requests: list[bool]  # whether to return the requests, the log of the steps, the instances
    keep_steps: list[bool]
    keep_instances: list[bool]
    stopping: Stopping | None = None

    def part(self, begin: int, end: int) -> Self:
        """The task for some of its cells."""
        cut: dict[str, Any] = {name: value[begin:end] for name, value in vars(self).items() if isinstance(value, list)}
        return replace(self, **cut)

    def run(self) -> TaskResult:
        """Simulate and measure. An error costs the cells that cause it, found by halving, and no others."""
        return run_task(self)

    def halves(self) -> list[Self]:
        """The task in two parts; none when it has one cell."""
        count = len(self.positions)
        return [self.part(0, count // 2), self.part(count // 2, count)] if count > 1 else []

    def failed(self, error: str) -> TaskResult:
        """The outcome when all its cells fail, without having run."""
        nothing = {name: np.full(len(self.positions), np.nan) for name in MEASURES}
        return TaskResult(self.positions, nothing, dict.fromkeys(self.positions, error))


@dataclass
class TaskResult:
    """What became of a batch. Dictionaries are by position in the plan.

    measures  float64 [cells], NaN where there is none, in the order of `positions`
    errors    of the cells that failed: "type: message"
    stopped   those that ended when it was certain whether they pass, and the least and the most that the attainment can
              be in the end; of the measures they have the attainment, of the requests that decided it
    beyond    what is extrapolated of those whose steps went beyond what their step times were measured for
    """

    positions: list[int]
    measures: dict[str, NDArray[np.float64]]
    errors: dict[int, str] = field(default_factory=dict)
    requests: dict[int, Result] = field(default_factory=dict)
    steps: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)
    instances: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)
    stopped: dict[int, tuple[float, float]] = field(default_factory=dict)
    beyond: dict[int, str] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    host: str | None = None  # where it ran, and when it ended, in seconds since 1970
    pid: int | None = None
    ended_unix_s: float | None = None


def make_task(
    plan: Plan,
    positions: Sequence[int],
    requests: Set[int],
    steps: Set[int],
    instances: Set[int] = frozenset(),
    stopping: Stopping | None = None,
) -> Task:
    """The task for cells of a plan; `requests`, `steps` and `instances` are positions whose tables are kept."""
    cells = [plan.cells[at] for at in positions]
    return Task(
        positions=list(positions),
        systems=[cell.system() for cell in cells],
        n_gpus=[cell.spec.n_gpus for cell in cells],
        warmup=plan.experiment.slo.warmup,
        cooldown=plan.experiment.slo.cooldown,
        keep_requests=[at in requests for at in positions],
        keep_steps=[at in steps for at in positions],
        keep_instances=[at in instances for at in positions],
        slos=[cell.slo for cell in cells],
        stopping=stopping,
    )


def run_task(task: Task) -> TaskResult:
    """Simulate and measure a batch. An error costs the cells that cause it, found by halving, and no others."""
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = _result_of(task)
    outcome.wall_s, outcome.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    outcome.host, outcome.pid, outcome.ended_unix_s = platform.node(), os.getpid(), time.time()
    return outcome


def _result_of(task: Task) -> TaskResult:
    try:
        return _simulate(task)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    # Outside of the handler: what the failed batch held is free by now.
    halves = task.halves()
    if not halves:
        return task.failed(reason)
    first, second = map(_result_of, halves)
    return TaskResult(
        task.positions,
        {name: np.concatenate([first.measures[name], second.measures[name]]) for name in MEASURES},
        first.errors | second.errors,
        first.requests | second.requests,
        first.steps | second.steps,
        first.instances | second.instances,
        first.stopped | second.stopped,
        first.beyond | second.beyond,
    )


def _simulate(task: Task) -> TaskResult:
    logged = [place for place, keep in enumerate(task.keep_steps) if keep]
    itl = any(slo["itl_max_slo_s"] is not None for slo in task.slos)
    limits = {name: np.array([slo[f"{name}_slo_s"] for slo in task.slos], np.float64) for name in SLOS}
    results = run_systems(task.systems, step_log=logged, itl=itl, early_stop=_early_stop(task, limits))
    found = measures(
        results,
        limits=limits,
        warmup=task.warmup,
        cooldown=task.cooldown,
        n_gpus=np.array(task.n_gpus),
    )
    values = {name: column.astype(np.float64) for name, column in found.items()}
    return TaskResult(
        task.positions,
        values,
        stopped=_stopped(task, results.early_stop, values),
        beyond={task.positions[place]: text for place, text in results.beyond_measured.items()},
        # Copies: a view of one system would keep the arrays of the whole batch in memory.
        requests={
            task.positions[place]: deepcopy(results.result(place))
            for place, keep in enumerate(task.keep_requests)
            if keep
        },
        steps={task.positions[place]: _steps(results, place) for place in logged},
        instances={
            task.positions[place]: instance_columns(results.instances, place)
            for place, keep in enumerate(task.keep_instances)
            if keep
        },
    )


def _early_stop(task: Task, limits: dict[str, NDArray[np.float64]]) -> EarlyStopRequest | None:
    if task.stopping is None:
        return None
    which = (task.stopping.on_pass, task.stopping.on_fail)
    on_pass, on_fail = (np.array([at in positions for at in task.positions], np.bool_) for positions in which)
    return EarlyStopRequest(task.stopping.criterion, limits, on_pass, on_fail)


def _stopped(
    task: Task, outcome: EarlyStopOutcome | None, values: dict[str, NDArray[np.float64]]
) -> dict[int, tuple[float, float]]:
    """`TaskResult.stopped`; leaves those cells only the `values` that mean something."""
    if outcome is None:
        return {}
    rows = outcome.stopped.nonzero()[0]
    for column in values.values():
        column[rows] = np.nan
    values["attainment"][rows] = outcome.attainment[rows]
    values["attainment_requests"][rows] = outcome.requests[rows]
    return {task.positions[row]: (float(outcome.low[row]), float(outcome.high[row])) for row in rows}


def _steps(results: SystemResults, place: int) -> dict[str, NDArray[Any]]:
    """The log of the steps of a system, by column of the steps table; roles are places in `ROLES`."""
    log = dict(results.step_logs[place])
    first = int((results.instances.system == place).argmax())
    role = log.get("role", np.zeros(len(log["start_s"]))) + ROLES.index(results.instances.role[first])
    log["role"] = role.astype(np.int8)  # prefill comes before decode
    log.setdefault("instance", np.zeros(len(role), np.int64))
    return log
