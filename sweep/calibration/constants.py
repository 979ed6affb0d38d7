"""The constants that a calibration looks for, and what physics lets them be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from ..hardware.operators import OperatorStepModel

OUTSIDE = "first_token_s"  # of no step


class Constant(NamedTuple):
    """One that can be looked for; `log`: it is looked for by factors, otherwise on a scale that begins at 0."""

    name: str
    low: float
    high: float
    log: bool
    meaning: str

    def value(self, place: Floats) -> Floats:
        """The values at places from 0 to 1."""
        if self.log:
            return np.asarray(self.low * (self.high / self.low) ** place)
        return np.asarray(self.high * place * place)

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return float(np.log(value / self.low) / np.log(self.high / self.low))
        return float(np.sqrt(value / self.high))

    @property
    def likely_spread(self) -> float:
        """How far from its start its place is thought likely to be."""
        return 0.1 if self.log else 0.2

    def relative(self, place: float, spread: float) -> float:
        """The share of the value that a small spread of its place is."""
        if self.log:
            return float(spread * np.log(self.high / self.low))
        return float(2 * spread / max(place, 1e-6))


FITTED = (
    Constant("mfu", 0.05, 1.0, True, "share of the peak FLOP/s that matrices reach"),
    Constant("mbu", 0.1, 1.0, True, "share of the bandwidth that matrices reach"),
    Constant("mbu_attention", 0.05, 1.0, True, "share of the bandwidth that reads of KV reach"),
    Constant("mfu_attention", 0.02, 1.0, True, "share of the peak FLOP/s that attention of prompts reaches"),
    Constant("allreduce_s", 1e-6, 2e-4, True, "seconds of an all-reduce of nothing"),
    Constant("overhead_s", 0.0, 0.02, False, "seconds of every step"),
    Constant("sequence_s", 0.0, 2e-4, False, "seconds for each request that emits a token"),
    Constant(OUTSIDE, 0.0, 0.05, False, "seconds before the first token, outside of the engine"),
)
NAMES = tuple(one.name for one in FITTED)


def chosen_constants(step: OperatorStepModel, names: Sequence[str] | None) -> list[Constant]:
    """Those with these names; None: all that have an effect on such an instance. ValueError for others."""
    if names is None:
        return [one for one in FITTED if step.tp > 1 or one.name != "allreduce_s"]
    known = ", ".join(NAMES)
    for name in names:
        if name not in NAMES:
            raise ValueError(f"fit={name!r}: must be names of {known}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"fit={list(names)!r}: must be different names of {known}, at least one")
    if "allreduce_s" in names and step.tp == 1:
        raise ValueError("fit='allreduce_s': has no effect with tp=1")
    return [one for one in FITTED if one.name in names]
