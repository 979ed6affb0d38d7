"""One case: parity with the reference first, then its memory, its phases, and its speed beside the reference's."""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from typing import Any

import numpy as np
from servesweep import run_systems
from servesweep.serving.reference_answers import answer, disagreement
from servesweep.serving.run import System

from .cases import Case
from .phases import PHASES, profiled


def measure(case: Case, repeats: int, reference_requests: int, memory: bool) -> dict[str, Any]:
    """A row of the table. AssertionError if the engine and the reference disagree.

    reference_requests  that a timing of the reference has, at least those of one system
    memory              whether to trace allocations, which takes time
    """
    systems = case.build()
    total = case.systems * case.requests
    picked = max(min(reference_requests // case.requests, case.systems), 1)
    places = ((np.arange(picked) + 0.5) / picked * case.systems).astype(int).tolist()  # the middles of equal parts
    if memory:
        tracemalloc.start()
    results = run_systems(systems)
    peak = tracemalloc.get_traced_memory()[1] if memory else math.nan
    tracemalloc.stop()
    reference_s = 0.0
    for place in places:
        begin = time.process_time()
        expected = answer(systems[place])
        reference_s += time.process_time() - begin
        problem = disagreement(results.result(place), expected)
        assert problem is None, f"{case.kind.name}, system {place}: {problem}"
    preemptions = int(results.preemptions.sum())
    del results
    with profiled() as profile:
        begin = time.process_time()
        run_systems(systems)
        profiled_s = time.process_time() - begin
    # The reference before and after the engine: the machine's speed changes within seconds.
    engine, ratios, references = [], [], [reference_s]
    for _ in range(repeats):
        begin = time.process_time()
        run_systems(systems)
        engine.append(time.process_time() - begin)
        references.append(_timed_reference(systems, places))
        reference_rate = 2 * len(places) * case.requests / (references[-2] + references[-1])
        ratios.append(total / engine[-1] / reference_rate)
    seconds = statistics.median(engine)
    bar_ratio, bar_rps = case.bars()
    return {
        "case": case.kind.name,
        "systems": case.systems,
        "requests": case.requests,
        "load": case.load,
        "requests_per_cpu_s": total / seconds,
        "reference_requests_per_cpu_s": len(places) * case.requests / statistics.median(references),
        "ratio": statistics.median(ratios),
        "bar_ratio": bar_ratio,
        "bar_requests_per_cpu_s": bar_rps,
        "loops": profile.loops,
        "events_per_request": profile.events / total,
        "us_per_event": 1e6 * seconds / profile.events,
        "us_per_loop": 1e6 * seconds / profile.loops,
        "preemptions_per_request": preemptions / total,
        "bytes_per_request": peak / total,
        **{f"{name}_share": profile.seconds[name] / profiled_s for name in PHASES},
        "between_share": (profile.engine_s - sum(profile.seconds.values())) / profiled_s,
        "outside_share": 1 - profile.engine_s / profiled_s,
    }


def _timed_reference(systems: list[System], places: list[int]) -> float:
    begin = time.process_time()
    for place in places:
        answer(systems[place])
    return time.process_time() - begin
