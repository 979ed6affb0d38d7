"""Requests that begin to decode, from whichever phase."""

from __future__ import annotations

import numpy as np

from . import itl
from .arrays import ONE, Floats, Ints
from .batch import Batch


def start_decoding(
    batch: Batch, lanes: Ints, requests: Ints, processed: Floats, order: Ints, *, emits: bool = True
) -> None:
    """Put requests whose prefill of `processed` tokens ended, and who emitted one token, into slots behind the decoding
    ones. The caller starts them in `decodes`, and sorts the lanes.

    `order` is 0 for a lane's first request, 1 for its second, ...; `emits`: the token came with this very step. All
    [n].
    """
    tick = batch.clock.tick[lanes]
    end = tick - processed + batch.requests.total[batch.params.row[lanes] + requests] - ONE
    batch.decodes.put(lanes, order, requests, end)
    if batch.keeps_itl:
        itl.start(batch, lanes, batch.cells(lanes, requests), emits)
    if batch.paged:
        batch.memory.start(lanes, tick, processed)


def start_with_kv(batch: Batch, lanes: Ints, requests: Ints, prompt: Floats, order: Ints) -> Floats:
    """Requests that got their first token earlier decode from now on; how many of each lane, [L]. Others [n]."""
    start_decoding(batch, lanes, requests, prompt, order, emits=False)
    width = batch.params.n.size
    number = np.bincount(lanes, minlength=width).astype(np.float64)
    batch.decodes.start(number, np.bincount(lanes, prompt + ONE, width))
    batch.decodes.sort(number.nonzero()[0])
    return number
