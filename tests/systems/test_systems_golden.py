"""Every golden case of the serving systems: the reference's answer and the package's, and the measures of both."""

from typing import Any

import numpy as np
import pytest
from invariants_systems import check_system, check_trace
from parity_systems import SystemCase, Trace, answer, check_result, run, seconds
from servesweep import Result, attainment, percentile
from strategies import GOLDEN, Traffic, golden

OTHERS = ("goodput", "step-times", "workloads")
NAMES = sorted(path.stem for path in (GOLDEN / "serving").glob("*.json") if path.stem not in OTHERS)


def golden_case(name: str) -> tuple[SystemCase, dict[str, Any]]:
    case = golden(f"serving/{name}")
    inputs = case["inputs"]
    traffic = Traffic(inputs["arrival_s"], inputs["prompt_tokens"], inputs["output_tokens"])
    return SystemCase(inputs["system"], traffic, 1.0, inputs["steps"], inputs["options"]), case["outputs"]


def check_golden(result: Result, outputs: dict[str, Any], *, exact: bool) -> None:
    for name in ("first_token_s", "finish_s", "kv_ready_s"):
        np.testing.assert_allclose(getattr(result, name), seconds(outputs[name]), rtol=1e-9, err_msg=name)
    for name in ("ttft", "tpot"):
        for q in (50, 99):
            if f"{name}_p{q}_s" in outputs:
                assert percentile(result, name, q) == pytest.approx(outputs[f"{name}_p{q}_s"], rel=1e-9)
    ttft, tpot = outputs["slo"]["ttft_s"], outputs["slo"]["tpot_s"]
    for expected, slos, window in (
        ("attainment", (ttft, tpot), {}),
        ("attainment_ttft_only", (ttft,), {}),
        ("attainment_whole_run", (ttft, tpot), {"warmup": 0, "cooldown": 0}),
    ):
        if exact:
            assert attainment(result, *slos, **window) == outputs[expected]
            continue
        # The SLOs are percentiles of this very run: a time that is one of them is on either side of it by a rounding.
        for way in (1, -1):
            limits = [None if slo is None else slo * (1 + way * 1e-9) for slo in slos]
            assert (attainment(result, *limits, **window) - outputs[expected]) * way >= 0


def test_all_systems_are_among_the_cases() -> None:
    assert len(NAMES) == 26
    systems = {golden_case(name)[0].system for name in NAMES}
    assert systems == {"colocated", "disaggregated", "prefill_only", "decode_only"}


@pytest.mark.parametrize("name", NAMES)
def test_reference(name: str) -> None:
    case, outputs = golden_case(name)
    trace = Trace()
    run, instances, requests = answer(case, trace)
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s", "kv_ready_s")
    check_golden(Result(**{column: getattr(run, column) for column in columns}), outputs, exact=True)
    check_system(run, case)
    check_trace(trace.reserved, case)
    stages = 2 if case.system == "disaggregated" else 1
    assert all(len(request.served_by) == stages for request in requests)
    assert sum(instance.requests for instance in instances) == stages * len(requests)
    assert sum(instance.steps for instance in instances) == len(trace.reserved)
    for instance in instances:
        assert (instance.load, instance.unfinished, instance.tokens) == (0, 0, 0), "all counts are given back"


@pytest.mark.parametrize("name", NAMES)
def test_package(name: str) -> None:
    case, outputs = golden_case(name)
    result = run(case)
    check_golden(result, outputs, exact=False)
    check_result(result, case)
