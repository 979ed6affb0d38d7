"""When requests of closed loops arrived, which their answers decide (docs/systems.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..measures.system_results import SystemResults
from .queues import Queues
from .stages import StageResults
from .system import System


def note_arrivals(results: SystemResults, ran: StageResults, systems: Sequence[System], queues: Queues) -> None:
    """Write into `results` when requests arrived, in systems whose clients wait for answers.

    A refused request arrives with the one that its client sends after it; behind the last served one, when the first
    client is free.
    """
    if not ran.arrivals:
        return
    results.arrival_s = results.arrival_s.copy()
    for i, sent in ran.arrivals.items():
        workload, queue = systems[i].workload, queues.queues[queues.of_system[i]]
        assert workload.concurrency is not None
        free = np.concatenate(
            [
                np.zeros(workload.concurrency),
                results.finish_s[i, queue.positions] + workload.think_time_s,
            ]
        )
        after = np.partition(free, sent.size)[sent.size]
        following = np.searchsorted(queue.positions, np.arange(len(workload)))
        results.arrival_s[i, : len(workload)] = np.append(sent, after)[following]
