"""What a search for goodput found out: the rate, how sure it is, which SLO binds, how it ended and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hardware.steps import seconds_of
from ..measures.slo import SLOS
from ..messages import number_text
from .bisection import CONVERGED, LOWER_END_FAILS, UPPER_END_PASSES, Search

if TYPE_CHECKING:
    from ..experiment.plan import Cell

NOT_MONOTONE, UNRESOLVED, INTERRUPTED = "not_monotone", "unresolved", "interrupted"
ENDINGS = (CONVERGED, UPPER_END_PASSES, LOWER_END_FAILS, NOT_MONOTONE, UNRESOLVED, INTERRUPTED)
APART = (
    1.01  # rates closer than this tell nothing of monotony: near overload, attainment jumps by the schedule's chance
)

Probe = Mapping[str, Any]  # a row of the probes table


def finding(cell: Cell, search: Search, target: float, asked: Sequence[Probe]) -> dict[str, Any]:
    """The columns of the goodput table that a search fills.

    search  as far as it has come
    asked   the probes that it asked for, in any order
    """
    probes = sorted(asked, key=lambda probe: float(probe["request_rate_rps"]))
    ending, reason = _ending(cell, search, target, probes)
    n_gpus = cell.spec.n_gpus
    found: dict[str, Any] = {"target": target, "probes": len(probes), "ending": ending, "reason": reason}
    passing = [probe for probe in probes if probe["met"] and probe["request_rate_rps"] <= search.lo]
    failing = [probe for probe in probes if not probe["met"] and probe["request_rate_rps"] >= search.lo]
    if failing:
        found["next_rate_rps"] = failing[0]["request_rate_rps"]
        if not failing[0]["stopped"]:
            found["binding_slo"] = binding_slo(cell, failing[0])
    if passing:
        best = passing[-1]
        found["max_rate_rps"] = best["request_rate_rps"]
        found["goodput_per_gpu_rps"] = best["request_rate_rps"] / n_gpus
        names = [*(f"{name}_attainment" for name in SLOS), "attainment_requests", "attainment_low", "attainment_high"]
        for name in ["attainment", *names, "output_throughput_tps", "ttft_p99_s", "tpot_p99_s"]:
            found[name] = best[name]
        found["output_throughput_per_gpu_tps"] = best["output_throughput_tps"] / n_gpus
        found["rate_low_rps"], found["rate_high_rps"] = _beyond_chance(passing, failing, target)
    return found


def binding_slo(cell: Cell, probe: Probe) -> str:
    """The SLO with the lowest attainment of its own; of equal ones the first in the order of `SLOS`."""
    limited = [name for name in SLOS if cell.slo[f"{name}_slo_s"] is not None]
    return min(limited, key=lambda name: float(probe[f"{name}_attainment"]))


def _beyond_chance(
    passing: Sequence[Probe], failing: Sequence[Probe], target: float
) -> tuple[float | None, float | None]:
    sure = [probe["request_rate_rps"] for probe in passing if probe["attainment_low"] >= target]
    hopeless = [probe["request_rate_rps"] for probe in failing if probe["attainment_high"] < target]
    return max(sure, default=None), min(hopeless, default=None)


def _ending(cell: Cell, search: Search, target: float, probes: Sequence[Probe]) -> tuple[str, str | None]:
    """How a search ended, and why when that says more than its name. `probes` ascend in rate."""
    if not search.ended:
        return INTERRUPTED, "the search was stopped; max_rate_rps and next_rate_rps are the ends of its interval then"
    if search.phase == LOWER_END_FAILS:
        return LOWER_END_FAILS, _why_infeasible(cell, target, probes[0])
    if search.phase == UPPER_END_PASSES:
        top, doubled = probes[-1], len(probes) > 2  # of one that is not, only the ends were asked for
        return UPPER_END_PASSES, (
            f"{top['attainment']:.1%} at {number_text(top['request_rate_rps'], 6)} req/s, the highest rate tried: "
            f"nothing limits it up to there; raise the upper end{'' if doubled else ', or let the search find it'}"
        )
    # Of a stopped one only the requests that decided are known: those of a bad moment, maybe.
    whole = [probe for probe in probes if not probe["stopped"]]
    for probe in whole[1:]:
        slower = [p for p in whole if p["request_rate_rps"] * APART <= probe["request_rate_rps"]]
        lowest = min(slower, key=lambda p: float(p["attainment_high"]), default=probe)
        if probe["attainment_low"] > lowest["attainment_high"]:
            return NOT_MONOTONE, (
                f"{lowest['attainment']:.1%} at {number_text(lowest['request_rate_rps'], 4)} req/s but "
                f"{probe['attainment']:.1%} at {number_text(probe['request_rate_rps'], 4)} req/s, which is "
                "beyond chance: higher rates that pass may exist"
            )
    passing, failing = ([probe for probe in probes if probe["met"] == met] for met in (True, False))
    low, high = _beyond_chance(passing, failing, target)
    if low is None or high is None:
        sides = " and ".join(side for side, rate in (("passes", low), ("fails", high)) if rate is None)
        n = int(probes[0]["attainment_requests"])
        return UNRESOLVED, (
            f"no rate asked for {sides} beyond chance: {n:,} requests are too few to tell attainment from {target:g}"
        )
    return CONVERGED, None


def _why_infeasible(cell: Cell, target: float, probe: Probe) -> str:
    """Why not even the lower end passes: the step model's reason if it has one, else what was measured there."""
    n = len(cell.traffic.workload)
    if probe["rejected"] > (1 - target) * n:
        return f"{int(probe['rejected']):,} of {n:,} requests are rejected: they need more KV blocks than there are"
    physics = _too_slow_alone(cell, target)
    if physics is not None:
        return physics
    if math.isnan(probe["attainment"]):
        return "no request is left in the window"
    name = binding_slo(cell, probe)
    return (
        f"{probe['attainment']:.1%} of {int(probe['attainment_requests']):,} requests meet every SLO at "
        f"{probe['request_rate_rps']:g} req/s, the lower end; {probe[f'{name}_attainment']:.1%} meet that on {name}"
    )


def _too_slow_alone(cell: Cell, target: float) -> str | None:
    """Why too few requests could meet an SLO even with the instance to themselves, or None.

    A prompt takes at least the time of a step that holds nothing else, a further token that of a decode step which
    reads the prompt and the first token. Waiting, batches and chunks only add to these.
    """
    work, spec = cell.traffic.workload, cell.spec
    prompt, gaps = work.prompt_tokens.astype(np.float64), work.output_tokens - 1
    # Requests of decode_only systems arrive with their first token.
    prefill_s = seconds_of(spec.prefill_step or spec.step, 0.0, 0.0, prompt, prompt * (prompt + 1) / 2)
    prefill_s = prefill_s * (spec.kind != "decode_only")
    decode_s = np.where(gaps > 0, seconds_of(spec.step, 1.0, prompt + 1, 0.0, 0.0), 0.0)
    floors = {"ttft": prefill_s, "tpot": decode_s, "e2e": prefill_s + gaps * decode_s, "itl_max": decode_s}
    what = {
        "ttft": "the prefill of the shortest prompt alone",
        "tpot": "a decode step alone",
        "e2e": "the quickest request alone",
        "itl_max": "a decode step alone",
    }
    worst = None
    for name, seconds in floors.items():
        limit = cell.slo[f"{name}_slo_s"]
        share = 1.0 if limit is None else float(np.mean(seconds <= limit))
        if share < target and (worst is None or share < worst[0]):
            floor_s = float(np.min(seconds[gaps > 0])) if name in ("tpot", "itl_max") else float(seconds.min())
            slo = f"the {name} SLO of {1000 * limit:g} ms"
            worst = (
                share,
                (
                    f"{what[name]} takes {1000 * floor_s:.3g} ms, longer than {slo}"
                    if floor_s > limit
                    else f"only {share:.1%} of the requests could meet {slo} with the instance to themselves"
                ),
            )
    return None if worst is None else worst[1]
