"""The driver: owns the loop, the lanes that are still running, and what is handed back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import ZERO, Bools, Ints
from .batch import Batch
from .counters import Totals, new_totals
from .phases import PHASES, steps_of
from .totals import totals_of

_LOOK = 32  # loops between two looks of a watch: a look costs about as much as one loop
_STALL = 1000  # loops of the driver without a step in any lane: far more than any rule can take


class Engine:
    """Runs a batch of lanes of one kind.

    Every loop moves every lane by as many steps as it can take without a decision, so lanes are at different steps and
    times. What a loop does is the batch's row of phases.PHASES. No lane looks at another, but through the router, which
    sends each request of a group of lanes to one of them.

    `watch`, if set, is asked every few loops which lanes [L] to stop, with a router whole groups.
    """

    def __init__(self, batch: Batch) -> None:
        lanes = batch.params.n.size
        self.batch = batch
        self.watch: Callable[[Batch], Bools] | None = None
        self.totals = new_totals(lanes, np.nan)
        """Of the lanes that are done, 0 of those that were stopped; NaN elsewhere."""
        self.itl_histograms = np.zeros(batch.counts.itl_counts.shape)
        """Times between tokens of lanes that are done, by length."""
        batch.may_admit = PHASES[batch.rules.kind].may_admit
        self._phases = tuple(step.phase for step in steps_of(batch))
        self._position, self._loops = (0, 0.0), 0

    def run(self) -> Totals:
        """Advance until every lane has served all its requests."""
        while self.advance():
            pass
        return self.totals

    def advance(self) -> bool:
        """One loop over the phases; False when nothing is left to do. Afterwards every lane is between two steps."""
        batch = self.batch
        if self.watch is not None and self._loops % _LOOK == 0:
            self._stop(self.watch(batch))
        if not batch.params.n.size:
            return False
        for phase in self._phases:
            phase(batch)
        if batch.done is not None:
            self._retire(batch.done)
        self._check_progress()
        return True

    def _stop(self, lanes: Bools) -> None:
        """Leave out lanes in the middle of their run; their totals are 0. [L]"""
        if np.count_nonzero(lanes):
            for _, values in self.totals.rows():
                values[self.batch.params.lane[lanes]] = 0
            self.batch.compact(~lanes)

    def _retire(self, done: Bools) -> None:
        """Lanes without work leave the batch, when half of it are. [L]"""
        batch = self.batch
        retiring = done if batch.router is None else batch.router.done(done)
        count = np.count_nonzero(retiring)
        if not count or 2 * count < retiring.size:
            return
        lanes: Ints = retiring.nonzero()[0]
        given = batch.params.lane[lanes]
        values = totals_of(batch, lanes)
        for counter, total in self.totals.rows():
            total[given] = values[counter.name]
        self.itl_histograms[given] = batch.counts.itl_counts[lanes]
        batch.compact(~retiring)

    def _check_progress(self) -> None:
        """Fail loudly rather than loop for ever if the rules ever disagree with each other."""
        self._loops += 1
        if self._loops % _STALL:
            return
        batch = self.batch
        steps = batch.clock.tick.sum() + batch.clock.prefill_steps.sum()
        position = (batch.params.n.size, float(steps))
        if position == self._position:
            stuck = batch.params.lane[batch.decodes.running > ZERO]
            raise RuntimeError(
                f"no step in {_STALL} rounds of the engine; lanes {stuck[:5].tolist()} hold unfinished requests"
            )
        self._position = position
