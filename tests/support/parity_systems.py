"""A case of a serving system, the reference's and the package's answers to it, and their comparison."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import servesweep
from invariants_systems import check_system
from parity import step_model, workload
from servesweep import Result
from servesweep.kernels.counters import COUNTERS
from servesweep.measures.system_results import SystemResults
from servesweep.serving.reference import Observer, RequestState
from servesweep.serving.reference_instances import Instance, PrefillInstance, ReservedStep, SchedulerUnit, Unit
from servesweep.serving.reference_steps import times_of
from servesweep.serving.reference_systems import ROUTERS, run_system
from servesweep.serving.system_kinds import SYSTEMS
from strategies import Traffic

TIMES = ("arrival_s", "admitted_s", "first_token_s", "finish_s", "kv_ready_s")
ROWS = (*TIMES, "prompt_tokens", "output_tokens", "preemptions", "rejected")


@dataclass
class SystemCase:
    system: str
    traffic: Traffic
    rate: float
    steps: dict[str, dict[str, Any]]  # `step`, or `prefill_step` and `decode_step`, as in the golden files
    options: dict[str, Any] = field(default_factory=dict)  # arguments of run_<system>; `link` as a dict
    exact: bool = False  # no time is ever rounded

    def times(self) -> dict[str, Any]:
        return {name: times_of(step) for name, step in self.steps.items()}


class Trace(Observer):
    """Every step: under reserved memory with its unit; of schedulers as (start, end, tokens, blocks)."""

    def __init__(self) -> None:
        self.reserved: list[tuple[Unit, ReservedStep]] = []
        self.rows: dict[Any, list[tuple[float, float, int, int]]] = defaultdict(list)

    def on_step(self, source: Any, step: Any) -> None:
        if isinstance(step, ReservedStep):
            self.reserved.append((source, step))
        else:
            self.rows[source].append((step.start, step.end, step.tokens, step.blocks))


def draws(router: str, seed: int, stage: int, n: int) -> list[Any]:
    rng = np.random.default_rng([seed, stage])
    shape = (0, n, (n, 2))[ROUTERS[router].draws]
    drawn: list[Any] = rng.random(shape).tolist()
    return drawn


def answer(case: SystemCase, trace: Trace | None = None) -> tuple[SimpleNamespace, list[Instance], list[RequestState]]:
    """The reference's, in the words of servesweep.Result."""
    options = dict(case.options)
    options.pop("on_reject", None)
    seed, router = options.pop("router_seed", 0), options.get("router", "least_loaded")
    n = len(case.traffic.arrival_s)
    requests, instances = run_system(
        case.system,
        [arrival / case.rate for arrival in case.traffic.arrival_s],
        case.traffic.prompt_tokens,
        case.traffic.output_tokens,
        case.times(),
        draws=[draws(router, seed, stage, n) for stage in (0, 1)],
        observer=trace,
        priorities=case.traffic.priorities,
        **options,
    )
    run = SimpleNamespace(
        arrival_s=[r.arrival for r in requests],
        prompt_tokens=[r.prompt for r in requests],
        output_tokens=[r.output for r in requests],
        admitted_s=[r.admitted for r in requests],
        first_token_s=[r.first_token for r in requests],
        finish_s=[r.finish for r in requests],
        kv_ready_s=[r.kv_ready for r in requests],
        preemptions=[r.preemptions for r in requests],
        rejected=[r.status == "rejected" for r in requests],
    )
    return run, instances, requests


def rounding_decides(case: SystemCase, requests: Sequence[RequestState]) -> bool:
    """KV from two prefill instances arrives at one time, but for rounding: the order may be either.

    Memory-bound batches of as many tokens in all take the same time, in whatever order these are added up.
    """
    if case.exact:
        return False
    arrivals = sorted((r.kv_ready, r.served_by[0]) for r in requests if not math.isnan(r.kv_ready))
    return any(a != b and t - s < 1e-12 * t for (s, a), (t, b) in itertools.pairwise(arrivals))


def reference_result(case: SystemCase) -> Result:
    run, _, _ = answer(case)
    return Result(**vars(run))


def arguments(case: SystemCase) -> dict[str, Any]:
    """What run_<system> takes besides the workload."""
    options = dict(case.options)
    if "link" in options:
        link = options["link"]
        options["link"] = servesweep.Link("link", link["alpha_s"], link["bandwidth_bytes_per_s"])
    return {**{name: step_model(step) for name, step in case.steps.items()}, **options}


def run(case: SystemCase) -> Result:
    function = getattr(servesweep, f"run_{case.system}")
    result: Result = function(workload(case.traffic, case.rate), **arguments(case))
    return result


def systems_of(cases: Sequence[SystemCase]) -> list[Any]:
    """Systems that share a Traffic share the Workload made from it."""
    shared = {id(case.traffic): workload(case.traffic) for case in cases}
    return [
        SYSTEMS[case.system].system(workload=shared[id(case.traffic)], rate=case.rate, **arguments(case))
        for case in cases
    ]


def check_times(got: Any, expected: Any) -> None:
    for name in ("preemptions", "rejected"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    for name in TIMES:
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-9, err_msg=name)


def check_result(result: Result, case: SystemCase) -> None:
    expected, instances, requests = answer(case)
    check_system(result, case)
    if rounding_decides(case, requests):
        return
    check_times(result, expected)
    assert result.steps == sum(instance.steps for instance in instances)


def check_results(results: SystemResults, cases: Sequence[SystemCase]) -> None:
    """All systems of a batch, with the counts of their instances."""
    for i, case in enumerate(cases):
        expected, instances, requests = answer(case)
        check_system(results.result(i), case)
        if rounding_decides(case, requests):
            continue
        check_times(results.result(i), expected)
        facts = facts_of(results, i)
        assert facts["role"] == [instance.role for instance in instances]
        assert facts["instance"] == [instance.number for instance in instances]
        assert facts["streams"] == [len(instance.units) for instance in instances]
        assert facts["requests"] == [instance.requests for instance in instances]
        assert facts["steps"] == [instance.steps for instance in instances]
        check_counters(results.result(i), instances)
        assert facts["busy_s"] == pytest.approx([instance.busy_s for instance in instances], rel=1e-9, abs=1e-12)


def check_counters(result: Result, instances: Sequence[Instance]) -> None:
    """Every counter that the reference has, where instances are schedulers: of all of them together."""
    units = [unit for instance in instances for unit in instance.units]
    schedulers = [unit.scheduler for unit in units if isinstance(unit, SchedulerUnit)]
    if not schedulers or len(schedulers) < len(units):
        return
    for counter in COUNTERS:
        if hasattr(schedulers[0], counter.name):
            values = [getattr(one, counter.name) for one in schedulers]
            expected = max(values) if counter.of_lanes == "max" else sum(values)
            rtol = 1e-9 if counter.unit == "s" else 0
            got = result.counters[counter.name]
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol / 1000, err_msg=counter.name)


def check_log(log: Mapping[str, Any], case: SystemCase) -> None:
    """One row a step, lane after lane. Under reserved memory a block is a token, and requests may wait in the lane."""
    trace = Trace()
    _, instances, requests = answer(case, trace)
    if rounding_decides(case, requests):
        return
    steps = defaultdict(list)
    for unit, step in trace.reserved:
        steps[unit].append(step)
    rows: list[tuple[float, float, int, int, int, int]] = []  # start, end, tokens, blocks, instance, role
    for instance in instances:
        place = (instance.number, int(instance.role == "decode"))
        for unit in instance.units:
            if isinstance(unit, SchedulerUnit):
                rows += [(*row, *place) for row in trace.rows[unit.scheduler]]
            for step in steps[unit]:  # a batch of a pipeline ends after its last stage
                stages = unit.times.pp if isinstance(unit, PrefillInstance) else 1
                end = step.start + stages * (step.end - step.start)
                rows.append((step.start, end, step.decoding + step.prefill_tokens, step.reserved, *place))
    columns = ("start_s", "end_s", "tokens", "blocks_used", "instance", "role")
    for i, name in enumerate(columns):
        if name in log:
            np.testing.assert_allclose(log[name], [row[i] for row in rows], rtol=1e-9 if i < 2 else 0, err_msg=name)
    assert ("instance" in log) == (len(instances) > 1 or len(instances[0].units) > 1)
    assert ("role" in log) == (case.system == "disaggregated")


def facts_of(results: SystemResults, system: int) -> dict[str, list[Any]]:
    """What is known of the instances of a system."""
    places = [k for k, owner in enumerate(results.instances.system) if owner == system]
    names = ("role", "instance", "streams", "requests", "steps", "busy_s")
    return {name: [getattr(results.instances, name)[k] for k in places] for name in names}


def assert_identical(a: SystemResults, i: int, b: SystemResults, j: int) -> None:
    """To the last bit, but for padding."""
    n = a.n_requests[i]
    assert n == b.n_requests[j]
    for name in ROWS:
        np.testing.assert_array_equal(getattr(a, name)[i, :n], getattr(b, name)[j, :n], err_msg=name, strict=True)
    assert facts_of(a, i) == facts_of(b, j)


def seconds(values: Sequence[float | None]) -> list[float]:
    """Times of a golden file: null is NaN."""
    return [math.nan if value is None else value for value in values]
