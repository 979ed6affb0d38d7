"""Types of arrays, defined once, and numbers as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
AnyInts = npt.NDArray[np.integer]
Numbers = Floats | Ints
"""Whole numbers of either type: np.bincount adds floats, and its type says integers."""
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

ALL = slice(None)
"""All lanes, where some could be chosen."""

# Numbers as arrays, for the phases: with a Python number, an operation on fifty lanes takes twice as long.
ZERO = np.array(0.0)
ONE = np.array(1.0)
HALF = np.array(0.5)
