"""The step-time coefficients of a batch."""

from __future__ import annotations

import numpy as np

from .arrays import ALL, ZERO, Floats, Ints
from .params import Params
from .step_tables import Lookup
from .steptime import StepCoefficients, step_seconds


class LaneStepTimes:
    """What steps cost in each lane, laid out so that phases find it fast, and facts about all lanes, so that what
    nobody needs is not computed."""

    def __init__(self, params: Params, tables: Floats | None = None) -> None:
        self._params, self._tables = params, tables
        self._look()
        self.communicates = bool(params.coefficients[:, 5:].any())
        c = StepCoefficients(*params.coefficients.T)
        most_compute = c.compute_per_token_s * np.minimum(params.max_running, params.n)
        at_memory = (most_compute <= c.memory_fixed_s) & (c.compute_per_context_s <= c.memory_per_token_s)
        self.memory_bound = not self.communicates and bool(np.all(at_memory))  # all steps that only decode
        alike = params.n.size > 0 and bool((self._columns == self._columns[:, :1]).all())
        # Arrays for the reason of arrays.ONE.
        self._alike = StepCoefficients(*map(np.array, self._columns[:, 0])) if alike else None

    def of(self, lanes: Ints | slice) -> StepCoefficients:
        """Those of some lanes, each [n]; single numbers where all lanes have one model on one chip."""
        if self._alike is not None:
            return self._alike
        return StepCoefficients(*self._columns[:, lanes])

    def seconds(
        self,
        decoding: Floats,
        context: Floats,
        chunk: Floats,
        pairs: Floats,
        done: Floats | None,
        emitting: Floats,
    ) -> Floats:
        """Seconds of a step with prefill in each lane; `done` and `emitting` count where there are tables. [L]"""
        before = ZERO if done is None else done
        if self.lookup is not None and self.lookup.everywhere:
            return self.lookup.seconds(self.lookup.of(ALL), decoding, context, chunk, pairs, before, emitting)
        work = decoding + chunk, context + pairs, context + chunk
        seconds: Floats = step_seconds(self.of(ALL), *work, self.communicates)
        if self.lookup is None:
            return seconds
        found = self.lookup.seconds(self.lookup.of(ALL), decoding, context, chunk, pairs, before, emitting)
        return np.where(self.lookup.there, found, seconds)

    def compact(self) -> None:
        """Lanes have left the batch."""
        self._look()

    def _look(self) -> None:
        self._columns = self._params.coefficients.T.copy()  # [9, L]
        self.lookup = None if self._tables is None else Lookup(self._tables, self._params.tables.T.copy())
