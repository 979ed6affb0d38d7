"""Steps written to the log: a prefill step as it is, a leap step by step."""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats
from .batch import Batch
from .params import NO_LIMIT
from .request_rows import blocks_for
from .steplog import StepLog


def log_prefill_step(
    batch: Batch, log: StepLog, active: Bools, end: Floats, emitted: Floats, tokens: Floats, prefill_blocks: Floats
) -> None:
    """Called before the state moves on. All [L]; lanes that are not active take no step."""
    p, clock, decodes = batch.params, batch.clock, batch.decodes
    lane = (log.wanted[p.lane] & active).nonzero()[0]
    if not lane.size:
        return
    blocks = prefill_blocks[lane]
    if batch.paged:
        tick = clock.tick[lane].astype(np.int64)
        blocks = blocks + batch.memory.held(lane, decodes.context[lane], tick)
        blocks = blocks + batch.memory.demand(lane, tick) * p.mixes_prefill[lane]
        blocks = np.where(p.num_blocks[lane] < NO_LIMIT, blocks, 0)
    elif batch.reserve:
        blocks = batch.reserved_memory.reserved[lane]
    columns = (clock.now[lane], end[lane], _running(batch)[lane], emitted[lane], tokens[lane], blocks)
    log.write(p.lane[lane], columns)


def log_leap(
    batch: Batch, log: StepLog, steps: Floats, first_step_s: Floats, half_slope_s: Floats, piece: Floats | float
) -> None:
    """Called before the state moves on. All [L]."""
    p, clock, decodes = batch.params, batch.clock, batch.decodes
    lanes = (log.wanted[p.lane] & (steps > 0)).nonzero()[0]
    if not lanes.size:
        return
    count = steps[lanes].astype(np.int64)
    lane = np.repeat(lanes, count)
    begins = np.repeat(np.cumsum(count) - count, count)
    step = (np.arange(lane.size) - begins).astype(np.float64)
    now, first, half = clock.now[lane], first_step_s[lane], half_slope_s[lane]
    begin = now + step * (first + half * (step - 1))
    end = now + (step + 1) * (first + half * step)
    tick = clock.tick[lane].astype(np.int64)
    blocks = np.zeros(lane.size)
    if batch.paged:
        asked = batch.memory.demand(lane, tick + step.astype(np.int64))
        grown = np.cumsum(asked)
        in_prefill = batch.memory.prefill_blocks[lane]
        if batch.any_chunks:
            tokens = np.broadcast_to(piece, steps.shape)[lane]
            done = batch.prefills.prefill_done[lane] + (step + 1) * tokens
            grows = p.takes_chunks[lane] & (tokens > 0)
            in_prefill = np.where(grows, blocks_for(done, p.block_size_f[lane]), in_prefill)
        held = batch.memory.held(lane, decodes.context[lane], tick) + in_prefill
        blocks = held + grown - (grown - asked)[begins]
        blocks = np.where(p.num_blocks[lane] < NO_LIMIT, blocks, 0)
    elif batch.reserve:
        blocks = batch.reserved_memory.reserved[lane]
    tokens = decodes.decoding[lane] + np.broadcast_to(piece, steps.shape)[lane]
    log.write(p.lane[lane], (begin, end, _running(batch)[lane], decodes.decoding[lane], tokens, blocks))


def _running(batch: Batch) -> Floats:
    """Requests that decode or are in prefill. [L]"""
    decodes = batch.decodes
    if not batch.reserve:
        return decodes.running
    if not batch.rules.prefills:
        return decodes.decoding
    return decodes.decoding + (batch.queue.head - batch.prefills.first_prefill)
