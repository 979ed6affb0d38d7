"""Types of arrays, defined once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
AnyInts = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]
