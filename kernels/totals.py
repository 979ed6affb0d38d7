"""The counters of lanes that are done: what the requests alone decide, and what the run added to it."""

from __future__ import annotations

import numpy as np

from .arrays import Floats, Ints
from .batch import Batch
from .counters import COUNTERS
from .params import NO_LIMIT
from .ranges import spread

_AT_A_TIME = 2**15  # requests whose sums are taken together


def totals_of(batch: Batch, lanes: Ints) -> dict[str, Floats]:
    """Every counter of counters.COUNTERS, of lanes whose run is over, by name: what is written here, else what phases
    have counted. Each [n]."""
    p, clock, counts = batch.params, batch.clock, batch.counts
    if batch.listed:
        return _of_running_list(batch, lanes)
    counted = (p.num_blocks[lanes] < NO_LIMIT) & batch.rules.decodes
    peak = batch.reserved_memory.peak_reserved if batch.reserve else batch.memory.peak
    tokens, emitted, blocks = _without_preemption(batch, lanes)
    steps = clock.tick[lanes] + clock.prefill_steps[lanes]
    values = {
        "steps": steps,
        "prefill_tokens": tokens + counts.repeated_tokens[lanes],
        "peak_blocks": np.where(counted, peak[lanes], 0),
        "running_steps": emitted + counts.non_emitting_request_steps[lanes],
        "block_steps": np.where(counted, blocks + counts.non_emitting_block_steps[lanes], 0),
        "busy_s": np.where(steps > 0, clock.now[lanes] - clock.idle_s[lanes], 0),
    }
    for counter in COUNTERS:
        if counter.name not in values:
            values[counter.name] = getattr(counts, counter.name)[lanes]
    return values


def _of_running_list(batch: Batch, lanes: Ints) -> dict[str, Floats]:
    """The same where all is counted as it goes."""
    clock, running = batch.clock, batch.running_list
    counted = batch.params.num_blocks[lanes] < NO_LIMIT
    return {
        "steps": clock.tick[lanes],
        "prefill_tokens": running.prefill_tokens[lanes],
        "recomputed_tokens": batch.counts.recomputed_tokens[lanes],
        "peak_blocks": np.where(counted, running.most_held[lanes], 0),
        "running_steps": running.running_steps[lanes],
        "block_steps": np.where(counted, running.block_steps[lanes], 0),
        "busy_s": clock.now[lanes] - clock.idle_s[lanes],
    }


def _without_preemption(batch: Batch, lanes: Ints) -> Floats:
    """Sums that only the requests decide: prompt tokens, tokens emitted, and blocks held by requests in the steps
    that emit their tokens: ceil(t / block_size) with t tokens before, t = prompt ... prompt + output - 1. A
    preempted request emits each token once all the same, from as many tokens. [3, n]"""
    p = batch.params
    rows = np.stack([p.row[lanes], p.block_size[lanes], batch.inflow.routed[lanes]])
    queues, which = np.unique(rows, axis=1, return_inverse=True)
    sums = np.zeros((3, queues.shape[1]))
    # Some requests at a time: what is computed of them is larger than what is kept.
    part = np.cumsum(queues[2]) // _AT_A_TIME
    for number in range(int(part.max(initial=0)) + 1):
        chosen = (part == number).nonzero()[0]
        sums[:, chosen] = _sums(batch, *queues[:, chosen])
    per_lane: Floats = sums[:, which.ravel()]
    return per_lane


def _sums(batch: Batch, row: Ints, block_size: Ints, number: Ints) -> Floats:
    """The same of queues of `number` requests from `row` on. [3, n]"""
    r, rules, count = batch.requests, batch.rules, row.size
    queue, place, _ = spread(row, number)
    prompt, total, size = r.prompt[place], r.total[place], block_size[queue]
    tokens = np.bincount(queue, prompt * rules.prefills, count)
    sent = total - prompt - (not rules.prefills) if rules.decodes else np.ones(queue.size)
    emitted = np.bincount(queue, sent, count)
    held = _ceil_sum(total - 1, size) - _ceil_sum(prompt - rules.prefills, size)
    blocks = np.bincount(queue, held * batch.paged, count)
    sums: Floats = np.array([tokens, emitted, blocks], np.float64)
    return sums


def _ceil_sum(tokens: Floats, size: Ints) -> Floats:
    """Sum of ceil(u / size) over u = 1 ... tokens."""
    turns: Floats = np.floor(tokens / size)
    return size * turns * (turns + 1) / 2 + (tokens - turns * size) * (turns + 1)
