"""Run stages, those of one kind together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Bools, Ints
from ..kernels.batch import Batch
from ..kernels.rules import Rules
from ..kernels.steplog import StepLog
from .stage_batch import StageBatch
from .stages import Stage, StageResults, no_results

CACHE_BYTES = 1_000_000_000
Watch = Callable[[StageBatch, Ints], Callable[[Batch], Bools]]


def run_stages(
    stages: Sequence[Stage], logged: Sequence[int] = (), *, itl: bool = False, watch: Watch | None = None
) -> StageResults:
    """Run all stages. `logged` are stages whose steps are kept; `itl`: keep times between tokens; `watch` makes what
    follows some stages, given the places of a batch's stages.

    Stages that may do without their prefix cache (`Stage.plain`) do, which is far faster; those that have
    preempted somebody then run again.
    """
    plain = [None if watch else stage.plain for stage in stages]
    results = _run([one or stage for stage, one in zip(stages, plain, strict=True)], logged, itl, watch)
    again = [i for i, one in enumerate(plain) if one is not None and results.preemptions[i].any()]
    if again:
        kept = [row for row, i in enumerate(again) if i in logged]
        results.replace(np.array(again), _run([stages[i] for i in again], kept, itl, None))
    return results


def _parts(stages: Sequence[Stage], members: Sequence[int]) -> list[list[int]]:
    """Those of a kind as batches whose prefix caches are no larger than CACHE_BYTES, if one alone is not."""
    parts: list[list[int]] = []
    room = 0
    for i in members:
        size = _cache_bytes(stages[i])
        if not parts or size > room:
            parts.append([])
            room = CACHE_BYTES
        parts[-1].append(i)
        room -= size
    return parts


def _cache_bytes(stage: Stage) -> int:
    """What the prefix caches of a stage hold: for each instance a number for each content, and the log of what was
    freed."""
    if not stage.caches:
        return 0
    contents = stage.queue.chains(stage.block_size or 1).count
    freed = min(contents, stage.num_blocks or contents)
    return 4 * (contents + 4 * freed) * stage.instances * stage.lanes


def _run(stages: Sequence[Stage], logged: Sequence[int], itl: bool, watch: Watch | None) -> StageResults:
    runs: dict[tuple[Rules, bool, bool], list[int]] = {}
    for i, stage in enumerate(stages):
        runs.setdefault((stage.kind, stage.routed, stage.clients > 0), []).append(i)
    lanes = sum(stage.instances * stage.lanes for stage in stages)
    results = no_results(len(stages), max((len(stage.queue) for stage in stages), default=0), lanes, itl)
    counts = np.array([stage.instances * stage.lanes for stage in stages], np.int64)
    begins = np.cumsum(counts) - counts
    results.lane_stage = np.repeat(np.arange(len(stages)), counts)
    within = np.arange(lanes) - begins[results.lane_stage]
    width = np.array([stage.lanes for stage in stages], np.int64)
    results.lane_instance = within // width[results.lane_stage] if lanes else results.lane_instance
    parts = [(*kind[1:], part) for kind, members in runs.items() for part in _parts(stages, members)]
    for routed, closed, members in parts:
        chosen = np.array(members, np.int64)
        batch = StageBatch([stages[i] for i in members], routed)
        own = counts[chosen]
        of_run = np.repeat(np.arange(len(members)), own)
        rows = np.arange(of_run.size) - (np.cumsum(own) - own)[of_run] + begins[chosen][of_run]
        log = StepLog(np.isin(chosen[of_run], np.asarray(list(logged), np.int64))) if len(logged) else None
        engine = batch.engine(log, itl)
        watched = watch is not None and not batch.rules.ordered and not closed  # no verdict on the others
        engine.watch = watch(batch, chosen) if watch is not None and watched else None
        totals = engine.run()
        if engine.watch:
            engine.watch(engine.batch)
        for counter, values in totals.rows():
            getattr(results.lane_totals, counter.name)[rows] = values
        batch.hand_back(engine, chosen, rows, results)
        if engine.batch.keeps_itl:
            np.add.at(results.itl_counts, chosen[of_run], engine.itl_histograms)
        for place, columns in log.columns().items() if log else ():
            owner = int(chosen[of_run[place]])
            lane = int(rows[place] - begins[owner])
            results.logs.setdefault(owner, []).append((*divmod(lane, stages[owner].lanes), columns))
    for counter, values in results.lane_totals.rows():
        summed = np.zeros(len(stages))
        if counter.of_lanes == "max":
            np.maximum.at(summed, results.lane_stage, values)
        elif lanes:
            summed = np.bincount(results.lane_stage, values, len(stages)).astype(np.float64)
        setattr(results.totals, counter.name, summed)
    return results
