"""The queues of systems that are simulated together, each once, and their results before anything has happened.

C systems, N requests of the longest workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Ints
from ..measures.instances import InstanceFacts
from ..measures.system_results import SystemResults
from ..workloads.workload import Workload
from .queue import Queue
from .system import System


class Queues:
    """The distinct queues among systems: a workload less the requests that never fit, in order of service."""

    def __init__(self, systems: Sequence[System]) -> None:
        self.systems = systems
        self.queues: list[Queue] = []
        self.workloads: list[Workload] = []
        self.stretches: list[float] = []
        self.of_system = np.zeros(len(systems), np.int64)
        self.rate = np.ones(len(systems))
        known: dict[tuple[Any, ...], int] = {}
        facts: dict[int, tuple[Ints, int, bool]] = {}
        for i, system in enumerate(systems):
            workload, key = system.workload, id(system.workload)
            if key not in facts:
                needed = workload.prompt_tokens + workload.output_tokens - 1
                facts[key] = needed, int(needed.max(initial=0)), bool((np.diff(workload.arrival_s) >= 0).all())
            needed, most, ordered = facts[key]
            limit = system.capacity_tokens if system.capacity_tokens < most else np.inf
            skips = system.skips_one_token and system.roles[0] == "decode"
            # Dividing by a rate can make two times equal: requests that are out of order are sorted after it.
            stretch, self.rate[i] = (1.0, system.rate) if ordered else (system.rate, 1.0)
            if (key, limit, stretch, skips) not in known:
                known[key, limit, stretch, skips] = len(self.queues)
                arrival = workload.arrival_s / stretch
                kept = ((needed <= limit) & ~(skips & (workload.output_tokens == 1))).nonzero()[0]
                positions = kept[np.argsort(arrival[kept], kind="stable")]
                self.workloads.append(workload)
                self.stretches.append(stretch)
                self.queues.append(
                    Queue(
                        arrival[positions],
                        workload.prompt_tokens[positions],
                        workload.output_tokens[positions],
                        positions,
                        texts=None if workload.texts is None else workload.texts.part(positions),
                        priority=None if workload.priority is None else workload.priority[positions],
                    )
                )
            self.of_system[i] = known[key, limit, stretch, skips]
        self.in_order = all(queue.in_order for queue in self.queues)

    def empty_results(self) -> SystemResults:
        """Results of systems in which nothing has happened, but for requests that need no instance."""
        systems = self.systems
        count = np.array([len(system.workload) for system in systems], np.int64)
        width = int(count.max(initial=0))
        shape = (len(systems), width)

        def rows(values: list[npt.NDArray[Any]], fill: Any) -> npt.NDArray[Any]:
            out = np.full((len(values), width), fill)
            for row, value in zip(out, values, strict=True):
                row[: len(value)] = value
            return np.broadcast_to(out, shape) if len(values) == 1 else out[self.of_system]

        def zeros() -> Ints:
            return np.zeros(len(systems), np.int64)

        nan = np.broadcast_to(np.nan, shape)
        rates = np.array([system.rate for system in systems])
        arrival = rows([w.arrival_s for w in self.workloads], np.nan) / rates[:, None] if systems else np.zeros(shape)
        output = rows([w.output_tokens for w in self.workloads], 0)
        left_out = rows(
            [
                np.isin(np.arange(len(w)), q.positions, invert=True)
                for w, q in zip(self.workloads, self.queues, strict=True)
            ],
            False,
        )
        skips = np.array([s.skips_one_token and s.roles[0] == "decode" for s in systems], np.bool_)
        first = nan
        if skips.any():
            prompt = rows([w.prompt_tokens for w in self.workloads], 0)
            fits = prompt <= np.array([system.capacity_tokens for system in systems])[:, None]
            done = left_out & (output == 1) & skips[:, None] & fits
            left_out = left_out & ~done
            first = np.where(done, arrival, np.nan)
        return SystemResults(
            n_requests=count,
            arrival_s=arrival,
            prompt_tokens=rows([w.prompt_tokens for w in self.workloads], 0),
            output_tokens=output,
            first_token_s=first,
            finish_s=first.copy() if skips.any() else nan,
            kv_ready_s=nan,
            admitted_s=nan,
            preemptions=np.broadcast_to(np.int32(0), shape),
            cached_tokens=np.broadcast_to(np.int32(0), shape),
            rejected=left_out,
            steps=zeros(),
            batch_steps=zeros(),
            prefill_tokens=zeros(),
            recomputed_tokens=zeros(),
            peak_blocks=zeros(),
            num_blocks=np.full(len(systems), np.nan),
            running_steps=np.zeros(len(systems)),
            block_steps=np.zeros(len(systems)),
            busy_s=np.zeros(len(systems)),
            outside_s=np.array([system.outside_s for system in systems], np.float64),
            instances=InstanceFacts(zeros(), np.zeros(0, np.str_), zeros(), zeros(), zeros(), zeros(), np.zeros(0)),
        )
