"""The state of every request, written out: what a step-by-step simulator would hold. For tests and for looking
inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import blocks_for
from .slots import end_of, request_of
from .state import NO_LIMIT, Ints

if TYPE_CHECKING:
    from .engine import Engine

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


def observe(engine: Engine, lane: int) -> Observation | None:
    """What lane `lane` (as given) looks like now; None once it has left the batch."""
    p, s, t = engine.params, engine.state, engine.traffic
    place = (p.lane == lane).nonzero()[0]
    if not place.size:
        return None
    index = int(place[0])
    n, size = int(p.n[index]), p.size[index : index + 1]
    requests = slice(int(p.row[index]), int(p.row[index]) + n)
    prompt, total = t.prompt[requests], t.total[requests]
    out = slice(int(p.out[index]), int(p.out[index]) + n)
    emitted, blocks = np.zeros(n), np.zeros(n)
    status = np.full(n, WAITING, np.int8)

    finished = ~np.isnan(engine.outcome.finish_s[out])
    status[finished] = FINISHED
    emitted[finished] = (total - prompt)[finished]

    slots = s.slots[index, 1 : 1 + int(s.decoding[index])]
    decoding = request_of(slots)
    status[decoding] = DECODE
    emitted[decoding] = total[decoding] - prompt[decoding] - (end_of(slots) - s.tick[index])
    # A decoding request grows at the beginning of a step, for the token that the last step emitted.
    blocks[decoding] = blocks_for(prompt[decoding] + emitted[decoding] - 1, size)

    waiting, top = int(s.stack_waiting[index]), int(s.stack_size[index])
    stack = s.stack_request[index, :top]
    emitted[stack] = s.stack_tokens[index, :top] - prompt[stack]
    again = stack[waiting:]
    fresh = np.arange(s.first_prefill[index], s.head[index])
    for prefilling in (again, fresh):
        status[prefilling] = PREFILL
        blocks[prefilling] = blocks_for(prompt[prefilling] + emitted[prefilling], size)

    arrived = np.arange(s.head[index], n)
    arrived = arrived[t.arrival[requests][arrived] / p.rate[index] <= s.now[index]]
    queue = np.concatenate([stack[:waiting][::-1], arrived]).astype(np.int64)
    if p.num_blocks[index] == NO_LIMIT:
        blocks[:] = 0
    return Observation(
        float(s.now[index]),
        int(s.tick[index] + s.prefill_steps[index]),
        emitted.astype(np.int64),
        blocks.astype(np.int64),
        status,
        queue,
    )
