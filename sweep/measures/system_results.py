"""What simulating many systems together gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Bools, Floats, Ints
from .instances import InstanceFacts
from .result import Result

StepColumns = dict[str, npt.NDArray[Any]]
"""The steps of a system, a row a step: start_s, end_s (seconds), running (requests), emitted, tokens (processed),
blocks_used; with several instances also instance, and with prefill and decode instances role (0: prefill, 1: decode).
"""


@dataclass
class EarlyStopOutcome:
    """Which of C systems were stopped once it was certain whether they meet their SLOs, and what is known of them.

    Attributes
    ----------
    stopped
        bool [C], whether it was. What else was simulated of a stopped system has no meaning; what follows is NaN for
        the others.
    requests
        float64 [C], how many requests, the first of its window, decided it.
    attainment
        float64 [C], share of those that meet the SLOs; the lowest one where each SLO counts on its own.
    low, high
        float64 [C], the share of all requests in the window if all others missed, or met, the SLOs.
    """

    stopped: Bools
    requests: Floats
    attainment: Floats
    low: Floats
    high: Floats

    @classmethod
    def none_stopped(cls, systems: int) -> EarlyStopOutcome:
        """As long as nothing is certain."""
        return cls(np.zeros(systems, np.bool_), *(np.full(systems, np.nan) for _ in range(4)))


@dataclass
class SystemResults:
    """Outcomes of C systems; request i of one is request i of its workload.

    N requests of the longest workload; places behind a shorter one are padding. Times are in seconds, NaN for what did
    not happen (a rejected request; padding). Arrays may be read-only views. Counts are of all instances of a system.
    Under reserved memory blocks are tokens. A decode instance has a stream in each pipeline stage, others have one.

    Attributes
    ----------
    n_requests
        int64 [C].
    arrival_s
        float64 [C, N].
    prompt_tokens, output_tokens
        int64 [C, N], 0 in padding.
    first_token_s, finish_s
        float64 [C, N].
    kv_ready_s
        float64 [C, N], when the KV reached the decode instance; NaN where nothing is transferred.
    admitted_s
        float64 [C, N], beginning of the step that first took up the request.
    preemptions
        int32 [C, N].
    cached_tokens
        int32 [C, N], that the first admission found in a prefix cache.
    rejected
        bool [C, N].
    steps
        int64 [C].
    batch_steps
        int64 [C], steps that running_steps and block_steps are sums over: not those of prefill instances that only hand
        over.
    prefill_tokens, recomputed_tokens
        int64 [C].
    peak_blocks
        int64 [C], of any one stream.
    num_blocks
        float64 [C], of a stream; NaN: unlimited memory.
    running_steps
        float64 [C], running requests summed over steps.
    block_steps
        float64 [C], blocks held summed over steps; 0 under unlimited memory.
    busy_s
        float64 [C], seconds inside steps, summed over streams.
    outside_s
        float64 [C], seconds of each request outside the engine before its first token, part of TTFT and of end-to-end
        latency.
    instances
        What each instance did.
    itl_max_s
        float64 [C, N], the longest time between two tokens of a request, 0 with one token. None: not kept.
    itl_counts
        float64 [C, bins], times between tokens of all requests, by length. None: not kept.
    early_stop
        Which systems were stopped early. None: none could be.
    counters
        Every counter of the engine by name, each float64 [C].
    step_logs
        The steps of systems that were asked for, by the place of the system.
    beyond_measured
        What is extrapolated of systems whose steps went beyond what their step times were measured for, by the place of
        the system.
    """

    n_requests: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    first_token_s: Floats
    finish_s: Floats
    kv_ready_s: Floats
    admitted_s: Floats
    preemptions: npt.NDArray[np.int32]
    cached_tokens: npt.NDArray[np.int32]
    rejected: npt.NDArray[np.bool_]
    steps: Ints
    batch_steps: Ints
    prefill_tokens: Ints
    recomputed_tokens: Ints
    peak_blocks: Ints
    num_blocks: Floats
    running_steps: Floats
    block_steps: Floats
    busy_s: Floats
    outside_s: Floats
    instances: InstanceFacts
    itl_max_s: Floats | None = None
    itl_counts: Floats | None = None
    early_stop: EarlyStopOutcome | None = None
    counters: dict[str, Floats] = field(default_factory=dict)
    step_logs: dict[int, StepColumns] = field(default_factory=dict)
    beyond_measured: dict[int, str] = field(default_factory=dict)

    def result(self, system: int) -> Result:
        """The outcome of one system."""
        n = int(self.n_requests[system])
        return Result(
            self.arrival_s[system, :n],
            self.prompt_tokens[system, :n],
            self.output_tokens[system, :n],
            self.first_token_s[system, :n],
            self.finish_s[system, :n],
            kv_ready_s=self.kv_ready_s[system, :n],
            admitted_s=self.admitted_s[system, :n],
            preemptions=self.preemptions[system, :n],
            cached_tokens=self.cached_tokens[system, :n],
            rejected=self.rejected[system, :n],
            steps=int(self.steps[system]),
            prefill_tokens=int(self.prefill_tokens[system]),
            recomputed_tokens=int(self.recomputed_tokens[system]),
            peak_blocks=int(self.peak_blocks[system]),
            running_steps=float(self.running_steps[system]),
            block_steps=float(self.block_steps[system]),
            busy_s=float(self.busy_s[system]),
            outside_s=float(self.outside_s[system]),
            num_blocks=float(self.num_blocks[system]),
            itl_max_s=None if self.itl_max_s is None else self.itl_max_s[system, :n],
            itl_counts=None if self.itl_counts is None else self.itl_counts[system],
            batch_steps=int(self.batch_steps[system]),
            instances=self.instances.of(system),
            counters={name: float(values[system]) for name, values in self.counters.items()},
        )
