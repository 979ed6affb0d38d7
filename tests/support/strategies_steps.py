"""Cases whose step times are added up: operators in place of a roofline, knots in place of a constant."""

from dataclasses import replace
from math import gcd
from random import Random
from typing import Any

from hypothesis import strategies as st
from parity_systems import SystemCase
from servesweep.serving.reference_steps import OperatorTimes, StepTimes
from strategies import LaneCase, lane_cases
from strategies_systems import holding, system_batches


def knots(rng: Random, seconds: float) -> dict[str, Any]:
    """Fields of TableStepTimes; a token takes about `seconds`. Steps take no longer than their parts one by one."""
    tokens, slope, n, s = [], seconds * rng.random(), rng.randint(0, 2), seconds
    for _ in range(rng.randint(1, 5)):
        tokens.append((n, s))
        ahead = rng.randint(1, 30)
        n, s = n + ahead, s + ahead * slope
        slope *= rng.random()
    context_s = rng.choice([0.0, 0.01]) * seconds * rng.random()
    return {
        "tokens_s": tuple(tokens),
        "emitting_s": rng.choice([(), ((1, 0.1 * seconds),), ((0, 0.0), (4, 0.3 * seconds), (9, 0.4 * seconds))]),
        "context_s": context_s,
        "mixed_context_s": context_s * rng.uniform(1, 3),
        "pair_s": rng.choice([0.0, 1e-3]) * seconds * rng.random(),
        "done_s": rng.choice([0.0, 1e-2]) * seconds * rng.random(),
        "prefill_s": rng.choice([0.0, 0.3]) * seconds,
        "overhead_s": rng.choice([0.0, 0.3]) * seconds,
    }


def added(rng: Random, step: dict[str, Any]) -> dict[str, Any]:
    """A step of operators about as long as a roofline's, that holds as much KV, or knots for a constant."""
    if "seconds" in step:
        return knots(rng, step["seconds"])
    size = StepTimes(step)
    own = {**step, "tp": gcd(step["tp"], step["model"]["n_heads"])}
    kv = size.kv_capacity
    second = size.weights / size.bandwidth
    per_layer = second / step["model"]["n_layers"]
    operators = {
        **holding(kv, own),
        "head_bytes": rng.choice([1.0, 2.0]),
        "compute_bytes": rng.choice([None, 1, 2]),
        "mbu_attention": rng.uniform(0.2, 1.0),
        "mfu_attention": rng.uniform(0.2, 1.0),
        "mixed_attention": rng.choice([1.0, 2.5]),
        "layer_s": rng.choice([0.0, 0.5]) * per_layer,
        "allreduce_s": rng.uniform(0.01, 0.2) * per_layer,
        "allreduce_bw": step["link"]["bandwidth_bytes_per_s"],
        "sequence_s": rng.choice([0.0, 0.05]) * second,
    }
    assert OperatorTimes(operators).kv_capacity == kv
    return operators


SEEDS = st.integers(0, 2**32)


@st.composite
def added_lanes(draw: st.DrawFn, **kind: Any) -> list[LaneCase]:
    """Lanes of which some have such times, some a roofline or a constant."""
    cases = draw(st.lists(lane_cases(**kind), min_size=1, max_size=5))
    rng = Random(draw(SEEDS))
    return [replace(case, step=added(rng, case.step)) if rng.random() < 0.7 else case for case in cases]


@st.composite
def added_systems(draw: st.DrawFn, **kind: Any) -> list[SystemCase]:
    """The same of systems."""
    cases = draw(system_batches(max_systems=4, exact=False, **kind))
    rng = Random(draw(SEEDS))
    return [
        replace(case, steps={role: added(rng, step) for role, step in case.steps.items()})
        if rng.random() < 0.7
        else case
        for case in cases
    ]
