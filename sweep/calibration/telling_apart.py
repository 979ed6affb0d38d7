"""Which constants a benchmark tells, and which it cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from .constants import Constant
from .searching import Search, weights

SURE = 0.03  # relative spread from which on a constant is not told
NEAR_0 = 0.15  # spread of its place up to which one that may be 0 is told: it is small
INFLATION = 4.0  # how much surer a constant must be, were the others known, for them to be why it is not told
WEAK = 0.05  # a direction of constants, each by what it does, that changes the residuals less is one they cannot tell
SHARE = 0.2  # of such a direction, that a constant has to have to be named
AT_BOUND = 1e-3


class CalibratedConstant(NamedTuple):
    """A constant that was looked for.

    Attributes
    ----------
    name, unit
        As of `OperatorStepModel`, and "share" or "s".
    value, start
        What was found, and what it was before.
    spread
        How sure it is: the relative standard error, with thirty requests that were in the same steps counted as one.
    told
        Whether the data tell it: False where they say nothing of it, or cannot tell it from others.
    remark
        Why not, or that it is at the bound that physics sets; "" otherwise.
    """

    name: str
    unit: str
    value: float
    start: float
    spread: float
    told: bool
    remark: str


def what_is_told(found: Search, constants: Sequence[Constant], starts: Floats) -> list[CalibratedConstant]:
    """Each constant, with what the slopes of the residuals say of it."""
    slopes = found.slopes
    matrix = (slopes * weights(found.residuals, found.noise)) @ slopes.T
    scale = np.sqrt(np.maximum(matrix.diagonal(), 1e-300))
    alone = 1 / scale
    # As if each did as much as any other, with a little on the diagonal for those that do exactly the same.
    even = matrix / np.outer(scale, scale)
    together = np.sqrt(np.linalg.inv(even + 1e-6 * np.eye(scale.size)).diagonal()) * alone
    strength, directions = np.linalg.eigh(even)
    weak = np.abs(directions[:, strength < WEAK]) > SHARE  # [K, directions]
    alike = together > INFLATION * alone
    rows = []
    for k, one in enumerate(constants):
        place = float(found.place[k])
        spread = one.relative(place, float(together[k]))
        around = float(together[k])
        remark, told = "", spread <= SURE
        if not one.log and place <= 2 * around:
            most = float(one.value(np.array(min(place + 2 * around, 1.0))))
            told, remark = around <= NEAR_0, f"at most {1e6 * most:,.3g} us"
        if not told and alike[k]:
            close = (weak & weak[k]).any(axis=1)
            others = [constants[j].name for j in np.flatnonzero(close).tolist() if j != k]
            remark = f"cannot be told from {', '.join(others) or 'the others together'}"
        elif not told:
            remark = "the data say little of it"
        elif not remark and not AT_BOUND < place < 1 - AT_BOUND:
            remark = "at the bound that physics sets"
        unit = "s" if one.name.endswith("_s") else "share"
        rows.append(
            CalibratedConstant(one.name, unit, float(one.value(found.place[k])), float(starts[k]), spread, told, remark)
        )
    return rows
