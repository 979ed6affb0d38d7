"""The package's answer to a case, and its comparison with the reference's: integers exactly, times to 1e-9 relative."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from invariants import check_run
from servesweep import (
    Chip,
    ConstantStepTime,
    Link,
    Model,
    OperatorStepModel,
    Result,
    StepModel,
    TableStepTimes,
    Workload,
    run_scheduler,
)
from servesweep.kernels.counters import COUNTERS as OF_THE_ENGINE
from servesweep.measures.system_results import SystemResults
from servesweep.serving.scheduler import Scheduler
from strategies import LOG_COLUMNS, LaneCase, Traffic

COUNTERS = ("steps", "prefill_tokens", "recomputed_tokens", "peak_blocks")
COUNTED = (*COUNTERS, "running_steps", "block_steps")
TIMES = ("arrival_s", "admitted_s", "first_token_s", "finish_s")


def step_model(step: dict[str, Any]) -> StepModel | OperatorStepModel | TableStepTimes | ConstantStepTime:
    """The package's step times of a step written as in the golden files."""
    if "seconds" in step:
        return ConstantStepTime(step["seconds"])
    if "tokens_s" in step:
        return TableStepTimes(**step)
    chip, link = step["chip"], step["link"]
    rest = {name: value for name, value in step.items() if name not in ("model", "chip", "link")}
    parts = Model(**step["model"]), Chip(chip["name"], chip["bf16"], chip["fp8"], chip["mem_bw"], chip["mem_cap"])
    if "layer_s" in step:
        return OperatorStepModel(*parts, **rest)
    return StepModel(
        *parts,
        link=Link("link", link["alpha_s"], link["bandwidth_bytes_per_s"]),
        **rest,
    )


def workload(traffic: Traffic, rate: float = 1.0) -> Workload:
    priority = None if traffic.priorities is None else np.array(traffic.priorities)
    columns = (np.array(traffic.arrival_s) / rate, np.array(traffic.prompt_tokens), np.array(traffic.output_tokens))
    return Workload(*columns, priority=priority)


def run(case: LaneCase, **more: Any) -> Result:
    return run_scheduler(workload(case.traffic, case.rate), step_model(case.step), **case.options, **more)


def lanes_of(cases: Sequence[LaneCase]) -> list[Scheduler]:
    """Lanes that share a Traffic share the Workload made from it."""
    shared = {id(case.traffic): workload(case.traffic) for case in cases}
    return [
        Scheduler(workload=shared[id(case.traffic)], step=step_model(case.step), rate=case.rate, **case.options)
        for case in cases
    ]


def check_against_reference(result: Result, case: LaneCase, log: dict[str, Any] | None = None) -> None:
    expected, expected_log = case.reference()
    for name in ("preemptions", "rejected", *COUNTED):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name), err_msg=name)
    for name in (*TIMES, "busy_s"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    for counter in OF_THE_ENGINE:  # a new one too, as soon as the reference has it
        if hasattr(expected, counter.name):
            rtol = 1e-9 if counter.unit == "s" else 0
            np.testing.assert_allclose(
                result.counters[counter.name], getattr(expected, counter.name), rtol=rtol, err_msg=counter.name
            )
    np.testing.assert_array_equal(result.num_blocks, case.limits().get("num_blocks", np.nan))
    if log is not None:
        for name in LOG_COLUMNS:
            rtol = 1e-9 if name.endswith("_s") else 0
            np.testing.assert_allclose(log[name], expected_log[name], rtol=rtol, err_msg=name)
    check_run(result, case.limits(), log, case.traffic.priorities)


def assert_identical(a: SystemResults, i: int, b: SystemResults, j: int) -> None:
    """To the last bit, but for padding."""
    n = a.n_requests[i]
    assert n == b.n_requests[j]
    rows = (*TIMES, "prompt_tokens", "output_tokens", "preemptions", "rejected")
    for name in rows:
        np.testing.assert_array_equal(getattr(a, name)[i, :n], getattr(b, name)[j, :n], err_msg=name, strict=True)
    for name in (*COUNTED, "busy_s", "num_blocks"):
        np.testing.assert_array_equal(getattr(a, name)[i], getattr(b, name)[j], err_msg=name)
