"""The scalar oracles of tests/, asked about systems of the package."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from servesweep import Colocated, Disaggregated, Lane, StepModel, link
from servesweep.measures.result import LaneResults
from servesweep.serving.run import System

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import oracle
from oracle_steps import StepTimes
from oracle_systems import run_system

SYSTEMS = {
    "Colocated": "colocated",
    "Disaggregated": "disaggregated",
    "PrefillOnly": "prefill_only",
    "DecodeOnly": "decode_only",
}
OPTIONS = ("n_instances", "n_prefill", "n_decode", "policy", "chunk_budget", "max_tokens", "router", "memory")
MEMORY = ("max_running", "block_size", "num_blocks")


def oracle_step_times(step: StepModel) -> StepTimes:
    m, c, wire = step.model, step.chip, link("nvlink4")
    numbers = ("tp", "pp", "weight_bytes", "kv_bytes", "mfu", "mbu", "overhead_s", "mem_reserve")
    return StepTimes(
        {
            "model": {name: getattr(m, name) for name in m.__dataclass_fields__},
            "chip": {"bf16": c.bf16_flops, "fp8": c.fp8_flops, "mem_bw": c.mem_bytes_per_s, "mem_cap": c.mem_bytes},
            "link": {"alpha_s": wire.alpha_s, "bandwidth_bytes_per_s": wire.bytes_per_s},
            **{name: getattr(step, name) for name in numbers},
        }
    )


def run_oracle(system: System, times: StepTimes) -> Sequence[oracle.Sequence]:
    """The requests of a scheduler or a serving system, in the order of its workload, with what happened to them."""
    work = system.workload
    traffic = (work.arrival_s / system.rate).tolist(), work.prompt_tokens.tolist(), work.output_tokens.tolist()
    alone = isinstance(system, Colocated) and system.n_instances == 1 and system.memory != "reserve"
    if isinstance(system, Lane) or alone:
        limits: dict[str, Any] = {"block_size": system.block_size, "num_blocks": system.num_blocks}
        if system.token_budget is not None:
            limits["token_budget"] = system.token_budget
        _, sequences = oracle.run_scheduler(
            *traffic, times.mixed, policy=system.policy, max_running=system.max_running, **limits
        )
        return sequences
    steps = ("prefill_step", "decode_step") if isinstance(system, Disaggregated) else ("step",)
    names = OPTIONS + (MEMORY if getattr(system, "memory", "reserve") == "paged" else ())
    options = {name: getattr(system, name) for name in names if getattr(system, name, None) is not None}
    requests, _ = run_system(SYSTEMS[type(system).__name__], *traffic, dict.fromkeys(steps, times), **options)
    return requests


def check(results: LaneResults, place: int, expected: Sequence[oracle.Sequence]) -> None:
    """Preemptions are the same, times to 1e-9 of their size."""
    np.testing.assert_array_equal(results.preemptions[place], [request.preemptions for request in expected])
    columns = {"first_token_s": "first_token", "finish_s": "finish", "kv_ready_s": "kv_ready"}
    for column, name in columns.items():
        values = [getattr(request, name, math.nan) for request in expected]
        np.testing.assert_allclose(getattr(results, column)[place], values, rtol=1e-9, err_msg=column)
