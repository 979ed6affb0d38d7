"""Phase *wake*: idle lanes go to the arrival that wakes them."""

from __future__ import annotations

import numpy as np

from .arrays import ZERO
from .batch import Batch


def wake(batch: Batch) -> None:
    """Move idle lanes to their next arrival; note those that have none in `batch.done`."""
    clock, arrival = batch.clock, batch.queue.head_arrival
    idle = batch.decodes.running == ZERO
    if not np.count_nonzero(idle):
        batch.done = None
        return
    done = idle & (arrival == np.inf)
    asleep = idle & (arrival > clock.now) & ~done
    clock.wake(asleep, arrival)
    if batch.reserve:
        clock.note_woken(asleep, idle & ~done)
    batch.done = done
