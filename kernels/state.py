"""What the phases read and write: traffic (shared), parameters and state of the lanes, outcomes of the requests.

Counters are float64 (exact below 2**53 and free of casts in the time formulas), indices are int64. Requests are known
by their place in the order of service, (arrival, rid); a place behind the last request holds the sentinels named below.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

NO_LIMIT = 2.0**52
"""Token budget, or blocks, of a lane without a limit: finite, so that what is left of it can be compared."""
NOTHING_LEFT = float("inf")
"""Prompt tokens left of a prefill that does not exist: more than any budget."""
NO_END = float(np.iinfo(np.int32).max)
"""Tick at which a request that does not exist finishes: a lane takes fewer steps than that."""

# Numbers as arrays, for the phases: with a Python number, an operation on fifty lanes takes twice as long.
ZERO = np.array(0.0)
ONE = np.array(1.0)
HALF = np.array(0.5)
NOTHING = np.array(NOTHING_LEFT)


@dataclass
class Traffic:
    """Requests of the workloads in order of service, and prefix sums over them; read-only, shared by lanes.

    Rows of W workloads (or of W x block sizes) of N + 3 places each, flattened: lanes carry the offset of their row.
    Three places behind the last request, so that the head of an empty queue, and what two requests more would hold, can
    be looked up.
    """

    arrival: Floats  # [W (N+3)] in seconds, before Params.rate; inf behind the last request
    prompt: Floats  # [W (N+3)] prompt tokens
    total: Floats  # [W (N+3)] prompt + output tokens
    prompts_before: Floats  # [W (N+3)] sum of the prompt tokens of earlier requests
    pairs_before: Floats  # [W (N+3)] sum of L (L + 1) / 2 over them: attention work of their prefills, in token pairs
    blocks_before: Floats  # [W x block sizes (N+3)] sum of the blocks of their prompts
    totals_before: Floats  # [W (N+3)] sum of prompt + output tokens; empty but under reserved memory


@dataclass(frozen=True)
class Rules:
    """What kind of instance the lanes of a batch are; each kind has its order of phases (engine.py).

    decode_beside_prefill  steps that prefill decode too (mixed, chunked); False: they do not (prefill_first). Without
                           reserved memory each lane has its own
    reserve                KV for prompt + output is set aside at admission to a lane; False: blocks, or no limit
    prefills               False: requests come with their KV and their first token (decode instances)
    decodes                False: requests are done with their first token (prefill instances)
    """

    decode_beside_prefill: bool = True
    reserve: bool = False
    prefills: bool = True
    decodes: bool = True


@dataclass
class Params:
    """What does not change while a lane runs; every field [L] unless said."""

    lane: Ints  # the lane's place in the batch as it was given
    row: Ints  # offset of the lane's workload in Traffic
    block_row: Ints  # offset of its workload and block size in Traffic.blocks_before
    out: Ints  # offset of its row in Outcome
    n: Ints  # requests
    rate: Floats  # a request arrives at Traffic.arrival / rate
    block_size: Ints  # 1 under unlimited memory
    size: Floats  # the same
    blocks_per_token: Floats  # 1 / block_size
    blocks_in_doubt: Floats  # by which a decoding request can exceed its share of blocks_per_token
    num_blocks: Floats  # NO_LIMIT under unlimited memory; under reserved memory the capacity in tokens
    ramp: Ints  # where the lane's block size begins in Engine.ramps
    max_running: Floats
    budget: Floats  # tokens a step, NO_LIMIT without one
    max_tokens: Floats  # prompt tokens a prefill batch (prefill_first, prefill instances)
    beside: Floats  # 1 where steps that prefill decode too (Rules.decode_beside_prefill), else 0
    stages: Floats  # pipeline stages: the next prefill batch can start after this share of the last one
    coefficients: Floats  # [L, 9] columns of steptime.StepCoefficients


@dataclass
class State:
    """What changes. A decoding request sits in a slot that knows the tick at which it finishes: the tokens that it
    has emitted are output - (end - tick), so that a decode step writes nothing per request.

    Running requests in order of admission are decoding ones, then requests in prefill, of which only the oldest can be
    part-way. Requests in prefill are first the preempted ones that were admitted again, stack[waiting : size] from the
    top down, then fresh ones, first_prefill <= request < head. The queue is stack[:waiting] from the top down, then
    head, head + 1, ... Only preempted requests that had emitted tokens are on the stack; a fresh one is preempted by
    moving head back.
    """

    now: Floats  # [L] seconds
    tick: Floats  # [L] steps in which decoding requests emit; under mixed and chunked that is every step
    prefill_steps: Floats  # [L] the other steps: those of prefill_first that prefill
    running: Floats  # [L] requests admitted and not finished
    decoding: Floats  # [L] of those, past their prefill
    context: Floats  # [L] tokens in the cache of decoding requests, the newest counted
    next_end: Floats  # [L] smallest end of its slots, NO_END without any
    free: Floats  # [L] free blocks: exact in tight lanes, elsewhere a lower bound that allows for one step's growth
    used: Floats  # [L] blocks of decoding requests, valid in tight lanes
    tight: Bools  # [L] lanes whose blocks must be counted exactly
    peak: Floats  # [L] most blocks held so far
    prefill_blocks: Floats  # [L] blocks of requests in prefill
    head: Ints  # [L] first request never admitted (or preempted before its first token)
    head_arrival: Floats  # [L] arrival of the queue's head: -inf for a preempted one, inf for an empty queue
    head_blocks: Floats  # [L] blocks that the queue's head needs
    prompts_at_head: Floats  # [L] Traffic.prompts_before, pairs_before and blocks_before at head, looked up
    pairs_at_head: Floats
    blocks_at_head: Floats
    first_prefill: Ints  # [L] oldest fresh request in prefill; head without any
    prompts_at_first: Floats  # [L] the same at first_prefill
    pairs_at_first: Floats
    done: Floats  # [L] tokens processed of the oldest prefill
    left: Floats  # [L] tokens left of it, NOTHING_LEFT without one
    stack_size: Ints  # [L] preempted requests that have not come back to decoding
    stack_waiting: Ints  # [L] of those, not admitted again
    preempted_until: Ints  # [L] behind the last request ever preempted in its first prefill
    idle_s: Floats  # [L]
    repeated_tokens: Floats  # [L] prefilled again, or lost half-way: what prefill processed beyond every prompt once
    recomputed_tokens: Floats  # [L] prefilled by requests that had been preempted before
    silent_steps: Floats  # [L] running requests that emit no token in a step, summed over steps
    silent_blocks: Floats  # [L] blocks that they hold, summed over steps
    slots: Ints  # [L, 1 + M] decoding requests, those that finish soonest last (slots.py)
    stack_request: Int32s  # [L, S]
    stack_tokens: Int32s  # [L, S] prompt + emitted tokens: what must be processed again
    gap_counts: Floats  # [L, BINS] gaps between tokens of all requests, by length (gaps.py); [L, 0] unless kept
    growth: npt.NDArray[np.floating]  # [L, B] decoding requests that need a block at ticks = b modulo the block size
    # Of lanes under reserved memory (docs/systems.md). Requests lane_head <= request < joined wait in the lane, those
    # from there to first_prefill got their first token in the step that ends now, and have not joined it yet.
    lane_head: Ints  # [L] first request not admitted to the lane
    joined: Ints  # [L]
    reserved: Floats  # [L] tokens set aside for decoding requests
    head_total: Floats  # [L] prompt + output tokens of the queue's head
    woken: Bools  # [L] idle until this very moment: starts on one request, whoever else has arrived
    resting: Bools  # [L] idle, with all that happened until now handled: another arrival at this moment wakes it
    # Of lanes whose requests come from a router (router.py), one at a time.
    known: Ints  # [L] requests sent to the lane so far; without a router all there will ever be
    horizon: Floats  # [L] when the next request is routed, anywhere in the group: nothing may happen from then on
    batch: Floats  # [L] requests, and their tokens, of the prefill batch that ends now
    batch_tokens: Floats  # [L]
    outstanding_tokens: Floats  # [L] prompt + output tokens of requests that are not finished


@dataclass
class Outcome:
    """Per request, rows of all lanes flattened: it stays in place when lanes leave the batch. NaN: has not happened."""

    first_token_s: Floats  # [L N]
    finish_s: Floats  # [L N]
    admitted_s: Floats  # [L N] beginning of the step that first admitted it
    preemptions: Int32s  # [L N]
    lane: Int32s  # [L N] the lane that serves it, as given, -1 until it is routed; empty without a router
    gap_s: Floats  # [L N] the longest time between two of its tokens so far; empty unless gaps are kept, as the next
    last_token_s: Floats  # [L N] when it emitted its last token, of requests that have begun to decode


def new_state(slots: Ints, stack: int, residues: int, growth_type: type[np.floating], gap_bins: int) -> State:
    """State of lanes that have not begun, with these slots; `gap_bins` 0: gaps are not kept."""
    lanes = slots.shape[0]
    wide: dict[str, Any] = {
        "slots": slots,
        "growth": np.zeros((lanes, residues), growth_type),
        "gap_counts": np.zeros((lanes, gap_bins)),
        "stack_request": np.zeros((lanes, stack), np.int32),
        "stack_tokens": np.zeros((lanes, stack), np.int32),
    }
    dtypes = {"Floats": np.float64, "Ints": np.int64, "Bools": np.bool_}
    narrow: dict[str, Any] = {
        field.name: np.zeros(lanes, dtypes[str(field.type)]) for field in fields(State) if field.name not in wide
    }
    state = State(**wide, **narrow)
    state.next_end[:] = NO_END
    state.left[:] = NOTHING_LEFT
    state.resting[:] = True
    state.horizon[:] = np.inf
    return state


def compact(record: Params | State, keep: Ints) -> None:
    """Slice every array of a record to the lanes `keep`."""
    for field in fields(record):
        setattr(record, field.name, getattr(record, field.name)[keep])
