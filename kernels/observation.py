"""The state of every request, written out: what a step-by-step simulator would hold. For tests and for looking
inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import AnyInts, Floats, Ints
from .batch import Batch
from .params import NO_LIMIT
from .request_rows import blocks_for
from .slots import end_of, request_of

WAITING, PREFILL, DECODE, FINISHED = range(4)


@dataclass
class Observation:
    """Requests of one lane in order of arrival, between two steps; every array [n]."""

    time_s: float
    steps: int
    emitted: Ints  # tokens sent
    blocks: Ints  # blocks held; 0 under unlimited memory
    status: npt.NDArray[np.int8]  # WAITING (not arrived, or in the queue), PREFILL, DECODE, FINISHED
    queue: Ints  # waiting requests that have arrived, the head first


def observe(batch: Batch, lane: int) -> Observation | None:
    """What lane `lane` (as given), which no router sends requests, looks like now; None once it has left the batch."""
    p, clock, waiting = batch.params, batch.clock, batch.queue
    place = (p.lane == lane).nonzero()[0]
    if not place.size:
        return None
    index = int(place[0])
    n, size, out = int(p.n[index]), p.block_size_f[index : index + 1], int(p.out[index])
    arrival, prompt, total = _requests(batch, index)
    emitted, blocks = np.zeros(n), np.zeros(n)
    status = np.full(n, WAITING, np.int8)

    def of_places(places: AnyInts) -> Ints:
        """Requests at places of the lane's row. [*]"""
        requests: Ints = batch.cells(np.full(places.size, index), places.astype(np.int64)) - out
        return requests

    if batch.any_priority:
        emitted[:] = batch.times.sent[out : out + n]
    finished = ~np.isnan(batch.times.finish_s[out : out + n])
    status[finished] = FINISHED
    emitted[finished] = (total - prompt)[finished]

    if batch.listed:
        running, number = batch.running_list, int(batch.running_list.size[index])
        listed = of_places(running.place[index, :number])
        status[listed] = np.where(running.is_decoding[index, :number], DECODE, PREFILL)
        emitted[listed] = running.tokens[index, :number] - prompt[listed]
        blocks[listed] = running.held[index, :number]
    else:
        slots = batch.decodes.slots[index, 1 : 1 + int(batch.decodes.decoding[index])]
        decoding = of_places(request_of(slots))
        status[decoding] = DECODE
        emitted[decoding] = total[decoding] - prompt[decoding] - (end_of(slots) - clock.tick[index])
        # A decoding request grows at the beginning of a step, for the token that the last step emitted.
        blocks[decoding] = blocks_for(prompt[decoding] + emitted[decoding] - 1, size)

    first, top = int(waiting.preempted_waiting[index]), int(waiting.preempted_size[index])
    preempted = of_places(waiting.preempted_request[index, :top])
    emitted[preempted] = waiting.preempted_tokens[index, :top] - prompt[preempted]
    head = int(waiting.head[index])
    fresh = of_places(np.arange(batch.prefills.first_prefill[index], head))
    for prefilling in () if batch.listed else (preempted[first:], fresh):
        status[prefilling] = PREFILL
        blocks[prefilling] = blocks_for(prompt[prefilling] + emitted[prefilling], size)
        if p.takes_chunks[index]:  # of whom one alone is in prefill between steps
            blocks[prefilling] = batch.memory.prefill_blocks[index]

    now = clock.now[index]
    if batch.pool is None:
        behind = np.arange(head, n)
        behind = behind[arrival[behind] <= now]
    else:
        # Preempted before their first token, then those never admitted, whether they are tentative or not.
        kept = of_places(np.arange(head, max(head, int(batch.pool.admitted_end[index]))))
        known = status == WAITING
        known[preempted if batch.listed else of_places(np.arange(batch.pool.admitted_end[index]))] = False
        behind = np.concatenate([kept, batch.pool.served(index, (known & (arrival <= now)).nonzero()[0], now)])
    queue = np.concatenate([preempted[:first][::-1], behind])
    if p.num_blocks[index] == NO_LIMIT:
        blocks[:] = 0
    return Observation(
        float(now),
        int(clock.tick[index] + clock.prefill_steps[index]),
        emitted.astype(np.int64),
        blocks.astype(np.int64),
        status,
        queue.astype(np.int64),
    )


def _requests(batch: Batch, index: int) -> tuple[Floats, Floats, Floats]:
    """Arrival, prompt and prompt + output of the requests of a lane, in order of arrival. [n]"""
    p, r, n = batch.params, batch.requests, int(batch.params.n[index])
    if batch.pool is None:
        at = slice(int(p.row[index]), int(p.row[index]) + n)
        return r.arrival[at] / p.rate[index], r.prompt[at], r.total[at]
    source, begin = batch.pool.source, int(batch.pool.source_row[index])
    at = slice(begin, begin + n)
    return source.arrivals[at] / batch.pool.speed[index], source.prompts[at], source.totals[at]
