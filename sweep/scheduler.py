"""Many schedulers at once: one instance each, with paged or unlimited KV memory, on the seconds clock
(docs/scheduler.md).

`L` is the number of lanes, `N` the number of requests of the longest workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import checks
from .kernels.engine import Engine, new_outcome, prefix_sums
from .kernels.prefill import pairs_of
from .kernels.state import NO_END, NO_LIMIT, Params, Traffic
from .kernels.steplog import StepLog
from .kernels.steptime import StepCoefficients
from .results import Result
from .steps import ConstantStepTime, StepModel
from .workloads import Workload

POLICIES = ("mixed", "chunked", "prefill_first")
MEMORIES = ("paged", "unlimited")
DEFAULT_MAX_TOKENS = 4096
_MOST = int(NO_LIMIT) - 1


@dataclass(frozen=True)
class Lane:
    """One scheduler instance and its traffic: all that decides its outcome.

    policy        mixed: whole prompts run beside decodes; chunked: the same within `token_budget` tokens a step;
                  prefill_first: steps either prefill (at most `max_tokens` tokens, at least one request) or decode
    max_running   most requests that run at a time
    block_size    tokens of a KV block; None: unlimited memory
    num_blocks    KV blocks; None: as many as the step model's KV capacity holds
    token_budget  tokens processed a step, `chunked` only; at least max_running
    max_tokens    tokens of a prefill batch, `prefill_first` only
    rate          arrival = workload.arrival_s / rate

    ValueError names the argument, the value and what is allowed. An option that the policy or the memory does not use
    is an error.
    """

    workload: Workload
    step: StepModel | ConstantStepTime
    policy: str
    max_running: int
    block_size: int | None = None
    num_blocks: int | None = None
    token_budget: int | None = None
    max_tokens: int | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.workload, Workload):
            raise ValueError(f"workload is a {type(self.workload).__name__}: must be a Workload")
        if not isinstance(self.step, StepModel | ConstantStepTime):
            raise ValueError(f"step={self.step!r}: must be a StepModel or a ConstantStepTime")
        if isinstance(self.step, StepModel) and self.step.kv_capacity_tokens() == 0:
            raise ValueError(
                f"step: the weights of {self.step.model.name} do not fit {self.step.n_gpus} x {self.step.chip.name}"
                f" (tp={self.step.tp}, pp={self.step.pp}, mem_reserve={self.step.mem_reserve}): no room for any KV"
            )
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: must be one of {', '.join(POLICIES)}")
        self._keep("max_running", checks.whole("max_running", self.max_running, 1))
        self._keep("rate", checks.positive("rate", self.rate))
        if np.isinf(float(self.workload.arrival_s.max(initial=0.0)) / self.rate):
            raise ValueError(f"rate={self.rate!r}: too small, the last request would never arrive")
        self._check_memory()
        if self.policy == "chunked":
            if self.token_budget is None:
                raise ValueError("token_budget=None: policy 'chunked' needs a token budget")
            self._keep("token_budget", checks.whole("token_budget", self.token_budget, 1))
            if self.token_budget < self.max_running:
                raise ValueError(
                    f"token_budget={self.token_budget!r}: must be at least max_running={self.max_running}, "
                    "as every decoding request takes a token of it"
                )
        elif self.token_budget is not None:
            raise ValueError(f"token_budget={self.token_budget!r}: has no effect under policy {self.policy!r}")
        if self.policy == "prefill_first":
            tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
            self._keep("max_tokens", checks.whole("max_tokens", tokens, 1))
        elif self.max_tokens is not None:
            raise ValueError(f"max_tokens={self.max_tokens!r}: has no effect under policy {self.policy!r}")
        if self._most_steps() >= NO_END:
            raise ValueError(f"workload: could take {self._most_steps()} steps, must be fewer than {NO_END:.0f}")

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _most_steps(self) -> int:
        """More steps than the lane can take without preemptions: each emits a token, or is one of a prompt's pieces."""
        # Under a budget a piece has at least what the most decoding requests leave of it.
        piece = _MOST if self.token_budget is None else min(self.token_budget - self.max_running + 1, _MOST)
        pieces = int(np.sum(-(-self.workload.prompt_tokens // piece)))
        return int(np.sum(self.workload.output_tokens)) + pieces

    def _check_memory(self) -> None:
        if self.block_size is None:
            if self.num_blocks is not None:
                raise ValueError(
                    f"num_blocks={self.num_blocks!r}: has no effect under unlimited memory; give block_size too"
                )
            return
        size = checks.whole("block_size", self.block_size, 1)
        self._keep("block_size", size)
        if self.num_blocks is None:
            if isinstance(self.step, ConstantStepTime):
                raise ValueError("num_blocks=None: must be given, as ConstantStepTime knows no KV capacity")
            blocks = self.step.kv_capacity_tokens() // size
            if blocks < 1:
                raise ValueError(
                    f"block_size={size}: the KV capacity of {self.step.kv_capacity_tokens()} tokens holds no block"
                )
            self._keep("num_blocks", blocks)
        self._keep("num_blocks", checks.whole("num_blocks", self.num_blocks, 1))

    @property
    def capacity_tokens(self) -> float:
        """KV tokens that the blocks hold; inf under unlimited memory."""
        if self.block_size is None or self.num_blocks is None:
            return np.inf
        return float(min(self.block_size * self.num_blocks, _MOST))


@dataclass
class LaneResults:
    """Outcomes of many lanes; request i of a lane is request i of its workload, places behind a shorter workload are
    padding.

    Times are in seconds, NaN for what did not happen (a rejected request; padding). Arrays may be read-only views.
    """

    n_requests: npt.NDArray[np.int64]  # [L]
    arrival_s: npt.NDArray[np.float64]  # [L, N]
    prompt_tokens: npt.NDArray[np.int64]  # [L, N], 0 in padding
    output_tokens: npt.NDArray[np.int64]  # [L, N], 0 in padding
    first_token_s: npt.NDArray[np.float64]  # [L, N]
    finish_s: npt.NDArray[np.float64]  # [L, N]
    admitted_s: npt.NDArray[np.float64]  # [L, N] beginning of the step that first admitted the request
    preemptions: npt.NDArray[np.int32]  # [L, N]
    rejected: npt.NDArray[np.bool_]  # [L, N]
    steps: npt.NDArray[np.int64]  # [L]
    prefill_tokens: npt.NDArray[np.int64]  # [L]
    recomputed_tokens: npt.NDArray[np.int64]  # [L]
    peak_blocks: npt.NDArray[np.int64]  # [L]
    num_blocks: npt.NDArray[np.float64]  # [L] NaN: unlimited memory
    running_steps: npt.NDArray[np.float64]  # [L] running requests summed over steps
    block_steps: npt.NDArray[np.float64]  # [L] blocks held summed over steps; 0 under unlimited memory
    busy_s: npt.NDArray[np.float64]  # [L] seconds inside steps
    step_logs: dict[int, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)

    def result(self, lane: int) -> Result:
        """The outcome of one lane."""
        n = int(self.n_requests[lane])
        return Result(
            self.arrival_s[lane, :n],
            self.prompt_tokens[lane, :n],
            self.output_tokens[lane, :n],
            self.first_token_s[lane, :n],
            self.finish_s[lane, :n],
            admitted_s=self.admitted_s[lane, :n],
            preemptions=self.preemptions[lane, :n],
            rejected=self.rejected[lane, :n],
            steps=int(self.steps[lane]),
            prefill_tokens=int(self.prefill_tokens[lane]),
            recomputed_tokens=int(self.recomputed_tokens[lane]),
            peak_blocks=int(self.peak_blocks[lane]),
            running_steps=float(self.running_steps[lane]),
            block_steps=float(self.block_steps[lane]),
            busy_s=float(self.busy_s[lane]),
            num_blocks=float(self.num_blocks[lane]),
        )


def run_lanes(lanes: Sequence[Lane], *, step_log: Sequence[int] = ()) -> LaneResults:
    """Simulate all lanes together; the outcome of each is what it is alone, to the last bit.

    `step_log` names lanes whose steps are written out: LaneResults.step_logs maps each to columns start_s, end_s,
    running, emitted, tokens, blocks_used with one row a step. Requests that can never fit are rejected.
    """
    for position, lane in enumerate(lanes):
        if not isinstance(lane, Lane):
            raise ValueError(f"lanes[{position}]={lane!r}: must be a Lane")
    for place in step_log:
        if not 0 <= place < len(lanes):
            raise ValueError(f"step_log={place!r}: must be places of lanes, 0 to {len(lanes) - 1}")
    queues = _Queues(lanes)
    results = queues.empty_results(lanes)
    for beside in (True, False):
        group = np.array([i for i, lane in enumerate(lanes) if (lane.policy != "prefill_first") == beside], np.int64)
        if group.size:
            _run_group(lanes, group, queues, results, beside, step_log)
    unserved = (
        np.isnan(results.finish_s).sum() - results.rejected.sum() - (results.finish_s.size - results.n_requests.sum())
    )
    if unserved:
        raise RuntimeError(f"the engine left {unserved} requests without an end")
    return results


def run_scheduler(
    workload: Workload,
    step: StepModel | ConstantStepTime,
    *,
    policy: str,
    max_running: int,
    block_size: int | None = None,
    num_blocks: int | None = None,
    token_budget: int | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    memory: str | None = None,
    on_reject: str = "reject",
) -> Result:
    """One instance with the given batching policy; see Lane for the options, which must all have an effect.

    memory     "paged" or "unlimited"; None: paged if block_size is given, else unlimited
    max_tokens of `prefill_first`; under another policy any value but the default is an error
    on_reject  what to do with requests that can never fit: "reject" leaves them with NaN times, marked `rejected`;
               "error" raises ValueError naming the first of them

    All times are in seconds, arrays [N] in the order of the workload.
    """
    if on_reject not in ("reject", "error"):
        raise ValueError(f"on_reject={on_reject!r}: must be 'reject' or 'error'")
    if memory not in (None, *MEMORIES):
        raise ValueError(f"memory={memory!r}: must be one of {', '.join(MEMORIES)}")
    if memory == "paged" and block_size is None:
        raise ValueError("block_size=None: paged memory needs a block size")
    if memory == "unlimited" and block_size is not None:
        raise ValueError(f"block_size={block_size!r}: has no effect under unlimited memory")
    batch_tokens = None if policy != "prefill_first" and max_tokens == DEFAULT_MAX_TOKENS else max_tokens
    lane = Lane(workload, step, policy, max_running, block_size, num_blocks, token_budget, batch_tokens)
    if on_reject == "error":
        needed = workload.prompt_tokens + workload.output_tokens - 1
        for position in (needed > lane.capacity_tokens).nonzero()[0][:1]:
            raise ValueError(
                f"request {position} can never fit: its cache grows to {needed[position]} tokens, "
                f"num_blocks={lane.num_blocks} of block_size={lane.block_size} hold {lane.capacity_tokens:.0f}"
            )
    return run_lanes([lane]).result(0)


class _Queues:
    """The distinct queues among lanes: a workload less the requests that never fit, in order of service."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.positions: list[npt.NDArray[np.int64]] = []  # of the workload's requests, in order of service
        self.arrivals: list[npt.NDArray[np.float64]] = []
        self.workloads: list[Workload] = []
        self.of_lane = np.zeros(len(lanes), np.int64)
        self.rate = np.ones(len(lanes))
        known: dict[tuple[int, float, float], int] = {}
        facts: dict[int, tuple[npt.NDArray[np.int64], int, bool]] = {}
        for i, lane in enumerate(lanes):
            workload, key = lane.workload, id(lane.workload)
            if key not in facts:
                needed = workload.prompt_tokens + workload.output_tokens - 1
                facts[key] = needed, int(needed.max(initial=0)), bool((np.diff(workload.arrival_s) >= 0).all())
            needed, most, ordered = facts[key]
            limit = lane.capacity_tokens if lane.capacity_tokens < most else np.inf
            # Dividing by a rate can make two times equal: requests that are out of order are sorted after it.
            stretch, self.rate[i] = (1.0, lane.rate) if ordered else (lane.rate, 1.0)
            if (key, limit, stretch) not in known:
                known[key, limit, stretch] = len(self.workloads)
                arrival = workload.arrival_s / stretch
                kept = (needed <= limit).nonzero()[0]
                positions = kept[np.argsort(arrival[kept], kind="stable")]
                self.workloads.append(workload)
                self.positions.append(positions)
                self.arrivals.append(arrival[positions])
            self.of_lane[i] = known[key, limit, stretch]
        # Whether request i is served i-th everywhere.
        self.in_order = all(np.array_equal(p, np.arange(len(p))) for p in self.positions)

    def empty_results(self, lanes: Sequence[Lane]) -> LaneResults:
        """Results of lanes in which nothing has happened yet."""
        count = np.array([len(lane.workload) for lane in lanes], np.int64)
        width = int(count.max(initial=0))
        shape = (len(lanes), width)

        def rows(values: list[npt.NDArray[Any]], fill: Any) -> npt.NDArray[Any]:
            out = np.full((len(values), width), fill)
            for row, value in zip(out, values, strict=True):
                row[: len(value)] = value
            return np.broadcast_to(out, shape) if len(values) == 1 else out[self.of_lane]

        rates = np.array([lane.rate for lane in lanes])
        arrival = rows([w.arrival_s for w in self.workloads], np.nan) / rates[:, None] if lanes else np.zeros(shape)
        rejected = [
            np.isin(np.arange(len(w)), p, invert=True) for w, p in zip(self.workloads, self.positions, strict=True)
        ]
        blocks = [np.nan if lane.num_blocks is None else min(lane.num_blocks, _MOST) for lane in lanes]
        return LaneResults(
            n_requests=count,
            arrival_s=arrival,
            prompt_tokens=rows([w.prompt_tokens for w in self.workloads], 0),
            output_tokens=rows([w.output_tokens for w in self.workloads], 0),
            first_token_s=np.broadcast_to(np.nan, shape),
            finish_s=np.broadcast_to(np.nan, shape),
            admitted_s=np.broadcast_to(np.nan, shape),
            preemptions=np.broadcast_to(np.int32(0), shape),
            rejected=rows(rejected, False),
            steps=np.zeros(len(lanes), np.int64),
            prefill_tokens=np.zeros(len(lanes), np.int64),
            recomputed_tokens=np.zeros(len(lanes), np.int64),
            peak_blocks=np.zeros(len(lanes), np.int64),
            num_blocks=np.array(blocks, np.float64),
            running_steps=np.zeros(len(lanes)),
            block_steps=np.zeros(len(lanes)),
            busy_s=np.zeros(len(lanes)),
        )


def _run_group(
    lanes: Sequence[Lane],
    group: npt.NDArray[np.int64],
    queues: _Queues,
    results: LaneResults,
    beside: bool,
    step_log: Sequence[int],
) -> None:
    """Run the lanes `group`, which share an order of phases, and write their outcome into `results`."""
    wanted = np.isin(group, np.asarray(list(step_log), np.int64))
    log = StepLog(wanted) if wanted.any() else None
    engine = _new_engine([lanes[i] for i in group], queues, group, beside, log)
    width = int(engine.params.n.max(initial=0))
    totals = engine.run()
    for name in (
        "steps",
        "prefill_tokens",
        "recomputed_tokens",
        "peak_blocks",
        "running_steps",
        "block_steps",
        "busy_s",
    ):
        getattr(results, name)[group] = getattr(totals, name)
    for name in ("first_token_s", "finish_s", "admitted_s", "preemptions"):
        rows = getattr(engine.outcome, name).reshape(group.size, width)
        if queues.in_order and rows.shape == results.finish_s.shape:
            setattr(results, name, rows)  # as it is: a copy would double the memory of a large batch
            continue
        if not getattr(results, name).flags.writeable:
            setattr(results, name, getattr(results, name).copy())
        for which in np.unique(queues.of_lane[group]):
            positions = queues.positions[which]
            here = (queues.of_lane[group] == which).nonzero()[0]
            getattr(results, name)[group[here][:, None], positions] = rows[here, : len(positions)]
    if log is not None:
        for place, columns in log.columns().items():
            results.step_logs[int(group[place])] = columns


def new_engine(lanes: Sequence[Lane]) -> Engine:
    """The engine of lanes that share an order of phases, before its first step; for a look at how it moves."""
    return _new_engine(list(lanes), _Queues(lanes), np.arange(len(lanes)), lanes[0].policy != "prefill_first", None)


def _limits(values: list[int | None]) -> npt.NDArray[np.float64]:
    """Limits as the engine takes them: far beyond what any run holds, one is as good as another."""
    return np.array([NO_LIMIT if value is None else min(value, _MOST) for value in values], np.float64)


def _new_engine(
    lanes: list[Lane], queues: _Queues, group: npt.NDArray[np.int64], beside: bool, log: StepLog | None
) -> Engine:
    used, queue = np.unique(queues.of_lane[group], return_inverse=True)
    counts = np.array([len(queues.positions[which]) for which in used], np.int64)
    width = int(counts.max(initial=0))
    arrival = np.full((used.size, width + 3), np.inf)
    prompt, output = np.zeros((used.size, width + 2)), np.zeros((used.size, width + 2))
    for row, which in enumerate(used):
        positions = queues.positions[which]
        arrival[row, : len(positions)] = queues.arrivals[which]
        prompt[row, : len(positions)] = queues.workloads[which].prompt_tokens[positions]
        output[row, : len(positions)] = queues.workloads[which].output_tokens[positions]
    # A block that holds the longest request is as good as any larger one, and the engine's rows are as wide as a block.
    longest = np.maximum((prompt + output).max(axis=1, initial=1), 1).astype(np.int64)[queue]
    size = np.minimum(longest, [min(lane.block_size or 1, _MOST) for lane in lanes])
    pairs, pair_of_lane = np.unique(np.stack([queue, size]), axis=1, return_inverse=True)
    blocks = np.ceil(prompt[pairs[0]] / pairs[1][:, None])
    last = np.zeros((used.size, 1))
    traffic = Traffic(
        arrival.ravel(),
        np.hstack([prompt, last]).ravel(),
        np.hstack([prompt + output, last]).ravel(),
        prefix_sums(prompt).ravel(),
        prefix_sums(pairs_of(prompt)).ravel(),
        prefix_sums(blocks).ravel(),
    )
    coefficients: dict[StepModel | ConstantStepTime, StepCoefficients] = {}
    for lane in lanes:
        if lane.step not in coefficients:
            coefficients[lane.step] = lane.step.coefficients()
    params = Params(
        lane=np.arange(len(lanes)),
        row=queue * (width + 3),
        block_row=pair_of_lane.ravel() * (width + 3),
        out=np.arange(len(lanes)) * width,
        n=counts[queue],
        rate=queues.rate[group],
        block_size=size,
        size=size.astype(np.float64),
        blocks_per_token=1 / size,
        blocks_in_doubt=1 - 2 / size,
        num_blocks=_limits([lane.num_blocks for lane in lanes]),
        ramp=np.zeros(len(lanes), np.int64),
        max_running=_limits([lane.max_running for lane in lanes]),
        budget=_limits([lane.token_budget for lane in lanes]),
        max_tokens=_limits([lane.max_tokens for lane in lanes]),
        coefficients=np.array([coefficients[lane.step] for lane in lanes]),
    )
    outcome = new_outcome(len(lanes) * width)
    return Engine(traffic, params, outcome, sorted(set(size.tolist())), decode_beside_prefill=beside, log=log)
