"""Systems at once: their requests in order of service, the stages that they meet, and what came out.

C systems, N requests of the longest workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import checks
from ..arrays import Floats, Ints
from ..measures.instances import InstanceFacts
from ..measures.system_results import EarlyStopOutcome, SystemResults
from .closed_loops import note_arrivals
from .early_stop import EarlyStopMonitors, EarlyStopRequest
from .extrapolation import beyond_measured, tell
from .queue import Queue
from .queues import Queues
from .stage_runs import run_stages
from .stages import UNLIMITED_TOKENS, Stage, StageResults
from .system import System


@checks.spelt_out
def run_systems(
    systems: Sequence[System],
    *,
    step_log: Sequence[int] = (),
    itl: bool = False,
    early_stop: EarlyStopRequest | None = None,
) -> SystemResults:
    """Simulate many systems together; the outcome of each is what it is alone, to the last bit.

    Requests that can never fit are rejected.

    Parameters
    ----------
    systems
        C of them, of any kinds: `Scheduler`, `Colocated`, `Disaggregated`, `PrefillOnly`, `DecodeOnly`.
    step_log
        Places of systems whose steps are written out in `SystemResults.step_logs`.
    itl
        Keep the times between tokens of requests, `SystemResults.itl_max_s` and `itl_counts`; it costs time.
    early_stop
        Stop systems as soon as it is certain whether enough of their requests meet the SLOs: `SystemResults.early_stop`
        tells of which. None: all run to their end.

    Returns
    -------
    SystemResults
        Arrays over systems and requests.

    Raises
    ------
    ValueError
        For what is no system, and options out of range.

    Warns
    -----
    UserWarning
        Once a system whose steps went beyond what its step times were measured for, with how far.
    """
    results = run_quietly(systems, step_log=step_log, itl=itl, early_stop=early_stop)
    tell(((f"system {place}", text) for place, text in results.beyond_measured.items()), stacklevel=3)
    return results


def run_quietly(
    systems: Sequence[System],
    *,
    step_log: Sequence[int] = (),
    itl: bool = False,
    early_stop: EarlyStopRequest | None = None,
) -> SystemResults:
    """`run_systems` without warnings."""
    if not isinstance(systems, Sequence | np.ndarray):
        raise ValueError(f"systems={systems!r}: must be a list of systems")
    for position, system in enumerate(systems):
        if not isinstance(system, System):
            raise ValueError(
                f"systems[{position}]={system!r}: must be a Scheduler, Colocated, Disaggregated, PrefillOnly or "
                "DecodeOnly"
            )
    checks.whether("itl", itl)
    if not isinstance(step_log, Sequence | np.ndarray):
        raise ValueError(f"step_log={step_log!r}: must be a list of places of systems")
    for place in step_log:
        if not isinstance(place, int | np.integer) or not 0 <= place < len(systems):
            raise ValueError(f"step_log={place!r}: must be places of systems, 0 to {len(systems) - 1}")
    queues = Queues(systems)
    first = first_stages(systems, queues)
    monitors = EarlyStopMonitors(early_stop, systems, queues) if early_stop else None
    ran = run_stages(first, step_log, itl=itl, watch=monitors)
    outcome = monitors.outcome() if monitors else EarlyStopOutcome.none_stopped(len(systems))
    results = collected(systems, queues, first, ran, step_log=step_log, itl=itl, without=outcome.stopped)
    results.early_stop = None if early_stop is None else outcome
    results.beyond_measured = beyond_measured(systems, results)
    return results


def first_stages(systems: Sequence[System], queues: Queues) -> list[Stage]:
    """The stage that each system's requests meet first."""
    stages = []
    for i, system in enumerate(systems):
        stage = system.stage(system.roles[0], queues.queues[queues.of_system[i]])
        if system.workload.concurrency is not None:
            stage = replace(stage, clients=system.workload.concurrency, think_s=system.workload.think_time_s)
        stages.append(stage if stage.rate == queues.rate[i] else replace(stage, rate=queues.rate[i]))
    return stages


def collected(
    systems: Sequence[System],
    queues: Queues,
    first: Sequence[Stage],
    ran: StageResults,
    *,
    step_log: Sequence[int] = (),
    itl: bool = False,
    without: npt.NDArray[np.bool_],
) -> SystemResults:
    """What came out of systems whose first stages `ran`, `without` those [C] that were stopped; runs their second
    stages."""
    results = queues.empty_results()
    roles = [system.roles for system in systems]
    if itl:
        results.itl_max_s, results.itl_counts = np.broadcast_to(np.nan, results.finish_s.shape), ran.itl_counts
    _keep(results, ran, np.arange(len(systems)), queues)
    note_arrivals(results, ran, systems, queues)
    results.num_blocks[:] = [_blocks(stage) for stage in first]
    for i in ran.logs:
        results.step_logs[i] = _log(ran.logs[i], len(roles[i]), 0)
    facts = [_facts(ran, first, [role[0] for role in roles], np.arange(len(systems)))]
    again = np.array([i for i, role in enumerate(roles) if len(role) > 1], np.int64)
    if again.size:
        facts.append(_second_stage(systems, again, results, queues, ran, step_log, itl))
    results.instances = _joined(facts)
    if results.itl_max_s is not None:
        one = (results.output_tokens == 1) & ~np.isnan(results.finish_s)
        results.itl_max_s = np.where(one, 0, results.itl_max_s)
    whole = ~without
    unserved = np.isnan(results.first_token_s[whole]).sum() - results.rejected[whole].sum()
    decoding = whole & np.array([role[-1] != "prefill" for role in roles], np.bool_)
    unserved += (np.isnan(results.finish_s) & ~np.isnan(results.first_token_s))[decoding].sum()
    padding = (results.finish_s.shape[1] - results.n_requests[whole]).sum()
    if unserved != padding:
        raise RuntimeError(f"the engine left {unserved - padding} requests without an end")
    return results


def _keep(results: SystemResults, ran: StageResults, systems: Ints, queues: Queues) -> None:
    """Write the outcome of the first stages into `results`."""
    names = {name: name for name in ("first_token_s", "finish_s", "admitted_s", "preemptions", "cached_tokens")}
    if results.itl_max_s is not None:
        names["itl_max_s"] = "itl_max_s"
    for name, source in names.items():
        rows = getattr(ran, source)
        if queues.in_order and rows.shape == results.finish_s.shape and not getattr(results, name).flags.writeable:
            setattr(results, name, rows)
            continue
        if not getattr(results, name).flags.writeable:
            setattr(results, name, getattr(results, name).copy())
        for which, queue in enumerate(queues.queues):
            here = (queues.of_system == which).nonzero()[0]
            getattr(results, name)[here[:, None], queue.positions] = rows[here, : len(queue)]
    _count(results, ran, systems)


def _count(results: SystemResults, ran: StageResults, systems: Ints) -> None:
    """Put the counters of a stage to those of the stages before it."""
    for counter, values in ran.totals.rows():
        counted = results.counters.setdefault(counter.name, np.zeros(len(results.steps)))
        counted[systems] = values + (counted[systems] if counter.of_stages == "sum" else 0)
        named = getattr(results, counter.name, None)
        if named is not None:
            named[systems] = counted[systems].astype(named.dtype)
    results.batch_steps[systems] = ran.totals.steps.astype(np.int64)


def _second_stage(
    systems: Sequence[System],
    chosen: Ints,
    results: SystemResults,
    queues: Queues,
    before: StageResults,
    step_log: Sequence[int],
    itl: bool,
) -> InstanceFacts:
    """Send what was prefilled over the link to the decode instances of the systems `chosen`."""
    for name in ("finish_s", "kv_ready_s", "preemptions", "itl_max_s"):
        if getattr(results, name) is not None and not getattr(results, name).flags.writeable:
            setattr(results, name, getattr(results, name).copy())
    stages = []
    for i in chosen.tolist():
        system, queue = systems[i], queues.queues[queues.of_system[i]]
        first = before.first_token_s[i, : len(queue)]
        ready = first + system.transfer_s(queue.prompt_tokens)
        one = queue.output_tokens == 1
        results.finish_s[i, queue.positions] = np.where(one, first, np.nan)
        # Stable: of several at one time those of the earlier request, and so in order of their batch.
        order = np.argsort(ready, kind="stable")
        if system.skips_one_token:
            order = order[~one[order]]
        positions = queue.positions[order]
        results.kv_ready_s[i, positions] = ready[order]
        # A queue for each system: lengths and places are below 2**31, and half as large.
        prompt, output, place = (
            values[order].astype(np.int32) for values in (queue.prompt_tokens, queue.output_tokens, queue.positions)
        )
        decode = Queue(ready[order], prompt, output, place, first[order])
        stages.append(system.stage("decode", decode))
    logged = [at for at, i in enumerate(chosen.tolist()) if i in step_log]
    ran = run_stages(stages, logged, itl=itl)
    for row, i in enumerate(chosen.tolist()):
        queue = stages[row].queue
        results.finish_s[i, queue.positions] = ran.finish_s[row, : len(queue)]
        if results.itl_max_s is not None and results.itl_counts is not None:
            results.itl_max_s[i, queue.positions] = ran.itl_max_s[row, : len(queue)]
            results.itl_counts[i] = ran.itl_counts[row]
        results.preemptions[i, queue.positions] = ran.preemptions[row, : len(queue)]
        results.num_blocks[i] = _blocks(stages[row])
    _count(results, ran, chosen)
    for row, i in enumerate(chosen.tolist()):
        if row in ran.logs:
            results.step_logs[i] = _merged([results.step_logs[i], _log(ran.logs[row], 2, 1)])
    return _facts(ran, stages, ["decode"] * chosen.size, chosen)


def _blocks(stage: Stage) -> float:
    return np.nan if stage.num_blocks is None else float(min(stage.num_blocks, UNLIMITED_TOKENS))


def _facts(ran: StageResults, stages: Sequence[Stage], roles: list[str], systems: Ints) -> InstanceFacts:
    """Facts of the instances from those of their lanes; `stages` by stage, `roles` and `systems` alike."""
    instances = np.array([stage.instances for stage in stages], np.int64)
    lanes = np.array([stage.lanes for stage in stages], np.int64)
    stage = np.repeat(np.arange(len(stages)), instances)
    begins = np.cumsum(instances) - instances
    place = begins[ran.lane_stage] + ran.lane_instance

    def summed(values: npt.NDArray[Any]) -> Floats:
        return np.bincount(place, values, stage.size).astype(np.float64)

    return InstanceFacts(
        system=systems[stage],
        role=np.array(roles, np.str_)[stage],
        instance=np.arange(stage.size) - begins[stage],
        requests=summed(ran.lane_requests).astype(np.int64),
        streams=lanes[stage],
        steps=summed(ran.lane_totals.steps).astype(np.int64),
        busy_s=summed(ran.lane_totals.busy_s),
    )


def _joined(facts: list[InstanceFacts]) -> InstanceFacts:
    """Facts of both stages, by system."""
    system = np.concatenate([fact.system for fact in facts])
    order = np.argsort(system, kind="stable")
    columns = {
        name: np.concatenate([getattr(fact, name) for fact in facts])[order]
        for name in ("role", "instance", "requests", "streams", "steps", "busy_s")
    }
    return InstanceFacts(system=system[order], **columns)


def _log(
    logs: list[tuple[int, int, dict[str, npt.NDArray[Any]]]], roles: int, role: int
) -> dict[str, npt.NDArray[Any]]:
    """The steps of all lanes of a stage, lane after lane."""
    parts = []
    for instance, _, columns in logs:
        size = columns["start_s"].size
        more = {}
        if len(logs) > 1 or roles > 1:
            more["instance"] = np.full(size, instance, np.int64)
        if roles > 1:
            more["role"] = np.full(size, role, np.int64)
        parts.append({**columns, **more})
    return _merged(parts)


def _merged(logs: list[dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([log[name] for log in logs]) for name in logs[0]}
