"""The state of every request, written out: what a step-by-step simulator would hold. For tests and for looking
inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Ints
from .batch import Batch
from .params import NO_LIMIT
from .request_rows import blocks_for
from .slots import end_of, request_of

WAITING, PREFILL, DECODE, FINISHED = range(4)


@dataclass
class Observation:
    """Requests of one lane in order of service, between two steps; every array [n]."""

    time_s: float
    steps: int
    emitted: Ints  # tokens sent
    blocks: Ints  # blocks held; 0 under unlimited memory
    status: npt.NDArray[np.int8]  # WAITING (not arrived, or in the queue), PREFILL, DECODE, FINISHED
    queue: Ints  # waiting requests that have arrived, the head first


def observe(batch: Batch, lane: int) -> Observation | None:
    """What lane `lane` (as given) looks like now; None once it has left the batch."""
    p, r, clock, waiting = batch.params, batch.requests, batch.clock, batch.queue
    place = (p.lane == lane).nonzero()[0]
    if not place.size:
        return None
    index = int(place[0])
    n, size = int(p.n[index]), p.block_size_f[index : index + 1]
    requests = slice(int(p.row[index]), int(p.row[index]) + n)
    prompt, total = r.prompt[requests], r.total[requests]
    out = slice(int(p.out[index]), int(p.out[index]) + n)
    emitted, blocks = np.zeros(n), np.zeros(n)
    status = np.full(n, WAITING, np.int8)

    finished = ~np.isnan(batch.times.finish_s[out])
    status[finished] = FINISHED
    emitted[finished] = (total - prompt)[finished]

    slots = batch.decodes.slots[index, 1 : 1 + int(batch.decodes.decoding[index])]
    decoding = request_of(slots)
    status[decoding] = DECODE
    emitted[decoding] = total[decoding] - prompt[decoding] - (end_of(slots) - clock.tick[index])
    # A decoding request grows at the beginning of a step, for the token that the last step emitted.
    blocks[decoding] = blocks_for(prompt[decoding] + emitted[decoding] - 1, size)

    first, top = int(waiting.preempted_waiting[index]), int(waiting.preempted_size[index])
    preempted = waiting.preempted_request[index, :top]
    emitted[preempted] = waiting.preempted_tokens[index, :top] - prompt[preempted]
    fresh = np.arange(batch.prefills.first_prefill[index], waiting.head[index])
    for prefilling in (preempted[first:], fresh):
        status[prefilling] = PREFILL
        blocks[prefilling] = blocks_for(prompt[prefilling] + emitted[prefilling], size)

    arrived = np.arange(waiting.head[index], n)
    arrived = arrived[r.arrival[requests][arrived] / p.rate[index] <= clock.now[index]]
    queue = np.concatenate([preempted[:first][::-1], arrived]).astype(np.int64)
    if p.num_blocks[index] == NO_LIMIT:
        blocks[:] = 0
    return Observation(
        float(clock.now[index]),
        int(clock.tick[index] + clock.prefill_steps[index]),
        emitted.astype(np.int64),
        blocks.astype(np.int64),
        status,
        queue,
    )
